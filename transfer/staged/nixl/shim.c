#define _GNU_SOURCE
#include "lib.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static const char *word(int status)
{
	switch (status) {
	case -1: return "invalid parameter";
	case -2: return "backend failed";
	case -3: return "invalid state";
	case -4: return "exception";
	case -6: return "not found";
	default: return "failed";
	}
}

static int failed(int status, const char *what, char *why, size_t n)
{
	snprintf(why, n, "%s: %s (%d)", what, word(status), status);
	return status < 0 ? status : -2;
}

int nx_open(const char *path, struct nx_lib **out, char *why, size_t n)
{
	void *so = dlopen(path, RTLD_NOW | RTLD_LOCAL);
	if (!so) {
		const char *said = dlerror();
		snprintf(why, n, "%s", said ? said : path);
		return NX_NO_LIBRARY;
	}
	struct nx_lib *lib = calloc(1, sizeof *lib);
	if (!lib)
		return NX_MEMORY;
	size_t at = 0;
	int missing = 0, found = 0;
	/* The bits of a function's address come by memcpy: C has no conversion from void *. */
#define FIND(RETURN, NAME, ARGS)                                                                                       \
	{                                                                                                              \
		void *f = dlsym(so, "nixl_capi_" #NAME);                                                               \
		memcpy(&lib->NAME, &f, sizeof f);                                                                      \
	}
#define NEED(RETURN, NAME, ARGS)                                                                                       \
	FIND(RETURN, NAME, ARGS)                                                                                       \
	if (!lib->NAME) {                                                                                              \
		missing++;                                                                                             \
		if (at < n)                                                                                            \
			at += (size_t)snprintf(why + at, n - at, "%snixl_capi_" #NAME, at ? ", " : "");                \
	} else {                                                                                                       \
		found++;                                                                                               \
	}
	FUNCTIONS(NEED)
	OPTIONAL(FIND)
#undef NEED
#undef FIND
	int status = missing ? NX_NO_SYMBOL : lib->is_stub() ? NX_STUB : 0;
	if (!found) {
		snprintf(why, n, "it has no function of NIXL: name libnixl_capi.so");
		status = NX_NO_LIBRARY;
	}
	if (status) {
		free(lib); /* the library stays: nothing says that it can be closed */
		return status;
	}
	*out = lib;
	return 0;
}

/* Whether the backend can be loaded here, and moves host memory. */
static int check_backend(struct nx_agent *a, const char *backend, char *why, size_t n)
{
	struct nx_lib *l = a->lib;
	handle mems = NULL, params = NULL;
	int status = l->get_plugin_params(a->agent, backend, &mems, &params);
	if (status) {
		failed(status, "get_plugin_params", why, n);
		return NX_NO_BACKEND;
	}
	size_t count = 0;
	bool host = false;
	l->mem_list_size(mems, &count);
	for (size_t i = 0; i < count; i++) {
		int mem = -1;
		host |= l->mem_list_get(mems, i, &mem) == 0 && mem == HOST_MEMORY;
	}
	l->destroy_mem_list(mems);
	l->destroy_params(params);
	if (!host)
		snprintf(why, n, "it moves no host memory");
	return host ? 0 : NX_NO_BACKEND;
}

static int add_backend(struct nx_agent *a, const char *backend, const char *params, char *why, size_t n)
{
	struct nx_lib *l = a->lib;
	handle p = NULL;
	int status = l->create_params(&p);
	if (status)
		return failed(status, "create_params", why, n);
	while (*params && !status) {
		const char *value = params + strlen(params) + 1;
		status = l->params_add(p, params, value);
		params = value + strlen(value) + 1;
	}
	if (!status)
		status = l->create_backend(a->agent, backend, p, &a->backend);
	l->destroy_params(p);
	if (status) {
		failed(status, "create_backend", why, n);
		return NX_NO_BACKEND;
	}
	status = l->create_opt_args(&a->opt);
	if (!status)
		status = l->opt_args_add_backend(a->opt, a->backend);
	return status ? failed(status, "opt_args_add_backend", why, n) : 0;
}

static int register_memory(struct nx_agent *a, uint64_t addr, uint64_t bytes, char *why, size_t n)
{
	struct nx_lib *l = a->lib;
	handle list = NULL;
	int status = l->create_reg_dlist(HOST_MEMORY, &list);
	if (!status)
		status = l->reg_dlist_add_desc(list, (uintptr_t)addr, (size_t)bytes, 0, NULL, 0);
	if (!status)
		status = l->register_mem(a->agent, list, a->opt);
	if (list)
		l->destroy_reg_dlist(list);
	return status ? failed(status, "register_mem", why, n) : 0;
}

int nx_agent_new(struct nx_lib *lib, const char *name, const char *backend, const char *params, int serves, uint64_t addr,
		 uint64_t bytes, struct nx_agent **out, char *why, size_t n)
{
	struct nx_agent *a = calloc(1, sizeof *a);
	if (!a)
		return NX_MEMORY;
	a->lib = lib;
	/* The target of a read over TCP takes part in it, by a thread; at 1000 us that costs 3 % of
	 * a core, at 0 a whole one. Who reads asks after its reads, which does the same. */
	struct settings s = {.progress = serves, .sync = LOCKED, .workers = 1, .progress_us = 1000};
	int status = lib->create_configured_agent(name, &s, &a->agent);
	if (status) {
		failed(status, "create_configured_agent", why, n);
		free(a);
		return status < 0 ? status : -2;
	}
	status = check_backend(a, backend, why, n);
	if (!status)
		status = add_backend(a, backend, params, why, n);
	if (!status)
		status = register_memory(a, addr, bytes, why, n);
	if (status) {
		nx_agent_end(a, NULL, 0);
		return status;
	}
	*out = a;
	return 0;
}

int nx_agent_metadata(struct nx_agent *a, void **data, size_t *len, char *why, size_t n)
{
	int status = a->lib->get_local_md(a->agent, data, len);
	return status ? failed(status, "get_local_md", why, n) : 0;
}

static uintptr_t at(struct nx_chunks c, int32_t i)
{
	return (uintptr_t)(c.addr + (uint64_t)i * (uint64_t)c.bytes);
}

/* A list of descriptors: the first bytes of chunks lo to hi. */
static int list_of(struct nx_lib *l, struct nx_chunks c, int32_t lo, int32_t hi, int64_t bytes, handle *list)
{
	int status = l->create_xfer_dlist(HOST_MEMORY, list);
	for (int32_t i = lo; i < hi && !status; i++)
		status = l->xfer_dlist_add_desc(*list, at(c, i), (size_t)bytes, 0);
	return status;
}

static int prepare(struct nx_agent *a, const char *name, struct nx_chunks c, handle *out)
{
	handle list = NULL;
	int status = list_of(a->lib, c, 0, c.count, a->whole, &list);
	if (!status)
		status = a->lib->prep_xfer_dlist(a->agent, name, list, out, a->opt);
	if (list)
		a->lib->destroy_xfer_dlist(list);
	return status;
}

int nx_agent_connect(struct nx_agent *a, const char *name, const void *data, size_t len, struct nx_chunks own,
		     struct nx_chunks peer, char *why, size_t n)
{
	struct nx_lib *l = a->lib;
	char *loaded = NULL;
	int status = l->load_remote_md(a->agent, data, len, &loaded);
	if (status) {
		failed(status, "load_remote_md", why, n);
		return NX_METADATA;
	}
	bool same = loaded && strcmp(loaded, name) == 0;
	if (!same)
		snprintf(why, n, "they are those of %.64s, not of %s", loaded ? loaded : "nobody", name);
	free(loaded);
	a->name = strdup(name);
	if (!same || !a->name)
		return same ? NX_MEMORY : NX_METADATA;
	a->own = own, a->peer = peer, a->whole = own.bytes < peer.bytes ? own.bytes : peer.bytes;
	if (l->agent_make_connection && (status = l->agent_make_connection(a->agent, name, a->opt)))
		return failed(status, "agent_make_connection", why, n);
	if ((status = prepare(a, "", own, &a->local)))
		return failed(status, "prep_xfer_dlist of the own chunks", why, n);
	if ((status = prepare(a, name, peer, &a->remote))) {
		failed(status, "the peer's chunks are not what it registered: prep_xfer_dlist", why, n);
		return NX_METADATA;
	}
	return 0;
}

/* A read of less than the whole has descriptors of its own. */
static int short_read(struct nx_agent *a, struct nx_read *r, handle *req)
{
	struct nx_lib *l = a->lib;
	handle own = NULL, peer = NULL;
	int status = list_of(l, a->own, r->local, r->local + 1, r->bytes, &own);
	if (!status)
		status = list_of(l, a->peer, r->remote, r->remote + 1, r->bytes, &peer);
	if (!status)
		status = l->create_xfer_req(a->agent, READ, own, peer, a->name, req, a->opt);
	if (own)
		l->destroy_xfer_dlist(own);
	if (peer)
		l->destroy_xfer_dlist(peer);
	return status;
}

static void forget(struct nx_agent *a, struct nx_read *r)
{
	if (!r->req)
		return;
	a->lib->release_xfer_req(a->agent, (handle)(uintptr_t)r->req);
	a->lib->destroy_xfer_req((handle)(uintptr_t)r->req);
	r->req = 0;
}

void nx_post(struct nx_agent *a, struct nx_read *r, int status, handle req)
{
	r->req = status ? 0 : (uint64_t)(uintptr_t)req;
	r->posted = status == 0;
	if (!status)
		status = a->lib->post_xfer_req(a->agent, req, NULL);
	r->status = status > 0 ? NX_BUSY : status;
	if (status <= 0)
		forget(a, r);
}

static void start(struct nx_agent *a, struct nx_read *r)
{
	handle req = NULL;
	int local = r->local, remote = r->remote;
	int status = r->bytes == a->whole
			     ? a->lib->make_xfer_req(a->agent, READ, a->local, &local, 1, a->remote, &remote, 1, &req, a->opt)
			     : short_read(a, r, &req);
	nx_post(a, r, status, req);
}

static int64_t now_us(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (int64_t)t.tv_sec * 1000000 + t.tv_nsec / 1000;
}

int32_t nx_agent_start(struct nx_agent *a, struct nx_read *r, int32_t n)
{
	int64_t until = now_us() + 500;
	for (int32_t i = 0; i < n; i++) {
		start(a, &r[i]);
		if (now_us() >= until)
			return i + 1;
	}
	return n;
}

int32_t nx_agent_wait(struct nx_agent *a, struct nx_read *r, int32_t n, int32_t wait_us)
{
	int64_t until = now_us() + wait_us;
	/* Reads over TCP go on by the questions; who waits for long waits for a peer that is stuck. */
	struct timespec nap = {.tv_nsec = wait_us > 1000 ? 200000 : 20000};
	for (;;) {
		int32_t ended = 0;
		for (int32_t i = 0; i < n; i++) {
			if (r[i].status == NX_BUSY) {
				int status = a->lib->get_xfer_status(a->agent, (handle)(uintptr_t)r[i].req);
				if (status > 0)
					continue;
				r[i].status = status;
				forget(a, &r[i]);
			}
			ended++;
		}
		if (ended || now_us() >= until)
			return ended;
		nanosleep(&nap, NULL);
	}
}

void nx_agent_end(struct nx_agent *a, struct nx_read *r, int32_t n)
{
	struct nx_lib *l = a->lib;
	for (int32_t i = 0; i < n; i++)
		forget(a, &r[i]);
	if (a->local)
		l->release_xfer_dlist_handle(a->agent, a->local);
	if (a->remote)
		l->release_xfer_dlist_handle(a->agent, a->remote);
	if (a->opt)
		l->destroy_opt_args(a->opt);
	l->destroy_agent(a->agent);
	if (a->backend)
		l->destroy_backend(a->backend);
	free(a->name);
	free(a);
}
