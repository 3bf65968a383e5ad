// Devices, contexts and memory of the fake driver.
#include "fake.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

struct counts fake_cuda;
struct context contexts[DEVICES];
__thread struct context *current;
pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
struct range *ranges;
static int initialized;

static int number(const char *name, int otherwise) {
	const char *s = getenv(name);
	return s && *s ? atoi(s) : otherwise;
}

int device_count(void) { return number("FAKE_CUDA_DEVICES", 2); }
int version(void) { return number("FAKE_CUDA_VERSION", 13000); }

// FAKE_CUDA_FAIL is "call:successes before it:error", several with commas.
int fault(const char *call) {
	static struct { char name[64]; int left; } seen[32];
	const char *s = getenv("FAKE_CUDA_FAIL");
	size_t n = strlen(call);
	for (; s && *s; s = strchr(s, ',') ? strchr(s, ',') + 1 : NULL) {
		int after, code;
		if (strncmp(s, call, n) || s[n] != ':' || sscanf(s + n, ":%d:%d", &after, &code) != 2) continue;
		for (int i = 0; i < 32; i++) {
			if (!seen[i].name[0]) {
				snprintf(seen[i].name, sizeof seen[i].name, "%s", call);
				seen[i].left = after;
			}
			if (strcmp(seen[i].name, call)) continue;
			return seen[i].left-- > 0 ? OK : code;
		}
	}
	return OK;
}

int enter(const char *call) {
	int rc = fault(call);
	if (rc) return rc;
	if (!initialized) return NOT_INITIALIZED;
	if (!current || !current->retained) return BAD_CONTEXT;
	return current->sticky;
}

static struct range *add(uintptr_t at, size_t size, enum kind kind, int device, int fd) {
	struct range *r = calloc(1, sizeof *r);
	r->at = at, r->size = size, r->kind = kind, r->device = device, r->fd = fd;
	r->opened = current;
	r->next = ranges;
	return ranges = r;
}

static struct range **find(uintptr_t at, enum kind kind) {
	for (struct range **p = &ranges; *p; p = &(*p)->next)
		if ((*p)->at == at && (*p)->kind == kind) return p;
	return NULL;
}

static void drop(struct range **p) {
	struct range *r = *p;
	if (pending(r->at, r->size)) fake_cuda.violations++; // freed under a copy
	*p = r->next;
	free(r);
}

int touch(uintptr_t at, size_t n, struct range **first) {
	*first = NULL;
	while (n > 0) {
		struct range *r = ranges;
		while (r && !(r->at <= at && at < r->at + r->size)) r = r->next;
		if (!r) return ILLEGAL;
		if (!*first) *first = r;
		size_t here = r->at + r->size - at;
		if (here >= n) break;
		at += here, n -= here;
	}
	return OK;
}

static int f_init(unsigned flags) {
	int rc = flags ? INVALID : fault("cuInit");
	if (!rc && device_count() == 0) rc = NO_DEVICE;
	if (!rc) initialized = 1;
	return rc;
}

static int f_version(int *v) { return *v = version(), OK; }
static int f_name(int code, const char **s) {
	switch (code) {
	case INVALID: *s = "CUDA_ERROR_INVALID_VALUE"; break;
	case NO_MEMORY: *s = "CUDA_ERROR_OUT_OF_MEMORY"; break;
	case BAD_CONTEXT: *s = "CUDA_ERROR_INVALID_CONTEXT"; break;
	case BAD_HANDLE: *s = "CUDA_ERROR_INVALID_HANDLE"; break;
	case ILLEGAL: *s = "CUDA_ERROR_ILLEGAL_ADDRESS"; break;
	default: return *s = NULL, INVALID;
	}
	return OK;
}
static int f_text(int code, const char **s) { return *s = "the fake driver was asked to fail", code ? OK : INVALID; }
static int f_count(int *n) { return *n = device_count(), OK; }
static int f_device(int *d, int i) { return i < 0 || i >= device_count() ? NO_DEVICE : (*d = i, OK); }
static int f_device_name(char *s, int n, int d) { return snprintf(s, (size_t)n, "Fake GPU %d", d), OK; }
static int f_uuid(unsigned char *u, int d) { return memcpy(u, "fake-gpu-000000", 16), u[15] = (unsigned char)d, OK; }
static int f_attribute(int *v, int which, int d) { return (void)d, *v = which == 16 ? 132 : 3, OK; }
static int f_reaches(int *yes, int a, int b) { return *yes = a != b && !number("FAKE_CUDA_NO_PEER", 0), OK; }

