#ifndef BATON_ROWS_SHIM_H
#define BATON_ROWS_SHIM_H

#include <stdint.h>

enum { ROWS_MAX_DIMS = 6 };

/* Instruction sets, in rising order. */
enum { ROWS_PLAIN = 0, ROWS_AVX2 = 1, ROWS_AVX512 = 2 };

/* What the body of an op does: copies run bytes, zeroes run bytes, or converts run bytes
 * of elements of one type to another. Numbers of types are those of layout.DType. */
enum { ROWS_COPY = 0, ROWS_ZERO = 1 };
enum { ROWS_BF16 = 1, ROWS_F16 = 2, ROWS_F32 = 3 };
#define ROWS_CONVERT(FROM, TO) ((FROM) << 8 | (TO))

struct rows_dim {
	int64_t n, src, dst; /* steps; bytes per step on each side */
};

/* One copy whose bounds the caller has checked. dim[0] is the outermost loop; run is
 * bytes of the source. Layout equals plain.Op. */
struct rows_op {
	uint64_t src, dst;
	int64_t run;
	int32_t rank, kind;
	struct rows_dim dim[ROWS_MAX_DIMS];
};

/* The best instruction set of this CPU. */
int32_t rows_best(void);

/* Executes n ops. stream: bypass the cache with non-temporal stores, for copies that
 * do not fit it. isa must not exceed rows_best(). Returns 0, or -1 for a bad isa, rank or kind. */
int32_t rows_exec(const struct rows_op *ops, int64_t n, int32_t isa, int32_t stream);

/* One layer of a state whose rows lo to hi are summed, in ranges; bounds are checked.
 * Layout equals plain.SumOp, which says what a sum is. */
struct rows_sum {
	uint64_t at;
	int64_t item, row, unit, elem; /* bytes between neighbours */
	int64_t elems;
	uint64_t key;
	int64_t bias, lo, hi, range;
	int32_t units, depth, size, slot;
	int64_t out; /* of the first sum, [unit][range] */
};

/* Adds up n ops into out, which the caller has zeroed. Returns 0, or -1 for a bad isa. */
int32_t rows_sums(const struct rows_sum *ops, int64_t n, const int32_t *blocks, uint64_t *out, int32_t isa);

/* One call of the C library's memcpy: the yardstick. */
void rows_memcpy(uint64_t dst, uint64_t src, int64_t n);

#endif
