#include "shim.h"

#include <string.h>

/* As in plain/sum.go, which is the reference. */
static const uint64_t KEY_UNIT = 0xe7037ed1a0b428dbu;
static const uint64_t KEY_ROW = 0x8ebc6af09c88c6e3u;
static const uint64_t KEY_WORD = 0x9e3779b97f4a7c15u;

static inline uint64_t mix(uint64_t x)
{
	x = (x ^ x >> 32) * 0xd1b54a32d192ed03u;
	x = (x ^ x >> 29) * 0xaef17502108ef2d9u;
	return x ^ x >> 32;
}

static inline uint64_t word(uint64_t x, uint64_t key)
{
	return (uint64_t)((uint32_t)x + (uint32_t)key) * ((uint32_t)(x >> 32) + (uint32_t)(key >> 32));
}

/* The number of n bytes that lie together, the i-th word of a row and those behind it. */
static inline uint64_t tail(const char *p, int64_t n, int64_t i)
{
	uint64_t sum = 0, key = (uint64_t)(i + 1) * KEY_WORD;
	for (; n >= 8; n -= 8, p += 8, key += KEY_WORD) {
		uint64_t x;
		memcpy(&x, p, 8);
		sum += word(x, key);
	}
	if (n > 0) {
		uint64_t x = 0;
		memcpy(&x, p, n);
		sum += word(x, key);
	}
	return sum;
}

typedef uint64_t (*dense_fn)(const char *p, int64_t n);

static uint64_t dense_plain(const char *p, int64_t n) { return tail(p, n, 0); }

#if defined(__x86_64__)
#include <immintrin.h>

/* Lanes are words: the products of their halves need no shuffle. Two sums, since a
 * product takes longer than a load. */
__attribute__((target("avx2"))) static uint64_t dense_avx2(const char *p, int64_t n)
{
	const __m256i step = _mm256_set1_epi64x((int64_t)(4 * KEY_WORD));
	__m256i key = _mm256_set_epi64x((int64_t)(4 * KEY_WORD), (int64_t)(3 * KEY_WORD), (int64_t)(2 * KEY_WORD), (int64_t)KEY_WORD);
	__m256i a = _mm256_setzero_si256(), b = a;
	int64_t o = 0;
	for (; o + 64 <= n; o += 64) {
		__m256i x = _mm256_add_epi32(_mm256_loadu_si256((const __m256i *)(p + o)), key);
		key = _mm256_add_epi64(key, step);
		__m256i y = _mm256_add_epi32(_mm256_loadu_si256((const __m256i *)(p + o + 32)), key);
		key = _mm256_add_epi64(key, step);
		a = _mm256_add_epi64(a, _mm256_mul_epu32(x, _mm256_srli_epi64(x, 32)));
		b = _mm256_add_epi64(b, _mm256_mul_epu32(y, _mm256_srli_epi64(y, 32)));
	}
	a = _mm256_add_epi64(a, b);
	__m128i s = _mm_add_epi64(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1));
	uint64_t sum = (uint64_t)_mm_cvtsi128_si64(s) + (uint64_t)_mm_extract_epi64(s, 1);
	return sum + tail(p + o, n - o, o / 8);
}