static int f_retain(void **ctx, int d) {
	int rc = fault("cuDevicePrimaryCtxRetain");
	if (rc) return rc;
	pthread_mutex_lock(&lock);
	contexts[d].device = d;
	contexts[d].retained++;
	fake_cuda.contexts++;
	*ctx = &contexts[d];
	pthread_mutex_unlock(&lock);
	return OK;
}

static int f_release(int d) {
	pthread_mutex_lock(&lock);
	int rc = contexts[d].retained > 0 ? OK : BAD_CONTEXT;
	if (!rc) contexts[d].retained--, fake_cuda.contexts--;
	pthread_mutex_unlock(&lock);
	return rc;
}

static int f_current(void *c) {
	struct context *x = c;
	if (x && (x < contexts || x >= contexts + DEVICES || !x->retained)) return BAD_CONTEXT;
	current = x;
	return OK;
}

static int f_enable(void *peer, unsigned flags) {
	CALL("cuCtxEnablePeerAccess") {
		int bit = 1 << ((struct context *)peer)->device;
		rc = flags ? INVALID : current->peers & bit ? PEER_ENABLED : OK;
		current->peers |= bit;
	}
	LEAVE;
}

static int memory(size_t n, int device, int *fd, void **at) {
	char name[64];
	snprintf(name, sizeof name, "fake-cuda-%d", device);
	*fd = memfd_create(name, MFD_CLOEXEC);
	if (*fd < 0 || ftruncate(*fd, (off_t)n)) return NO_MEMORY;
	if (!at) return OK;
	*at = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_SHARED, *fd, 0);
	return *at == MAP_FAILED ? NO_MEMORY : OK;
}

static int f_alloc(cu_ptr *out, size_t n) {
	CALL("cuMemAlloc") {
		void *at = NULL;
		int fd = -1;
		rc = n ? memory(n, current->device, &fd, &at) : INVALID;
		if (!rc) {
			*out = (cu_ptr)(uintptr_t)at;
			add((uintptr_t)at, n, ALLOC, current->device, fd);
			fake_cuda.allocs++;
		}
	}
	LEAVE;
}

static int f_free(cu_ptr at) {
	CALL("cuMemFree") {
		struct range **p = find((uintptr_t)at, ALLOC);
		if (!p) rc = INVALID;
		else {
			close((*p)->fd);
			munmap((void *)(*p)->at, (*p)->size);
			drop(p);
			fake_cuda.allocs--;
		}
	}
	LEAVE;
}

// plain is one side of a copy to or from the host: the current GPU must have access.
static int plain(cu_ptr at, size_t n) {
	struct range *r;
	if (touch((uintptr_t)at, n, &r)) return INVALID;
	return r->kind == MAPPED && !(r->access >> current->device & 1) ? INVALID : OK;
}

static int f_put(cu_ptr to, const void *from, size_t n) {
	CALL("cuMemcpyHtoD") {
		rc = plain(to, n);
		if (!rc) memcpy((void *)(uintptr_t)to, from, n);
	}
	LEAVE;
}

static int f_get(void *to, cu_ptr from, size_t n) {
	CALL("cuMemcpyDtoH") {
		rc = plain(from, n);
		if (!rc) memcpy(to, (void *)(uintptr_t)from, n);
	}
	LEAVE;
}

int host(uintptr_t at, size_t n, int *pinned) {
	uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), from = at / page * page, end = at + n;
	for (uintptr_t p = from; p < end; p += page) {
		unsigned char in;
		if (mincore((void *)p, page, &in)) return INVALID;
	}
	*pinned = 0;
	for (struct range *r = ranges; r; r = r->next) {
		if (!(r->at < end && at < r->at + r->size)) continue;
		if (r->kind != PINNED || r->at > at || end > r->at + r->size) return INVALID;
		*pinned = 1;
	}
	return OK;
}

