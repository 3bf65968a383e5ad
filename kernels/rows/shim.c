#include "shim.h"

#include <stddef.h>
#include <string.h>

#include "convert.h"

enum {
	LINE = 64,
	PAGE = 4096,
	/* Rows that lie apart defeat the hardware prefetcher, so a row this many bytes
	 * of copying ahead is fetched by hand. 2 to 8 KiB measured alike. */
	AHEAD = 4096,
	/* Shorter rows that are not whole lines cost more in partial lines than
	 * bypassing the cache wins. */
	MIN_RAGGED = 512,
};

#define ROWS_OF(SIZE)                                                                   \
	case SIZE:                                                                      \
		for (int64_t i = 0; i < n; i++, d += ds, s += ss)                       \
			memcpy(d, s, SIZE);                                             \
		return;

/* Through the cache. Short runs get a copy of constant size, which compiles to moves. */
static void rows_cached(char *d, const char *s, int64_t n, int64_t run, int64_t ds, int64_t ss)
{
	switch (run) {
		ROWS_OF(1)
		ROWS_OF(2)
		ROWS_OF(4)
		ROWS_OF(8)
		ROWS_OF(16)
		ROWS_OF(32)
		ROWS_OF(64)
	}
	for (int64_t i = 0; i < n; i++, d += ds, s += ss)
		memcpy(d, s, run);
}

#if defined(__x86_64__)
#include <immintrin.h>

/* Rows of whole, aligned lines, at most a page each, one after the other. Several
 * interleaved streams, as glibc's large memcpy has, gain 5 % on an Intel server core
 * and cost 40 % on an AMD one. Prefetching past the end of the source is harmless. */
#define STREAM2D(NAME, TARGET, MOVE)                                                    \
	__attribute__((target(TARGET))) static void NAME(char *d, const char *s, int64_t n, int64_t run, \
							 int64_t ds, int64_t ss)        \
	{                                                                               \
		int64_t ahead = (run < AHEAD ? AHEAD / run : 1) * ss;                   \
		for (int64_t i = 0; i < n; i++, d += ds, s += ss)                       \
			for (int64_t o = 0; o < run; o += LINE) {                       \
				_mm_prefetch((const char *)((uintptr_t)s + o + ahead), _MM_HINT_T0); \
				MOVE(d + o, s + o);                                     \
			}                                                               \
	}

/* A single row of run bytes at any address: whole lines stream, both ends are copied.
 * What streams is rows again: of a page, then of a line. */
#define RAGGED(NAME, STREAM)                                                            \
	static void NAME(char *d, const char *s, int64_t run)                           \
	{                                                                               \
		int64_t head = -(int64_t)(uintptr_t)d & (LINE - 1);                     \
		if (head > run)                                                         \
			head = run;                                                     \
		memcpy(d, s, head);                                                     \
		d += head, s += head, run -= head;                                      \
		int64_t pages = run / PAGE;                                             \
		STREAM(d, s, pages, PAGE, PAGE, PAGE);                                  \
		d += pages * PAGE, s += pages * PAGE, run -= pages * PAGE;              \
		int64_t lines = run / LINE;                                             \
		STREAM(d, s, lines, LINE, LINE, LINE);                                  \
		memcpy(d + lines * LINE, s + lines * LINE, run - lines * LINE);         \
	}

/* Chooses by shape. */
#define SHAPE(NAME, STREAM, RAGGEDROW)                                                  \
	static void NAME(char *d, const char *s, int64_t n, int64_t run, int64_t ds, int64_t ss) \
	{                                                                               \
		int whole = (((uintptr_t)d | (uintptr_t)ds | (uintptr_t)run) & (LINE - 1)) == 0; \
		if (whole && run <= PAGE) {                                             \
			STREAM(d, s, n, run, ds, ss);                                   \
			return;                                                         \
		}                                                                       \
		if (run < MIN_RAGGED) {                                                 \
			rows_cached(d, s, n, run, ds, ss);                              \
			return;                                                         \
		}                                                                       \
		for (int64_t i = 0; i < n; i++, d += ds, s += ss)                       \
			RAGGEDROW(d, s, run);                                           \
	}

