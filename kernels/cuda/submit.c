// Programs of copies: how they are put on streams, and how their end is seen.
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "api.h"
#include "shim.h"

#define P(x) ((void *)(uintptr_t)(x))
#define N(x) ((uint64_t)(uintptr_t)(x))
#define IN(ctx) \
	do { \
		int rc_ = a->cuCtxSetCurrent(P(ctx)); \
		if (rc_) return rc_; \
	} while (0)

int32_t cuda_lane_make(const struct cuda_api *a, uint64_t ctx, int32_t n, struct cuda_lane *l) {
	IN(ctx);
	memset(l, 0, sizeof *l);
	if (n < 1 || n > CUDA_STREAMS) return CU_INVALID_VALUE;
	int least = 0, most = 0;
	int rc = a->cuCtxGetStreamPriorityRange(&least, &most);
	for (int i = 0; !rc && i < n; i++) {
		void *s = NULL, *e = NULL;
		rc = a->cuStreamCreateWithPriority(&s, 1, most); // waits for no other stream
		if (rc) break;
		rc = a->cuEventCreate(&e, 2); // without time
		if (rc) {
			a->cuStreamDestroy(s);
			break;
		}
		l->streams[i] = N(s);
		l->events[i] = N(e);
		l->n = i + 1;
	}
	if (rc) cuda_lane_free(a, ctx, l);
	return rc;
}

int32_t cuda_lane_free(const struct cuda_api *a, uint64_t ctx, struct cuda_lane *l) {
	IN(ctx);
	int first = 0;
	for (int i = 0; i < l->n; i++) {
		int rc = a->cuEventDestroy(P(l->events[i]));
		if (rc && !first) first = rc;
		rc = a->cuStreamDestroy(P(l->streams[i]));
		if (rc && !first) first = rc;
	}
	l->n = 0;
	return first;
}

static void params(const struct cuda_op *o, cu_copy3d *c) {
	memset(c, 0, sizeof *c);
	c->src_type = c->dst_type = CU_UNIFIED;
	c->src = o->src;
	c->dst = o->dst;
	c->src_pitch = o->src_pitch;
	c->dst_pitch = o->dst_pitch;
	c->src_height = o->src_rows;
	c->dst_height = o->dst_rows;
	c->width = o->width;
	c->height = o->height;
	c->depth = o->depth;
	if (o->kind == CUDA_FROM_HOST) {
		c->src_type = CU_HOST;
		c->src_host = P(o->src);
		c->src = 0;
	} else if (o->kind == CUDA_TO_HOST) {
		c->dst_type = CU_HOST;
		c->dst_host = P(o->dst);
		c->dst = 0;
	}
}

static int one(const struct cuda_api *a, const struct cuda_op *o, void *stream) {
	int flat = o->height == 1 && o->depth == 1;
	if (o->kind != CUDA_ZERO) {
		if (flat && o->kind == CUDA_COPY) return a->cuMemcpyAsync(o->dst, o->src, o->width, stream);
		cu_copy3d c;
		params(o, &c);
		return a->cuMemcpy3DAsync(&c, stream);
	}
	if (flat) return a->cuMemsetD8Async(o->dst, 0, o->width, stream);
	for (uint64_t z = 0; z < o->depth; z++) {
		uint64_t at = o->dst + z * o->dst_rows * o->dst_pitch;
		int rc = a->cuMemsetD2D8Async(at, o->dst_pitch, 0, o->width, o->height, stream);
		if (rc) return rc;
	}
	return 0;
}

// batch copies n flat ops in one call, in no order.
static int batch(const struct cuda_api *a, const struct cuda_op *ops, size_t n, void *stream) {
	cu_ptr *dst = malloc(n * (2 * sizeof *dst + sizeof(size_t)));
	if (!dst) return 2; // out of memory
	cu_ptr *src = dst + n;
	size_t *size = (size_t *)(src + n);
	for (size_t i = 0; i < n; i++) {
		dst[i] = ops[i].dst;
		src[i] = ops[i].src;
		size[i] = ops[i].width;
	}
	cu_batch_attr at;
	memset(&at, 0, sizeof at);
	at.order = 1; // sources are read in the stream's order: other GPUs' memory needs it
	at.flags = 1; // prefer copy engines, which leave the engine's kernels alone
	size_t from = 0, bad = 0;
	int rc = a->batch13 ? a->batch13(dst, src, size, n, &at, &from, 1, stream)
	                    : a->batch12(dst, src, size, n, &at, &from, 1, &bad, stream);
	free(dst);
	return rc;
}

static int ops(const struct cuda_api *a, struct cuda_lane *l, const struct cuda_program *p, uint32_t *started) {
	const struct cuda_op *o = p->ops, *end = p->ops + p->n;
	int rc = 0;
	if (p->batched > 0) {
		*started |= 1;
		rc = batch(a, o, (size_t)p->batched, P(l->streams[0]));
		o += p->batched;
	}
	for (; !rc && o < end; o++) {
		*started |= 1u << o->stream;
		rc = one(a, o, P(l->streams[o->stream]));
	}
	return rc;
}

int32_t cuda_submit(const struct cuda_api *a, uint64_t ctx, struct cuda_lane *l, const struct cuda_program *p, uint32_t *started) {
	*started = 0;
	IN(ctx);
	int rc = ops(a, l, p, started);
	for (int i = 0; i < l->n; i++) { // also after a failure: what began has to be seen to end
		if (!(*started >> i & 1)) continue;
		int e = a->cuEventRecord(P(l->events[i]), P(l->streams[i]));
		if (e) {
			l->lost = 1;
			if (!rc) rc = e;
		}
	}
	return rc;
}

static int look(const struct cuda_api *a, struct cuda_lane *l, uint32_t *open) {
	for (int i = 0; i < l->n; i++) {
		if (!(*open >> i & 1)) continue;
		int rc = a->cuEventQuery(P(l->events[i]));
		if (rc == CU_NOT_READY) return 0;
		if (rc) return rc;
		*open &= ~(1u << i);
	}
	return 0;
}

static int64_t nanos(void) {
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

enum { CLOCK_EVERY = 16 }; // looks: they take about a microsecond each, and the clock delays them

int32_t cuda_poll(const struct cuda_api *a, uint64_t ctx, struct cuda_lane *l, uint32_t *open, int64_t spin) {
	IN(ctx);
	int64_t until = spin > 0 ? nanos() + spin : 0;
	for (unsigned n = 1;; n++) {
		int rc = look(a, l, open);
		if (rc || !*open || spin <= 0) return rc;
		if (n % CLOCK_EVERY == 0 && nanos() >= until) return 0;
	}
}