static int f_pin(void *at, size_t n, unsigned flags) {
	__atomic_add_fetch(&fake_cuda.held_pins, 1, __ATOMIC_SEQ_CST);
	while (__atomic_load_n(&fake_cuda.hold_pins, __ATOMIC_SEQ_CST)) usleep(100);
	__atomic_sub_fetch(&fake_cuda.held_pins, 1, __ATOMIC_SEQ_CST);
	CALL("cuMemHostRegister") {
		int pinned;
		uintptr_t p = (uintptr_t)at;
		if (!n || p % (uintptr_t)sysconf(_SC_PAGESIZE) || (flags & ~8u) != 3) rc = INVALID;
		for (struct range *r = ranges; !rc && r; r = r->next)
			if (r->kind == PINNED && r->at < p + n && p < r->at + r->size) rc = PINNED_ALREADY;
		if (!rc) rc = host(p, n, &pinned);
		if (!rc) {
			add(p, n, PINNED, -1, -1);
			fake_cuda.pins++;
		}
	}
	LEAVE;
}

static int f_unpin(void *at) {
	CALL("cuMemHostUnregister") {
		struct range **p = find((uintptr_t)at, PINNED);
		if (!p) rc = INVALID;
		else drop(p), fake_cuda.pins--;
	}
	LEAVE;
}

static int f_pointer(void *out, int which, cu_ptr at) {
	CALL("cuPointerGetAttribute") {
		struct range *r;
		if (touch((uintptr_t)at, 1, &r)) rc = INVALID;
		else if (which == CU_POINTER_ORDINAL) *(int *)out = r->device;
		else if (which == CU_POINTER_LEGACY) *(char *)out = r->kind == ALLOC && !number("FAKE_CUDA_POOL", 0);
		else if (which == CU_POINTER_KINDS) *(uint64_t *)out = r->kind == MAPPED && !r->phys->imported;
		else if (which == CU_POINTER_POOL && number("FAKE_CUDA_POOL", 0)) *(uint64_t *)out = 1;
		else rc = INVALID;
	}
	LEAVE;
}

static int f_range(cu_ptr *base, size_t *n, cu_ptr at) {
	CALL("cuMemGetAddressRange") {
		struct range *r;
		if (touch((uintptr_t)at, 1, &r)) rc = INVALID;
		else *base = r->at, *n = r->size;
	}
	LEAVE;
}

struct key { uint32_t magic, pid; int fd, device; uint64_t size, inode; };

static int f_ipc_get(cu_ipc *h, cu_ptr at) {
	CALL("cuIpcGetMemHandle") {
		struct range **p = find((uintptr_t)at, ALLOC);
		struct stat st;
		if (!p || fstat((*p)->fd, &st)) rc = INVALID;
		else {
			struct key k = {0xba70, (uint32_t)getpid(), (*p)->fd, (*p)->device, (*p)->size, st.st_ino};
			memset(h, 0, sizeof *h);
			memcpy(h, &k, sizeof k);
		}
	}
	LEAVE;
}

