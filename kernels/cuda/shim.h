// The CUDA driver behind one table of functions that is filled at run time: no header and
// no library of CUDA is needed to build. Every function makes its context current first and
// does its whole job in one call. It answers 0 or the driver's error number; addresses,
// contexts, streams and events are numbers. Nothing here aborts, prints or calls Go.
#ifndef BATON_CUDA_SHIM_H
#define BATON_CUDA_SHIM_H
#include <stddef.h>
#include <stdint.h>

struct cuda_api; // the table; lives as long as the process

// What cuda_load answers beside driver errors, which are positive.
enum { CUDA_MISSING = -1, CUDA_OLD = -2, CUDA_NOMEM = -3 };

// cuda_load fills a table through the driver's own look-up function at lookup and starts the
// driver. missing gets the name of the symbol that is not there.
int32_t cuda_load(uint64_t lookup, int32_t oldest, struct cuda_api **api, int32_t *version, char *missing, size_t size);
// cuda_batches is whether the driver copies batches.
int32_t cuda_batches(const struct cuda_api *a);
void cuda_error(const struct cuda_api *a, int32_t code, char *name, char *text, size_t size);

struct cuda_device {
	int32_t ordinal, multiprocessors, copy_engines, pad;
	unsigned char uuid[16];
	char name[96];
};
int32_t cuda_count(const struct cuda_api *a, int32_t *n);
int32_t cuda_describe(const struct cuda_api *a, int32_t ordinal, struct cuda_device *d);
int32_t cuda_reaches(const struct cuda_api *a, int32_t ordinal, int32_t peer, int32_t *yes);
int32_t cuda_retain(const struct cuda_api *a, int32_t ordinal, uint64_t *ctx);
int32_t cuda_release(const struct cuda_api *a, int32_t ordinal);
int32_t cuda_enable_peer(const struct cuda_api *a, uint64_t ctx, uint64_t peer);

int32_t cuda_alloc(const struct cuda_api *a, uint64_t ctx, int64_t n, uint64_t *at);
int32_t cuda_free(const struct cuda_api *a, uint64_t ctx, uint64_t at);
int32_t cuda_put(const struct cuda_api *a, uint64_t ctx, uint64_t at, const void *from, int64_t n);
int32_t cuda_get(const struct cuda_api *a, uint64_t ctx, void *to, uint64_t at, int64_t n);
// cuda_pin registers host memory with the driver; read_only says that it is mapped for reading alone.
int32_t cuda_pin(const struct cuda_api *a, uint64_t ctx, uint64_t at, int64_t n, int32_t read_only);
int32_t cuda_unpin(const struct cuda_api *a, uint64_t ctx, uint64_t at);

// What a pointer is. kinds are the handle types it may be exported as.
struct cuda_pointer {
	uint64_t base, size, kinds, pool;
	int32_t ordinal, legacy;
};
int32_t cuda_point(const struct cuda_api *a, uint64_t ctx, uint64_t at, struct cuda_pointer *p);

int32_t cuda_ipc_get(const struct cuda_api *a, uint64_t ctx, uint64_t at, unsigned char handle[64]);
int32_t cuda_ipc_open(const struct cuda_api *a, uint64_t ctx, const unsigned char handle[64], uint64_t *at);
int32_t cuda_ipc_close(const struct cuda_api *a, uint64_t ctx, uint64_t at);

// Memory of several physical allocations of sizes bytes, one behind the other at *at.
// cuda_vmm_make allocates them, cuda_vmm_import takes them from descriptors, which stay the
// caller's. A failure leaves nothing behind.
int32_t cuda_vmm_grain(const struct cuda_api *a, uint64_t ctx, int32_t ordinal, int64_t *grain);
int32_t cuda_vmm_make(const struct cuda_api *a, uint64_t ctx, int32_t ordinal, const int64_t *sizes, int32_t n, uint64_t *at);
int32_t cuda_vmm_import(const struct cuda_api *a, uint64_t ctx, int32_t ordinal, const int32_t *fds, const int64_t *sizes, int32_t n, uint64_t *at);
int32_t cuda_vmm_export(const struct cuda_api *a, uint64_t ctx, uint64_t at, int32_t *fd);
int32_t cuda_vmm_free(const struct cuda_api *a, uint64_t ctx, uint64_t at, const int64_t *sizes, int32_t n);

// One copy of width bytes, height rows and depth planes. Pitches are bytes from row to row,
// rows are rows from plane to plane. stream is an index. Of host memory that is not pinned the
// driver has taken, or written, every byte before the call that submits the copy returns.
enum { CUDA_COPY = 0, CUDA_ZERO = 1, CUDA_FROM_HOST = 2, CUDA_TO_HOST = 3 };
struct cuda_op {
	uint64_t dst, src;
	uint64_t width, height, depth;
	uint64_t dst_pitch, src_pitch;
	uint64_t dst_rows, src_rows;
	int32_t kind, stream;
};

// A lane is some streams, each with the event that follows what was submitted last.
enum { CUDA_STREAMS = 8 };
struct cuda_lane {
	uint64_t streams[CUDA_STREAMS], events[CUDA_STREAMS];
	int32_t n;    // streams
	int32_t lost; // a copy was started whose end nothing will tell
};
int32_t cuda_lane_make(const struct cuda_api *a, uint64_t ctx, int32_t n, struct cuda_lane *l);
int32_t cuda_lane_free(const struct cuda_api *a, uint64_t ctx, struct cuda_lane *l);

// A program: batched ops, each flat, come first and go out in one call, the rest in one each.
struct cuda_program {
	const struct cuda_op *ops;
	int64_t n, batched;
};
// cuda_submit starts p. After a failure what was started before it goes on, and started says
// which events have to be waited for: bit i for stream i.
int32_t cuda_submit(const struct cuda_api *a, uint64_t ctx, struct cuda_lane *l, const struct cuda_program *p, uint32_t *started);
// cuda_poll takes the bits of what has ended out of *open. It looks again and again for up to
// spin nanoseconds: a round through Go's scheduler wakes another thread and costs more.
int32_t cuda_poll(const struct cuda_api *a, uint64_t ctx, struct cuda_lane *l, uint32_t *open, int64_t spin);
#endif
