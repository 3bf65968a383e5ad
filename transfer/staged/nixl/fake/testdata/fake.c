/* A library with the functions of NIXL that Baton uses. FAKE_NIXL names its faults:
 *   no-agent no-backend no-register no-metadata   that call fails
 *   bad-load bad-prep bad-make                    that call fails
 *   fails         a read fails when it is posted, half done
 *   later         reads are done at the third question
 *   stuck         reads bring half, and never end; the end of an agent fills the rest of the last one;
 *                 FAKE_NIXL_MARK is a file that is made at each
 *   crash         a read is a fault of memory
 *   prints        on stdout and stderr, at each agent
 *   hangs         the end of an agent, and exit, never return
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/uio.h>
#include <unistd.h>

typedef void *handle;

static bool is(const char *fault)
{
	const char *all = getenv("FAKE_NIXL"), *at = all;
	size_t n = strlen(fault);
	for (; at && (at = strstr(at, fault)); at++)
		if ((at == all || at[-1] == ',') && (at[n] == 0 || at[n] == ','))
			return true;
	return false;
}

struct piece {
	uintptr_t addr;
	size_t len;
};

struct list {
	int32_t n, room;
	int pid; /* whose memory it is */
	struct piece *p;
};

struct agent {
	char name[96], peer[96];
	struct piece own, theirs;
	int pid;
};

struct request {
	int polls, pid;
	struct piece into, from;
	struct request *next; /* of the same transfer */
};

static struct piece rest; /* of the last stuck read */

static void forever(void)
{
	for (;;)
		pause();
}

__attribute__((constructor)) static void let_in(void)
{
	prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY); /* where the kernel lets parents alone read */
}

__attribute__((destructor)) static void at_exit(void)
{
	if (is("hangs"))
		forever();
}

#ifdef STUB
bool nixl_capi_is_stub(void) { return true; }
#else
bool nixl_capi_is_stub(void) { return false; }
#endif

int nixl_capi_create_configured_agent(const char *name, const void *settings, handle *out)
{
	(void)settings;
	if (is("prints")) {
		printf("a word on stdout\n");
		fflush(stdout);
		fprintf(stderr, "a word on stderr\n");
	}
	if (is("no-agent"))
		return -2;
	struct agent *a = calloc(1, sizeof *a);
	snprintf(a->name, sizeof a->name, "%s", name);
	*out = a;
	return 0;
}

int nixl_capi_destroy_agent(handle a)
{
	if (is("hangs"))
		forever();
	if (rest.len) {
		usleep(50000); /* for who does not wait for it */
		memset((void *)rest.addr, 0xee, rest.len);
	}
	free(a);
	return 0;
}

int nixl_capi_get_plugin_params(handle a, const char *name, handle *mems, handle *params)
{
	(void)a;
	*mems = *params = NULL;
	return strcmp(name, "UCX") ? -2 : 0;
}

int nixl_capi_mem_list_size(handle l, size_t *n) { (void)l; *n = 2; return 0; }
int nixl_capi_mem_list_get(handle l, size_t i, int *mem) { (void)l; *mem = (int)(1 - i); return 0; }
int nixl_capi_destroy_mem_list(handle l) { (void)l; return 0; }
int nixl_capi_create_params(handle *p) { *p = malloc(1); return 0; }
int nixl_capi_params_add(handle p, const char *k, const char *v) { (void)p; return *k && *v ? 0 : -1; }
int nixl_capi_destroy_params(handle p) { free(p); return 0; }

int nixl_capi_create_backend(handle a, const char *name, handle p, handle *out)
{
	(void)a, (void)name, (void)p;
	if (is("no-backend"))
		return -2;
	*out = malloc(1);
	return 0;
}

int nixl_capi_destroy_backend(handle b) { free(b); return 0; }
int nixl_capi_create_opt_args(handle *o) { *o = malloc(1); return 0; }
int nixl_capi_opt_args_add_backend(handle o, handle b) { (void)o, (void)b; return 0; }
int nixl_capi_destroy_opt_args(handle o) { free(o); return 0; }

static int list_new(int mem, handle *out)
{
	if (mem != 0)
		return -1;
	*out = calloc(1, sizeof(struct list));
	return 0;
}

static int list_add(struct list *l, uintptr_t addr, size_t len)
{
	if (l->n == l->room) {
		l->room = l->room ? 2 * l->room : 4;
		l->p = realloc(l->p, (size_t)l->room * sizeof *l->p);
	}
	l->p[l->n++] = (struct piece){addr, len};
	return 0;
}

static int list_free(struct list *l)
{
	free(l->p);
	free(l);
	return 0;
}

int nixl_capi_create_reg_dlist(int mem, handle *l) { return list_new(mem, l); }
int nixl_capi_reg_dlist_add_desc(handle l, uintptr_t addr, size_t len, uint64_t dev, const void *meta, size_t n)
{
	(void)dev, (void)meta, (void)n;
	return list_add(l, addr, len);
}
int nixl_capi_destroy_reg_dlist(handle l) { return list_free(l); }