static int ipc_map(const cu_ipc *h, cu_ptr *out) {
	struct key k;
	memcpy(&k, h, sizeof k);
	char path[64];
	struct stat st;
	if (k.magic != 0xba70 || k.device >= device_count()) return BAD_HANDLE;
	if (k.pid == (uint32_t)getpid()) return BAD_CONTEXT;
	for (struct range *r = ranges; r; r = r->next)
		if (r->kind == IPC && !memcmp(r->key, h, 64)) return ALREADY_MAPPED;
	snprintf(path, sizeof path, "/proc/%u/fd/%d", k.pid, k.fd);
	int fd = open(path, O_RDWR | O_CLOEXEC);
	if (fd < 0) return BAD_HANDLE;
	void *at = MAP_FAILED;
	if (!fstat(fd, &st) && st.st_ino == k.inode) at = mmap(NULL, k.size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	close(fd);
	if (at == MAP_FAILED) return BAD_HANDLE;
	*out = (cu_ptr)(uintptr_t)at;
	memcpy(add((uintptr_t)at, k.size, IPC, k.device, -1)->key, h, 64);
	fake_cuda.opens++;
	return OK;
}

static int f_ipc_open(cu_ptr *out, cu_ipc h, unsigned flags) {
	CALL("cuIpcOpenMemHandle") { rc = flags == 1 ? ipc_map(&h, out) : INVALID; }
	LEAVE;
}

static int f_ipc_close(cu_ptr at) {
	CALL("cuIpcCloseMemHandle") {
		struct range **p = find((uintptr_t)at, IPC);
		if (!p) rc = INVALID;
		else {
			munmap((void *)(*p)->at, (*p)->size);
			drop(p);
			fake_cuda.opens--;
		}
	}
	LEAVE;
}

static int f_grain(size_t *g, const cu_prop *p, int flags) { return (void)flags, *g = GRAIN, p->type == 1 ? OK : INVALID; }

static struct phys *phys_new(size_t n, int device, int fd, int imported) {
	struct phys *h = calloc(1, sizeof *h);
	*h = (struct phys){n, device, fd, 1, imported};
	fake_cuda.phys++;
	return h;
}

static void phys_drop(struct phys *h) {
	if (--h->refs) return;
	close(h->fd);
	free(h);
	fake_cuda.phys--;
}

static int f_create(cu_ptr *out, size_t n, const cu_prop *p, unsigned long long flags) {
	CALL("cuMemCreate") {
		int fd = -1;
		rc = flags || !n || n % GRAIN || p->type != CU_PINNED || p->at.type != 1 ? INVALID : memory(n, p->at.id, &fd, NULL);
		if (!rc) *out = (cu_ptr)(uintptr_t)phys_new(n, p->at.id, fd, 0);
	}
	LEAVE;
}

static int f_phys_release(cu_ptr h) {
	CALL("cuMemRelease") { phys_drop((struct phys *)(uintptr_t)h); }
	LEAVE;
}

static int f_phys_retain(cu_ptr *out, void *at) {
	CALL("cuMemRetainAllocationHandle") {
		struct range **p = find((uintptr_t)at, MAPPED);
		if (!p) rc = INVALID;
		else (*p)->phys->refs++, *out = (cu_ptr)(uintptr_t)(*p)->phys;
	}
	LEAVE;
}

static int f_export(void *out, cu_ptr h, int kind, unsigned long long flags) {
	CALL("cuMemExportToShareableHandle") {
		struct phys *p = (struct phys *)(uintptr_t)h;
		rc = kind != CU_FD || flags || p->imported ? INVALID : OK;
		if (!rc) *(int *)out = fcntl(p->fd, F_DUPFD_CLOEXEC, 0);
	}
	LEAVE;
}

static int f_import(cu_ptr *out, void *handle, int kind) {
	CALL("cuMemImportFromShareableHandle") {
		int fd = (int)(intptr_t)handle, device = -1;
		char path[64], name[128] = "";
		struct stat st;
		snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
		if (readlink(path, name, sizeof name - 1) < 0 || sscanf(name, "/memfd:fake-cuda-%d", &device) != 1 || kind != CU_FD || fstat(fd, &st)) rc = INVALID;
		else *out = (cu_ptr)(uintptr_t)phys_new((size_t)st.st_size, device, fcntl(fd, F_DUPFD_CLOEXEC, 0), 1);
	}
	LEAVE;
}

static int f_reserve(cu_ptr *out, size_t n, size_t align, cu_ptr want, unsigned long long flags) {
	CALL("cuMemAddressReserve") {
		(void)align, (void)want;
		void *at = MAP_FAILED;
		if (n && n % GRAIN == 0 && !flags) at = mmap(NULL, n, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
		rc = at == MAP_FAILED ? INVALID : OK;
		if (!rc) *out = (cu_ptr)(uintptr_t)at, fake_cuda.reserved++;
	}
	LEAVE;
}

static int f_unreserve(cu_ptr at, size_t n) {
	CALL("cuMemAddressFree") {
		for (struct range *r = ranges; r; r = r->next)
			if (r->at >= at && r->at < at + n) rc = INVALID;
		if (!rc) munmap((void *)(uintptr_t)at, n), fake_cuda.reserved--;
	}
	LEAVE;
}

static int f_map(cu_ptr at, size_t n, size_t off, cu_ptr h, unsigned long long flags) {
	CALL("cuMemMap") {
		struct phys *p = (struct phys *)(uintptr_t)h;
		rc = off || flags || n != p->size ? INVALID : OK;
		if (!rc && mmap((void *)(uintptr_t)at, n, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, p->fd, 0) == MAP_FAILED) rc = INVALID;
		if (!rc) {
			add((uintptr_t)at, n, MAPPED, p->device, -1)->phys = p;
			p->refs++;
			fake_cuda.maps++;
		}
	}
	LEAVE;
}

static int f_unmap(cu_ptr at, size_t n) {
	CALL("cuMemUnmap") {
		struct range **p = find((uintptr_t)at, MAPPED);
		if (!p || (*p)->size != n) rc = INVALID;
		else {
			mmap((void *)(uintptr_t)at, n, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0);
			phys_drop((*p)->phys);
			drop(p);
			fake_cuda.maps--;
		}
	}
	LEAVE;
}

static int f_access(cu_ptr at, size_t n, const cu_access *list, size_t k) {
	CALL("cuMemSetAccess") {
		struct range *r;
		rc = touch((uintptr_t)at, n, &r) ? INVALID : OK;
		for (r = ranges; !rc && r; r = r->next)
			for (size_t i = 0; r->kind == MAPPED && r->at >= at && r->at < at + n && i < k; i++) r->access |= list[i].flags == CU_READ_WRITE ? 1 << list[i].at.id : 0;
	}
	LEAVE;
}

struct entry memory_table[] = {
	{"cuInit", 2000, f_init}, {"cuDriverGetVersion", 2020, f_version}, {"cuGetErrorName", 6000, f_name}, {"cuGetErrorString", 6000, f_text},
	{"cuDeviceGetCount", 2000, f_count}, {"cuDeviceGet", 2000, f_device}, {"cuDeviceGetName", 2000, f_device_name}, {"cuDeviceGetUuid", 11040, f_uuid},
	{"cuDeviceGetAttribute", 2000, f_attribute}, {"cuDeviceCanAccessPeer", 4000, f_reaches}, {"cuDevicePrimaryCtxRetain", 7000, f_retain},
	{"cuDevicePrimaryCtxRelease", 11000, f_release}, {"cuCtxSetCurrent", 4000, f_current}, {"cuCtxEnablePeerAccess", 4000, f_enable},
	{"cuMemAlloc", 3020, f_alloc}, {"cuMemFree", 3020, f_free}, {"cuMemcpyHtoD", 3020, f_put}, {"cuMemcpyDtoH", 3020, f_get},
	{"cuMemHostRegister", 6050, f_pin}, {"cuMemHostUnregister", 4000, f_unpin}, {"cuPointerGetAttribute", 4000, f_pointer},
	{"cuMemGetAddressRange", 3020, f_range}, {"cuIpcGetMemHandle", 4010, f_ipc_get}, {"cuIpcOpenMemHandle", 11000, f_ipc_open},
	{"cuIpcCloseMemHandle", 4010, f_ipc_close}, {"cuMemGetAllocationGranularity", 10020, f_grain}, {"cuMemCreate", 10020, f_create},
	{"cuMemRelease", 10020, f_phys_release}, {"cuMemRetainAllocationHandle", 11000, f_phys_retain},
	{"cuMemExportToShareableHandle", 10020, f_export}, {"cuMemImportFromShareableHandle", 10020, f_import},
	{"cuMemAddressReserve", 10020, f_reserve}, {"cuMemAddressFree", 10020, f_unreserve}, {"cuMemMap", 10020, f_map},
	{"cuMemUnmap", 10020, f_unmap}, {"cuMemSetAccess", 10020, f_access}, {NULL, 0, NULL},
};
