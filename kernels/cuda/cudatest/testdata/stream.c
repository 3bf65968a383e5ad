// Streams, events and copies of the fake driver, and its entry.
#include "fake.h"

struct event { struct context *ctx; int64_t asked, seen; };
enum work { COPY, SET, MARK };
struct item {
	enum work work;
	cu_copy3d c;
	int unchecked; // bit 0: the source, 1: the destination
	void *staged;  // what was taken of pageable memory
	struct event *event;
	int64_t mark;
	struct item *next;
};
struct stream { struct context *ctx; struct item *head, **tail; struct stream *next; };

static struct stream *streams;
static uint32_t luck = 1;

static struct item *push(struct stream *s, enum work w) {
	struct item *i = calloc(1, sizeof *i);
	i->work = w;
	*s->tail = i;
	s->tail = &i->next;
	return i;
}

// span is how far one side of a copy reaches.
static size_t span(const cu_copy3d *c, size_t pitch, size_t rows) {
	return ((c->depth - 1) * rows + c->height - 1) * pitch + c->width;
}

static int overlaps(const cu_copy3d *c, uintptr_t at, size_t n) {
	return (c->src && c->src < at + n && at < c->src + span(c, c->src_pitch, c->src_height)) || (c->dst < at + n && at < c->dst + span(c, c->dst_pitch, c->dst_height));
}

int pending(uintptr_t at, size_t n) {
	for (struct stream *s = streams; s; s = s->next)
		for (struct item *i = s->head; i; i = i->next)
			if (i->work != MARK && overlaps(&i->c, at, n)) return 1;
	return 0;
}

// side checks one side of a copy by a context's GPU.
static int side(struct context *x, uintptr_t at, size_t n) {
	struct range *r;
	if (touch(at, n, &r)) return ILLEGAL;
	if (r->kind == MAPPED && !(r->access >> x->device & 1)) return ILLEGAL;
	if (r->kind == IPC && r->opened != x) fake_cuda.slow++;
	return OK;
}

static int check(const cu_copy3d *c, int flat) {
	if (!c->width || !c->height || !c->depth) return INVALID;
	if (c->src_x | c->src_y | c->src_z | c->dst_x | c->dst_y | c->dst_z) return INVALID;
	if (!flat && (c->src_pitch > MAX_PITCH || c->dst_pitch > MAX_PITCH || c->src_pitch < c->width || c->dst_pitch < c->width)) return INVALID;
	if (c->depth > 1 && (c->src_height < c->height || c->dst_height < c->height)) return INVALID;
	return OK;
}

// reach checks the memory of one side of a copy and finds whether it is host memory that is not pinned.
static int reach(int type, uintptr_t at, size_t n, int *pageable) {
	struct range *r;
	*pageable = 0;
	if (type == CU_UNIFIED) return touch(at, n, &r) ? INVALID : OK;
	int pinned = 0;
	if (type != CU_HOST || host(at, n, &pinned)) return INVALID;
	*pageable = !pinned;
	if (pinned) fake_cuda.pinned++;
	else fake_cuda.pageable++;
	return OK;
}

static int run(struct context *x, const cu_copy3d *c, int unchecked) {
	int rc = fault("exec");
	if (!rc && c->src && !(unchecked & 1)) rc = side(x, (uintptr_t)c->src, span(c, c->src_pitch, c->src_height));
	if (!rc && !(unchecked & 2)) rc = side(x, (uintptr_t)c->dst, span(c, c->dst_pitch, c->dst_height));
	if (rc == ILLEGAL) fake_cuda.violations++;
	if (rc) return x->sticky = rc;
	for (size_t z = 0; z < c->depth; z++)
		for (size_t y = 0; y < c->height; y++) {
			char *to = (char *)(uintptr_t)c->dst + (z * c->dst_height + y) * c->dst_pitch;
			if (c->src) memcpy(to, (char *)(uintptr_t)c->src + (z * c->src_height + y) * c->src_pitch, c->width);
			else memset(to, 0, c->width);
			fake_cuda.bytes += (int64_t)c->width;
		}
	return OK;
}

static void step(struct stream *s) {
	struct item *i = s->head;
	if (!i || s->ctx->sticky) return;
	s->head = i->next;
	if (!s->head) s->tail = &s->head;
	if (i->work == MARK) i->event->seen = i->mark;
	else run(s->ctx, &i->c, i->unchecked);
	free(i->staged);
	free(i);
}

