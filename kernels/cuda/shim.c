#include "shim.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api.h"

typedef int (*lookup_fn)(const char *, void **, int, uint64_t, int *);

static void *find(lookup_fn f, const char *name, int version) {
	void *p = NULL;
	int status = 0;
	return f(name, &p, version, 0, &status) == 0 && status == 0 ? p : NULL;
}

int32_t cuda_load(uint64_t lookup, int32_t oldest, struct cuda_api **api, int32_t *version, char *missing, size_t size) {
	lookup_fn f = (lookup_fn)(uintptr_t)lookup;
	struct cuda_api *a = calloc(1, sizeof *a);
	if (!a) return CUDA_NOMEM;
	int rc = 0;
	int (*get)(int *);
	*(void **)&get = find(f, "cuDriverGetVersion", 2020);
	if (get) rc = get(version);
	if (!rc && get && *version < oldest) rc = CUDA_OLD;
#define X(name, v, args) \
	if (!rc && !(*(void **)&a->name = find(f, #name, v))) { \
		snprintf(missing, size, "%s", #name); \
		rc = CUDA_MISSING; \
	}
	CUDA_REQUIRED(X)
#undef X
	if (!rc) {
		if (*version >= 13000) *(void **)&a->batch13 = find(f, "cuMemcpyBatchAsync", 13000);
		if (!a->batch13) *(void **)&a->batch12 = find(f, "cuMemcpyBatchAsync", 12080);
		rc = a->cuInit(0);
	}
	*api = a; // also after a failure, which it explains
	return rc;
}

int32_t cuda_batches(const struct cuda_api *a) { return a->batch12 || a->batch13; }

void cuda_error(const struct cuda_api *a, int32_t code, char *name, char *text, size_t size) {
	const char *s = NULL;
	snprintf(name, size, "%s", a->cuGetErrorName && !a->cuGetErrorName(code, &s) && s ? s : "unknown");
	s = NULL;
	snprintf(text, size, "%s", a->cuGetErrorString && !a->cuGetErrorString(code, &s) && s ? s : "the driver has no text for it");
}

int32_t cuda_count(const struct cuda_api *a, int32_t *n) { return a->cuDeviceGetCount(n); }

int32_t cuda_describe(const struct cuda_api *a, int32_t ordinal, struct cuda_device *d) {
	int dev;
	memset(d, 0, sizeof *d);
	d->ordinal = ordinal;
	int rc = a->cuDeviceGet(&dev, ordinal);
	if (!rc) rc = a->cuDeviceGetName(d->name, sizeof d->name - 1, dev);
	if (!rc) rc = a->cuDeviceGetUuid(d->uuid, dev);
	if (!rc) rc = a->cuDeviceGetAttribute(&d->multiprocessors, CU_DEVICE_SMS, dev);
	if (!rc) rc = a->cuDeviceGetAttribute(&d->copy_engines, CU_DEVICE_COPY_ENGINES, dev);
	return rc;
}

int32_t cuda_reaches(const struct cuda_api *a, int32_t ordinal, int32_t peer, int32_t *yes) {
	int d, p;
	int rc = a->cuDeviceGet(&d, ordinal);
	if (!rc) rc = a->cuDeviceGet(&p, peer);
	if (!rc && d == p) return *yes = 1, 0;
	return rc ? rc : a->cuDeviceCanAccessPeer(yes, d, p);
}

int32_t cuda_retain(const struct cuda_api *a, int32_t ordinal, uint64_t *ctx) {
	int dev;
	void *c = NULL;
	int rc = a->cuDeviceGet(&dev, ordinal);
	if (!rc) rc = a->cuDevicePrimaryCtxRetain(&c, dev);
	*ctx = (uint64_t)(uintptr_t)c;
	return rc;
}

int32_t cuda_release(const struct cuda_api *a, int32_t ordinal) {
	int dev;
	int rc = a->cuDeviceGet(&dev, ordinal);
	return rc ? rc : a->cuDevicePrimaryCtxRelease(dev);
}

#define P(x) ((void *)(uintptr_t)(x))
#define IN(ctx) \
	do { \
		int rc_ = a->cuCtxSetCurrent(P(ctx)); \
		if (rc_) return rc_; \
	} while (0)

int32_t cuda_enable_peer(const struct cuda_api *a, uint64_t ctx, uint64_t peer) {
	IN(ctx);
	int rc = a->cuCtxEnablePeerAccess(P(peer), 0);
	return rc == 704 ? 0 : rc; // it was enabled already
}

int32_t cuda_alloc(const struct cuda_api *a, uint64_t ctx, int64_t n, uint64_t *at) {
	IN(ctx);
	cu_ptr p = 0;
	int rc = a->cuMemAlloc(&p, (size_t)n);
	*at = p;
	return rc;
}

int32_t cuda_free(const struct cuda_api *a, uint64_t ctx, uint64_t at) {
	IN(ctx);
	return a->cuMemFree(at);
}

int32_t cuda_put(const struct cuda_api *a, uint64_t ctx, uint64_t at, const void *from, int64_t n) {
	IN(ctx);
	return a->cuMemcpyHtoD(at, from, (size_t)n);
}

int32_t cuda_get(const struct cuda_api *a, uint64_t ctx, void *to, uint64_t at, int64_t n) {
	IN(ctx);
	return a->cuMemcpyDtoH(to, at, (size_t)n);
}

int32_t cuda_pin(const struct cuda_api *a, uint64_t ctx, uint64_t at, int64_t n, int32_t read_only) {
	IN(ctx);
	return a->cuMemHostRegister(P(at), (size_t)n, read_only ? 3 | 8 : 3); // of all contexts, and mapped
}

int32_t cuda_unpin(const struct cuda_api *a, uint64_t ctx, uint64_t at) {
	IN(ctx);
	return a->cuMemHostUnregister(P(at));
}

int32_t cuda_point(const struct cuda_api *a, uint64_t ctx, uint64_t at, struct cuda_pointer *p) {
	IN(ctx);
	memset(p, 0, sizeof *p);
	int legacy = 0, ordinal = 0;
	cu_ptr base = 0;
	size_t size = 0;
	int rc = a->cuMemGetAddressRange(&base, &size, at);
	if (rc) return rc;
	// What the driver does not say of a pointer is no.
	if (a->cuPointerGetAttribute(&ordinal, CU_POINTER_ORDINAL, at)) ordinal = -1;
	if (a->cuPointerGetAttribute(&legacy, CU_POINTER_LEGACY, at)) legacy = 0;
	if (a->cuPointerGetAttribute(&p->kinds, CU_POINTER_KINDS, at)) p->kinds = 0;
	if (a->cuPointerGetAttribute(&p->pool, CU_POINTER_POOL, at)) p->pool = 0;
	p->base = base;
	p->size = size;
	p->ordinal = ordinal;
	p->legacy = legacy;
	return 0;
}

int32_t cuda_ipc_get(const struct cuda_api *a, uint64_t ctx, uint64_t at, unsigned char handle[64]) {
	IN(ctx);
	cu_ipc h;
	int rc = a->cuIpcGetMemHandle(&h, at);
	if (!rc) memcpy(handle, h.b, sizeof h.b);
	return rc;
}

int32_t cuda_ipc_open(const struct cuda_api *a, uint64_t ctx, const unsigned char handle[64], uint64_t *at) {
	IN(ctx);
	cu_ipc h;
	cu_ptr p = 0;
	memcpy(h.b, handle, sizeof h.b);
	int rc = a->cuIpcOpenMemHandle(&p, h, 1); // the one flag there is: peer access as needed
	*at = p;
	return rc;
}

int32_t cuda_ipc_close(const struct cuda_api *a, uint64_t ctx, uint64_t at) {
	IN(ctx);
	return a->cuIpcCloseMemHandle(at);
}

static cu_prop shared(int32_t ordinal) {
	cu_prop p;
	memset(&p, 0, sizeof p);
	p.type = CU_PINNED;
	p.handles = CU_FD;
	p.at.type = CU_ON_DEVICE;
	p.at.id = ordinal;
	return p;
}

int32_t cuda_vmm_grain(const struct cuda_api *a, uint64_t ctx, int32_t ordinal, int64_t *grain) {
	IN(ctx);
	cu_prop p = shared(ordinal);
	size_t g = 0;
	int rc = a->cuMemGetAllocationGranularity(&g, &p, 0);
	*grain = (int64_t)g;
	return rc;
}

// from gives the i-th allocation of a mapping.
typedef int (*vmm_from)(const struct cuda_api *a, int32_t ordinal, const int32_t *fds, int64_t size, int32_t i, cu_ptr *h);

static int vmm_create(const struct cuda_api *a, int32_t ordinal, const int32_t *fds, int64_t size, int32_t i, cu_ptr *h) {
	(void)fds, (void)i;
	cu_prop p = shared(ordinal);
	return a->cuMemCreate(h, (size_t)size, &p, 0);
}

static int vmm_take(const struct cuda_api *a, int32_t ordinal, const int32_t *fds, int64_t size, int32_t i, cu_ptr *h) {
	(void)ordinal, (void)size;
	return a->cuMemImportFromShareableHandle(h, P(fds[i]), CU_FD);
}

static size_t sum(const int64_t *sizes, int32_t n) {
	size_t all = 0;
	for (int32_t i = 0; i < n; i++) all += (size_t)sizes[i];
	return all;
}

static void vmm_undo(const struct cuda_api *a, cu_ptr at, const int64_t *sizes, int32_t mapped, size_t all) {
	cu_ptr p = at;
	for (int32_t i = 0; i < mapped; i++) {
		a->cuMemUnmap(p, (size_t)sizes[i]);
		p += (cu_ptr)sizes[i];
	}
	a->cuMemAddressFree(at, all);
}

static int vmm_map(const struct cuda_api *a, int32_t ordinal, vmm_from from, const int32_t *fds, const int64_t *sizes, int32_t n, uint64_t *out) {
	size_t all = sum(sizes, n);
	cu_ptr at = 0;
	int rc = a->cuMemAddressReserve(&at, all, 0, 0, 0);
	if (rc) return rc;
	cu_ptr p = at;
	int32_t i = 0;
	for (; i < n; i++) {
		cu_ptr h = 0;
		rc = from(a, ordinal, fds, sizes[i], i, &h);
		if (rc) break;
		rc = a->cuMemMap(p, (size_t)sizes[i], 0, h, 0);
		a->cuMemRelease(h); // the mapping keeps it
		if (rc) break;
		p += (cu_ptr)sizes[i];
	}
	if (!rc) {
		cu_access access = {{CU_ON_DEVICE, ordinal}, CU_READ_WRITE};
		rc = a->cuMemSetAccess(at, all, &access, 1);
	}
	if (rc) vmm_undo(a, at, sizes, i, all);
	*out = at;
	return rc;
}

int32_t cuda_vmm_make(const struct cuda_api *a, uint64_t ctx, int32_t ordinal, const int64_t *sizes, int32_t n, uint64_t *at) {
	IN(ctx);
	return vmm_map(a, ordinal, vmm_create, NULL, sizes, n, at);
}

int32_t cuda_vmm_import(const struct cuda_api *a, uint64_t ctx, int32_t ordinal, const int32_t *fds, const int64_t *sizes, int32_t n, uint64_t *at) {
	IN(ctx);
	return vmm_map(a, ordinal, vmm_take, fds, sizes, n, at);
}

int32_t cuda_vmm_export(const struct cuda_api *a, uint64_t ctx, uint64_t at, int32_t *fd) {
	IN(ctx);
	cu_ptr h = 0;
	int rc = a->cuMemRetainAllocationHandle(&h, P(at));
	if (rc) return rc;
	int got = -1;
	rc = a->cuMemExportToShareableHandle(&got, h, CU_FD, 0);
	a->cuMemRelease(h);
	*fd = got;
	return rc;
}

int32_t cuda_vmm_free(const struct cuda_api *a, uint64_t ctx, uint64_t at, const int64_t *sizes, int32_t n) {
	IN(ctx);
	cu_ptr p = at;
	int first = 0;
	for (int32_t i = 0; i < n; i++) {
		int rc = a->cuMemUnmap(p, (size_t)sizes[i]);
		if (rc && !first) first = rc;
		p += (cu_ptr)sizes[i];
	}
	int rc = a->cuMemAddressFree(at, sum(sizes, n));
	return first ? first : rc;
}