int nixl_capi_register_mem(handle a, handle l, handle opt)
{
	(void)opt;
	if (is("no-register"))
		return -2;
	((struct agent *)a)->own = ((struct list *)l)->p[0];
	return 0;
}

int nixl_capi_get_local_md(handle h, void **data, size_t *n)
{
	struct agent *a = h;
	char *text;
	if (is("no-metadata"))
		return -2;
	*n = (size_t)asprintf(&text, "fake %s %d %llu %llu", a->name, getpid(), (unsigned long long)a->own.addr, (unsigned long long)a->own.len) + 1;
	*data = text;
	return 0;
}

int nixl_capi_load_remote_md(handle h, const void *data, size_t n, char **name)
{
	struct agent *a = h;
	unsigned long long addr, len;
	char text[256] = "";
	memcpy(text, data, n < sizeof text ? n : 0);
	if (is("bad-load") || n == 0 || text[n - 1] || sscanf(text, "fake %95s %d %llu %llu", a->peer, &a->pid, &addr, &len) != 4)
		return -2;
	a->theirs = (struct piece){addr, len};
	*name = strdup(a->peer);
	return 0;
}

int nixl_capi_create_xfer_dlist(int mem, handle *l) { return list_new(mem, l); }
int nixl_capi_xfer_dlist_add_desc(handle l, uintptr_t addr, size_t len, uint64_t dev) { (void)dev; return list_add(l, addr, len); }
int nixl_capi_destroy_xfer_dlist(handle l) { return list_free(l); }

static bool inside(struct piece p, struct piece all)
{
	return p.addr >= all.addr && p.len <= all.len && p.addr - all.addr <= all.len - p.len;
}

int nixl_capi_prep_xfer_dlist(handle h, const char *name, handle list, handle *out, handle opt)
{
	struct agent *a = h;
	struct list *l = list, *copy = calloc(1, sizeof *copy);
	(void)opt;
	int status = is("bad-prep") ? -2 : 0;
	for (int32_t i = 0; i < l->n; i++) {
		if (!inside(l->p[i], *name ? a->theirs : a->own))
			status = -2;
		list_add(copy, l->p[i].addr, l->p[i].len);
	}
	copy->pid = *name ? a->pid : getpid();
	if (status)
		list_free(copy);
	else
		*out = copy;
	return status;
}

int nixl_capi_release_xfer_dlist_handle(handle a, handle l) { (void)a; return list_free(l); }

static void free_requests(struct request *r)
{
	while (r) {
		struct request *next = r->next;
		free(r);
		r = next;
	}
}

#ifndef OLD
static int request(struct piece into, struct piece from, int pid, handle *out)
{
	if (is("bad-make") || into.len != from.len)
		return -2;
	struct request *r = calloc(1, sizeof *r);
	*r = (struct request){.pid = pid, .into = into, .from = from};
	*out = r;
	return 0;
}

int nixl_capi_make_xfer_req(handle a, int op, handle ll, const int *li, size_t ln, handle rl, const int *ri, size_t rn, handle *out, handle opt)
{
	struct list *l = ll, *r = rl;
	(void)a, (void)opt;
	int status = op || ln < 1 || ln != rn ? -1 : 0;
	struct request *all = NULL;
	for (size_t i = ln; i-- > 0 && !status;) {
		handle one = NULL;
		status = request(l->p[li[i]], r->p[ri[i]], r->pid, &one);
		if (status)
			break;
		((struct request *)one)->next = all;
		all = one;
	}
	if (status)
		free_requests(all);
	else
		*out = all;
	return status;
}

int nixl_capi_create_xfer_req(handle h, int op, handle ll, handle rl, const char *name, handle *out, handle opt)
{
	struct list *l = ll, *r = rl;
	struct agent *a = h;
	(void)opt;
	if (op || strcmp(name, a->peer) || !inside(l->p[0], a->own) || !inside(r->p[0], a->theirs))
		return -1;
	return request(l->p[0], r->p[0], a->pid, out);
}
#endif

int nixl_capi_post_xfer_req(handle a, handle req, handle opt)
{
	struct request *r = req;
	(void)a, (void)opt;
	if (is("crash"))
		*(volatile int *)8 = 1;
	for (struct request *x = r; x; x = x->next) {
		size_t n = is("fails") || is("stuck") ? x->into.len / 2 : x->into.len;
		struct iovec into = {(void *)x->into.addr, n}, from = {(void *)x->from.addr, n};
		if (process_vm_readv(x->pid, &into, 1, &from, 1, 0) != (ssize_t)n || is("fails"))
			return -2;
	}
	if (is("stuck")) {
		size_t n = r->into.len / 2;
		rest = (struct piece){r->into.addr + n, r->into.len - n};
		if (getenv("FAKE_NIXL_MARK"))
			close(creat(getenv("FAKE_NIXL_MARK"), 0600));
	}
	return is("later") || is("stuck");
}

int nixl_capi_get_xfer_status(handle a, handle req)
{
	struct request *r = req;
	(void)a;
	return is("stuck") || ++r->polls < 3;
}

int nixl_capi_release_xfer_req(handle a, handle r) { (void)a, (void)r; return 0; }
int nixl_capi_destroy_xfer_req(handle r) { free_requests(r); return 0; }