// drain ends what a stream has: a copy of memory that is not pinned waits for it.
static void drain(struct stream *s) {
	while (s->head && !s->ctx->sticky)
		if (!__atomic_load_n(&fake_cuda.hold, __ATOMIC_SEQ_CST)) step(s);
}

// progress runs a few things of every stream; which stream goes first changes.
static void progress(void) {
	if (__atomic_load_n(&fake_cuda.hold, __ATOMIC_SEQ_CST)) return;
	for (int k = 0; k < 64; k++)
		for (struct stream *s = streams; s; s = s->next) {
			luck = luck * 1664525 + 1013904223;
			if (luck >> 30) step(s);
		}
}

static int f_priorities(int *least, int *most) {
	CALL("cuCtxGetStreamPriorityRange") { *least = 0, *most = -5; }
	LEAVE;
}

static int f_stream(void **out, unsigned flags, int priority) {
	CALL("cuStreamCreateWithPriority") {
		struct stream *s = calloc(1, sizeof *s);
		rc = flags == 1 && priority == -5 ? OK : INVALID;
		s->ctx = current, s->tail = &s->head, s->next = streams;
		*out = streams = s;
		fake_cuda.streams++;
	}
	LEAVE;
}

static int f_stream_destroy(void *x) {
	CALL("cuStreamDestroy") {
		struct stream **p = &streams;
		while (*p && *p != x) p = &(*p)->next;
		if (!*p) rc = BAD_HANDLE;
		else {
			struct stream *s = *p;
			if (s->head) fake_cuda.violations++;
			*p = s->next;
			free(s);
			fake_cuda.streams--;
		}
	}
	LEAVE;
}

static int f_event(void **out, unsigned flags) {
	CALL("cuEventCreate") {
		struct event *e = calloc(1, sizeof *e);
		e->ctx = current, *out = e;
		rc = flags == 2 ? OK : INVALID;
		fake_cuda.events++;
	}
	LEAVE;
}

static int f_record(void *event, void *stream) {
	CALL("cuEventRecord") {
		struct event *e = event;
		struct stream *s = stream;
		rc = e->ctx == current && s->ctx == current ? OK : BAD_HANDLE;
		if (!rc) {
			struct item *i = push(s, MARK);
			i->event = e;
			i->mark = ++e->asked;
		}
	}
	LEAVE;
}

static int f_query(void *event) {
	CALL("cuEventQuery") {
		struct event *e = event;
		progress();
		rc = current->sticky ? current->sticky : e->seen == e->asked ? OK : NOT_READY;
	}
	LEAVE;
}

static int f_event_destroy(void *event) {
	CALL("cuEventDestroy") {
		struct event *e = event;
		if (e->seen != e->asked) fake_cuda.violations++;
		free(e);
		fake_cuda.events--;
	}
	LEAVE;
}

static int put(void *stream, enum work w, const cu_copy3d *c, int flat) {
	struct stream *s = stream;
	if (!s) return BAD_HANDLE; // the legacy stream would wait for the engine's
	if (s->ctx != current) return BAD_CONTEXT;
	int rc = check(c, flat), from = 0, to = 0;
	cu_copy3d own = *c;
	if (c->src_type == CU_HOST) own.src = (cu_ptr)(uintptr_t)c->src_host;
	if (c->dst_type == CU_HOST) own.dst = (cu_ptr)(uintptr_t)c->dst_host;
	size_t n = span(&own, own.src_pitch, own.src_height);
	if (!rc && own.src) rc = reach(own.src_type, (uintptr_t)own.src, n, &from);
	if (!rc) rc = reach(own.dst_type, (uintptr_t)own.dst, span(&own, own.dst_pitch, own.dst_height), &to);
	if (rc) return rc;
	struct item *i = push(s, w);
	if (from) {
		i->staged = malloc(n);
		memcpy(i->staged, (void *)(uintptr_t)own.src, n);
		own.src = (cu_ptr)(uintptr_t)i->staged;
	}
	i->c = own;
	i->unchecked = from | to << 1;
	if (to) drain(s);
	return s->ctx->sticky;
}

