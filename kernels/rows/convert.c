#include "convert.h"

#include <stddef.h>
#include <string.h>

#include "shim.h"

/* Numbers pass as the bits of a float32: GET reads one of a type, PUT rounds one to it,
 * to nearest, ties to even. Addresses need no alignment. */

static inline uint32_t get_f32(const char *p)
{
	uint32_t b;
	memcpy(&b, p, 4);
	return b;
}

static inline void put_f32(char *p, uint32_t b) { memcpy(p, &b, 4); }

static inline uint32_t get_16(const char *p)
{
	uint16_t h;
	memcpy(&h, p, 2);
	return h;
}

static inline void put_16(char *p, uint32_t b)
{
	uint16_t h = (uint16_t)b;
	memcpy(p, &h, 2);
}

static inline uint32_t get_bf16(const char *p) { return get_16(p) << 16; }

static inline void put_bf16(char *p, uint32_t b)
{
	if ((b & 0x7fffffff) > 0x7f800000) /* NaN: quiet */
		put_16(p, b >> 16 | 0x40);
	else
		put_16(p, (b + 0x7fff + (b >> 16 & 1)) >> 16);
}

static inline uint32_t get_f16(const char *p)
{
	uint32_t h = get_16(p), sign = (h & 0x8000) << 16, e = h >> 10 & 0x1f, m = h & 0x3ff;
	if (e == 0) { /* zero or subnormal: m * 2^-24 is a normal float32 */
		float f = (float)m * 0x1p-24f;
		uint32_t b;
		memcpy(&b, &f, 4);
		return sign | b;
	}
	if (e < 31)
		return sign | ((e << 23) + 0x38000000) | m << 13;
	return m ? sign | 0x7fc00000 | m << 13 : sign | 0x7f800000;
}

static inline void put_f16(char *p, uint32_t b)
{
	uint32_t sign = b >> 16 & 0x8000;
	b &= 0x7fffffff;
	if (b > 0x7f800000) /* NaN: quiet */
		put_16(p, sign | 0x7e00 | (b >> 13 & 0x3ff));
	else if (b >= 0x477ff000) /* 65520 and beyond: infinite */
		put_16(p, sign | 0x7c00);
	else if (b >= 0x38800000) /* normal */
		put_16(p, sign | (b - 0x38000000 + 0xfff + (b >> 13 & 1)) >> 13);
	else if (b <= 0x33000000) /* half of the smallest subnormal and below */
		put_16(p, sign);
	else {
		uint32_t m = (b & 0x7fffff) | 0x800000, drop = 126 - (b >> 23);
		put_16(p, sign | (m + (1u << (drop - 1)) - 1 + (m >> drop & 1)) >> drop);
	}
}

enum { size_bf16 = 2, size_f16 = 2, size_f32 = 4 };

#define SCALAR(FROM, TO)                                                                \
	static void FROM##_##TO(char *d, const char *s, int64_t n, int64_t run, int64_t ds, int64_t ss) \
	{                                                                               \
		for (int64_t i = 0; i < n; i++, d += ds, s += ss)                       \
			for (int64_t k = 0; k < run / size_##FROM; k++)                 \
				put_##TO(d + k * size_##TO, get_##FROM(s + k * size_##FROM)); \
	}

SCALAR(bf16, f16)
SCALAR(bf16, f32)
SCALAR(f16, bf16)
SCALAR(f16, f32)
SCALAR(f32, bf16)
SCALAR(f32, f16)

#if defined(__x86_64__)
#include <immintrin.h>

#define WIDE static inline __attribute__((target("avx2,f16c"), always_inline))

WIDE __m256i load_f32(const char *p) { return _mm256_loadu_si256((const __m256i *)p); }
WIDE void store_f32(char *p, __m256i v) { _mm256_storeu_si256((__m256i *)p, v); }

WIDE __m256i load_bf16(const char *p)
{
	return _mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)p)), 16);
}

WIDE void store_bf16(char *p, __m256i v)
{
	__m256i high = _mm256_srli_epi32(v, 16);
	__m256i up = _mm256_add_epi32(_mm256_set1_epi32(0x7fff), _mm256_and_si256(high, _mm256_set1_epi32(1)));
	__m256i round = _mm256_srli_epi32(_mm256_add_epi32(v, up), 16);
	__m256i quiet = _mm256_or_si256(high, _mm256_set1_epi32(0x40));
	__m256i size = _mm256_and_si256(v, _mm256_set1_epi32(0x7fffffff));
	__m256i nan = _mm256_cmpgt_epi32(size, _mm256_set1_epi32(0x7f800000));
	__m256i h = _mm256_blendv_epi8(round, quiet, nan);
	h = _mm256_permute4x64_epi64(_mm256_packus_epi32(h, h), 0x08);
	_mm_storeu_si128((__m128i *)p, _mm256_castsi256_si128(h));
}

WIDE __m256i load_f16(const char *p)
{
	return _mm256_castps_si256(_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p)));
}

WIDE void store_f16(char *p, __m256i v)
{
	_mm_storeu_si128((__m128i *)p, _mm256_cvtps_ph(_mm256_castsi256_ps(v), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}

#define VECTOR(FROM, TO)                                                                \
	__attribute__((target("avx2,f16c"))) static void wide_##FROM##_##TO(char *d, const char *s, int64_t n, \
									    int64_t run, int64_t ds, int64_t ss) \
	{                                                                               \
		int64_t count = run / size_##FROM;                                      \
		for (int64_t i = 0; i < n; i++, d += ds, s += ss) {                     \
			int64_t k = 0;                                                  \
			for (; k + 8 <= count; k += 8)                                  \
				store_##TO(d + k * size_##TO, load_##FROM(s + k * size_##FROM)); \
			for (; k < count; k++)                                          \
				put_##TO(d + k * size_##TO, get_##FROM(s + k * size_##FROM)); \
		}                                                                       \
	}

VECTOR(bf16, f16)
VECTOR(bf16, f32)
VECTOR(f16, bf16)
VECTOR(f16, f32)
VECTOR(f32, bf16)
VECTOR(f32, f16)

static int wide(void)
{
	__builtin_cpu_init();
	return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c");
}

#define BOTH(FROM, TO) FROM##_##TO, wide_##FROM##_##TO

#else

static int wide(void) { return 0; }

#define BOTH(FROM, TO) FROM##_##TO, FROM##_##TO

#endif

static const struct {
	int32_t kind;
	copy2d_fn scalar, vector;
} conversions[] = {
	{ROWS_CONVERT(ROWS_BF16, ROWS_F16), BOTH(bf16, f16)}, {ROWS_CONVERT(ROWS_BF16, ROWS_F32), BOTH(bf16, f32)},
	{ROWS_CONVERT(ROWS_F16, ROWS_BF16), BOTH(f16, bf16)}, {ROWS_CONVERT(ROWS_F16, ROWS_F32), BOTH(f16, f32)},
	{ROWS_CONVERT(ROWS_F32, ROWS_BF16), BOTH(f32, bf16)}, {ROWS_CONVERT(ROWS_F32, ROWS_F16), BOTH(f32, f16)},
};

copy2d_fn rows_convert(int32_t kind, int vector)
{
	for (size_t i = 0; i < sizeof conversions / sizeof conversions[0]; i++)
		if (conversions[i].kind == kind)
			return vector && wide() ? conversions[i].vector : conversions[i].scalar;
	return NULL;
}