__attribute__((target("avx512f"))) static uint64_t dense_avx512(const char *p, int64_t n)
{
	const __m512i step = _mm512_set1_epi64((int64_t)(8 * KEY_WORD));
	__m512i key = _mm512_set_epi64((int64_t)(8 * KEY_WORD), (int64_t)(7 * KEY_WORD), (int64_t)(6 * KEY_WORD), (int64_t)(5 * KEY_WORD),
				       (int64_t)(4 * KEY_WORD), (int64_t)(3 * KEY_WORD), (int64_t)(2 * KEY_WORD), (int64_t)KEY_WORD);
	__m512i a = _mm512_setzero_si512(), b = a;
	int64_t o = 0;
	for (; o + 128 <= n; o += 128) {
		__m512i x = _mm512_add_epi32(_mm512_loadu_si512(p + o), key);
		key = _mm512_add_epi64(key, step);
		__m512i y = _mm512_add_epi32(_mm512_loadu_si512(p + o + 64), key);
		key = _mm512_add_epi64(key, step);
		a = _mm512_add_epi64(a, _mm512_mul_epu32(x, _mm512_srli_epi64(x, 32)));
		b = _mm512_add_epi64(b, _mm512_mul_epu32(y, _mm512_srli_epi64(y, 32)));
	}
	uint64_t sum = (uint64_t)_mm512_reduce_add_epi64(_mm512_add_epi64(a, b));
	return sum + tail(p + o, n - o, o / 8);
}

static const dense_fn dense[] = {dense_plain, dense_avx2, dense_avx512};
#else
static const dense_fn dense[] = {dense_plain, dense_plain, dense_plain};
#endif

/* A row whose elements lie apart. */
static uint64_t apart(const struct rows_sum *o, const char *p)
{
	uint64_t sum = 0, key = KEY_WORD, x = 0;
	int bits = 0;
	for (int64_t e = 0; e < o->elems; e++, p += o->elem) {
		uint32_t v = 0;
		memcpy(&v, p, o->size); /* little endian, as x86 and arm64 are */
		x |= (uint64_t)v << bits;
		if ((bits += 8 * o->size) == 64) {
			sum += word(x, key);
			key += KEY_WORD, x = 0, bits = 0;
		}
	}
	return bits ? sum + word(x, key) : sum;
}

/* Rows r0 to r1 of one item, all of one range: out has a sum every n. The inner loop is
 * the one whose neighbours lie closer. */
static void block(const struct rows_sum *o, dense_fn f, const char *p, int64_t r0, int64_t r1, uint64_t *out, int64_t n)
{
	int64_t run = o->elems * o->size;
	uint64_t key = o->key + (uint64_t)(r0 + o->bias + 1) * KEY_ROW;
	int joined = o->elem == o->size || o->elems == 1;
	if (o->unit <= o->row || o->units == 1) {
		for (int64_t r = r0; r < r1; r++, p += o->row, key += KEY_ROW) {
			const char *q = p;
			uint64_t k = key;
			for (int64_t u = 0; u < o->units; u++, q += o->unit, k += KEY_UNIT)
				out[u * n] += mix((joined ? f(q, run) : apart(o, q)) + k);
		}
		return;
	}
	for (int64_t u = 0; u < o->units; u++, p += o->unit, key += KEY_UNIT) {
		const char *q = p;
		uint64_t k = key, sum = 0;
		for (int64_t r = r0; r < r1; r++, q += o->row, k += KEY_ROW)
			sum += mix((joined ? f(q, run) : apart(o, q)) + k);
		out[u * n] += sum;
	}
}

int32_t rows_sums(const struct rows_sum *ops, int64_t count, const int32_t *blocks, uint64_t *out, int32_t isa)
{
	if (isa < ROWS_PLAIN || isa > rows_best())
		return -1;
	for (const struct rows_sum *o = ops; o < ops + count; o++) {
		int64_t first = o->lo / o->range, n = (o->hi - 1) / o->range - first + 1;
		for (int64_t r = o->lo; r < o->hi;) {
			int64_t end = o->hi, within = r % o->depth;
			if (end > r - within + o->depth)
				end = r - within + o->depth;
			if (end > (r / o->range + 1) * o->range)
				end = (r / o->range + 1) * o->range;
			int64_t item = o->slot >= 0 ? o->slot : blocks[r / o->depth];
			const char *p = (const char *)(uintptr_t)o->at + item * o->item + within * o->row;
			block(o, dense[isa], p, r, end, out + o->out + r / o->range - first, n);
			r = end;
		}
	}
	return 0;
}