static cu_copy3d line(cu_ptr dst, cu_ptr src, size_t n) {
	cu_copy3d c;
	memset(&c, 0, sizeof c);
	c.src_type = c.dst_type = CU_UNIFIED;
	c.dst = dst, c.src = src, c.width = n, c.height = c.depth = 1;
	return c;
}

static int f_flat(cu_ptr dst, cu_ptr src, size_t n, void *stream) {
	CALL("cuMemcpyAsync") {
		cu_copy3d c = line(dst, src, n);
		rc = put(stream, COPY, &c, 1);
		fake_cuda.flat++;
	}
	LEAVE;
}

static int f_strided(const cu_copy3d *c, void *stream) {
	CALL("cuMemcpy3DAsync") {
		rc = put(stream, COPY, c, 0);
		fake_cuda.strided++;
	}
	LEAVE;
}

static int batch(cu_ptr *dst, cu_ptr *src, size_t *n, size_t count, cu_batch_attr *at, size_t *from, size_t attrs, size_t *bad, void *stream) {
	CALL("cuMemcpyBatchAsync") {
		if (attrs != 1 || from[0] != 0 || at->order != 1 || !count) rc = INVALID;
		// In no order: from the middle outwards.
		for (size_t i = 0; i < count && !rc; i++) {
			size_t k = (i + count / 2) % count;
			cu_copy3d c = line(dst[k], src[k], n[k]);
			rc = put(stream, COPY, &c, 1);
			if (rc && bad) *bad = k;
		}
		fake_cuda.batches++;
		fake_cuda.batched += (int64_t)count;
	}
	LEAVE;
}

static int f_batch13(cu_ptr *dst, cu_ptr *src, size_t *n, size_t count, cu_batch_attr *at, size_t *from, size_t attrs, void *stream) {
	return batch(dst, src, n, count, at, from, attrs, NULL, stream);
}

static int set(cu_ptr dst, size_t pitch, size_t width, size_t height, void *stream) {
	CALL("cuMemsetD2D8Async") {
		cu_copy3d c = line(dst, 0, width);
		c.dst_pitch = c.src_pitch = pitch, c.height = height;
		rc = put(stream, SET, &c, height == 1);
		fake_cuda.sets++;
	}
	LEAVE;
}

static int f_set2(cu_ptr dst, size_t pitch, unsigned char v, size_t width, size_t height, void *stream) {
	return v ? INVALID : set(dst, pitch, width, height, stream);
}

static int f_set1(cu_ptr dst, unsigned char v, size_t n, void *stream) { return v ? INVALID : set(dst, n, n, 1, stream); }

struct entry stream_table[] = {
	{"cuCtxGetStreamPriorityRange", 5050, f_priorities}, {"cuStreamCreateWithPriority", 5050, f_stream}, {"cuStreamDestroy", 4000, f_stream_destroy},
	{"cuEventCreate", 2000, f_event}, {"cuEventRecord", 2000, f_record}, {"cuEventQuery", 2000, f_query}, {"cuEventDestroy", 4000, f_event_destroy},
	{"cuMemcpyAsync", 4000, f_flat}, {"cuMemcpy3DAsync", 3020, f_strided}, {"cuMemsetD8Async", 3020, f_set1}, {"cuMemsetD2D8Async", 3020, f_set2},
	{"cuMemcpyBatchAsync", 13000, f_batch13}, {"cuMemcpyBatchAsync", 12080, batch},
	{NULL, 0, NULL},
};

// The one function that the loader looks for. FAKE_CUDA_MISSING names one that it lacks.
int cuGetProcAddress_v2(const char *name, void **p, int want, uint64_t flags, int *status) {
	const char *missing = getenv("FAKE_CUDA_MISSING");
	*p = NULL, *status = 1;
	if (flags || (missing && !strcmp(missing, name))) return NOT_FOUND;
	struct entry *tables[] = {memory_table, stream_table};
	for (int t = 0; t < 2; t++)
		for (int i = 0; tables[t][i].name; i++) {
			if (strcmp(tables[t][i].name, name)) continue;
			*status = 2; // known, in a later form
			if (tables[t][i].since > want || tables[t][i].since > version()) continue;
			*p = tables[t][i].f, *status = 0;
			return OK;
		}
	return NOT_FOUND;
}