#define MOVE_AVX2(D, S)                                                                 \
	do {                                                                            \
		__m256i a_ = _mm256_loadu_si256((const __m256i *)(S));                  \
		__m256i b_ = _mm256_loadu_si256((const __m256i *)(S) + 1);              \
		_mm256_stream_si256((__m256i *)(D), a_);                                \
		_mm256_stream_si256((__m256i *)(D) + 1, b_);                            \
	} while (0)
#define MOVE_AVX512(D, S) _mm512_stream_si512((void *)(D), _mm512_loadu_si512(S))

STREAM2D(stream_avx2, "avx2", MOVE_AVX2)
RAGGED(ragged_avx2, stream_avx2)
SHAPE(rows_avx2, stream_avx2, ragged_avx2)

STREAM2D(stream_avx512, "avx512f", MOVE_AVX512)
RAGGED(ragged_avx512, stream_avx512)
SHAPE(rows_avx512, stream_avx512, ragged_avx512)

int32_t rows_best(void)
{
	__builtin_cpu_init();
	if (__builtin_cpu_supports("avx512f"))
		return ROWS_AVX512;
	return __builtin_cpu_supports("avx2") ? ROWS_AVX2 : ROWS_PLAIN;
}

static void fence(void) { _mm_sfence(); }
static const copy2d_fn streaming[] = {rows_cached, rows_avx2, rows_avx512};

#else

int32_t rows_best(void) { return ROWS_PLAIN; }

static void fence(void) {}
static const copy2d_fn streaming[] = {rows_cached, rows_cached, rows_cached};

#endif

static void rows_zero(char *d, const char *s, int64_t n, int64_t run, int64_t ds, int64_t ss)
{
	(void)s, (void)ss;
	for (int64_t i = 0; i < n; i++, d += ds)
		memset(d, 0, run);
}

/* Walks the outer loops like an odometer and hands the inner two to f. */
static void walk(const struct rows_op *op, copy2d_fn f)
{
	char *d = (char *)(uintptr_t)op->dst;
	const char *s = (const char *)(uintptr_t)op->src;
	if (op->rank == 0) {
		f(d, s, 1, op->run, 0, 0);
		return;
	}
	const struct rows_dim *in = &op->dim[op->rank - 1];
	int64_t at[ROWS_MAX_DIMS] = {0};
	for (;;) {
		f(d, s, in->n, op->run, in->dst, in->src);
		int k = op->rank - 2;
		for (; k >= 0; k--) {
			const struct rows_dim *o = &op->dim[k];
			d += o->dst, s += o->src;
			if (++at[k] < o->n)
				break;
			d -= o->n * o->dst, s -= o->n * o->src;
			at[k] = 0;
		}
		if (k < 0)
			return;
	}
}

/* What does the body of a kind, or NULL. Converting goes through the cache. */
static copy2d_fn body(int32_t kind, int32_t isa, int32_t stream)
{
	switch (kind) {
	case ROWS_COPY:
		return stream ? streaming[isa] : rows_cached;
	case ROWS_ZERO:
		return rows_zero;
	}
	return rows_convert(kind, isa > ROWS_PLAIN);
}

int32_t rows_exec(const struct rows_op *ops, int64_t n, int32_t isa, int32_t stream)
{
	if (isa < ROWS_PLAIN || isa > rows_best())
		return -1;
	for (int64_t i = 0; i < n; i++)
		if (ops[i].rank < 0 || ops[i].rank > ROWS_MAX_DIMS || !body(ops[i].kind, isa, stream))
			return -1;
	for (int64_t i = 0; i < n; i++)
		walk(&ops[i], body(ops[i].kind, isa, stream));
	if (stream)
		fence();
	return 0;
}

void rows_memcpy(uint64_t dst, uint64_t src, int64_t n)
{
	memcpy((void *)(uintptr_t)dst, (const void *)(uintptr_t)src, n);
}
