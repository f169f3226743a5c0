// Whole numbers of 8 bits, a register of them at a time: products of unsigned with signed ones that
// are added exactly, and rows of numbers that become such.

#pragma once

#include "vectors.h"

#if defined(__AVX2__) && defined(__FMA__) && \
    (LANES == 8 || LANES == 16 && defined(__AVX512BW__))
#define HAS_INTEGERS 1

#if LANES == 16 ? defined(__AVX512VNNI__) \
                : defined(__AVXVNNI__) || defined(__AVX512VNNI__) && defined(__AVX512VL__)
#define HAS_VNNI 1
#else
#define HAS_VNNI 0
#endif

#if LANES == 16
typedef __m512i Bytes;
typedef __m512 Floats;
#define OP(name) _mm512_##name
static inline Bytes bytes_at(const void *p) { return _mm512_loadu_si512(p); }
static inline Bytes both(Bytes a, Bytes b) { return _mm512_and_si512(a, b); }
static inline Bytes either(Bytes a, Bytes b) { return _mm512_or_si512(a, b); }
static inline Floats halves_at(const uint8_t *p) {
  return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p));
}
static inline Floats unsigned_at(const uint8_t *p) {
  return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)p)));
}
static inline Floats signed_at(const uint8_t *p) {
  return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)p)));
}
static inline int32_t greatest(Bytes a) { return _mm512_reduce_max_epi32(a); }
static inline int32_t total(Bytes a) { return _mm512_reduce_add_epi32(a); }
// 32 whole numbers of 32 bits, of which the lowest eight are kept.
static inline void put_bytes(const Bytes *a, int8_t *to) {
  _mm_storeu_si128((__m128i *)to, _mm512_cvtepi32_epi8(a[0]));
  _mm_storeu_si128((__m128i *)to + 1, _mm512_cvtepi32_epi8(a[1]));
}
#else
typedef __m256i Bytes;
typedef __m256 Floats;
#define OP(name) _mm256_##name
static inline Bytes bytes_at(const void *p) { return _mm256_loadu_si256((const Bytes *)p); }
static inline Bytes both(Bytes a, Bytes b) { return _mm256_and_si256(a, b); }
static inline Bytes either(Bytes a, Bytes b) { return _mm256_or_si256(a, b); }
static inline Floats halves_at(const uint8_t *p) {
  return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p));
}
static inline Floats unsigned_at(const uint8_t *p) {
  return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)p)));
}
static inline Floats signed_at(const uint8_t *p) {
  return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)p)));
}
static inline int32_t greatest(Bytes a) {
  __m128i b = _mm_max_epi32(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1));
  b = _mm_max_epi32(b, _mm_shuffle_epi32(b, 0x4e));
  return _mm_cvtsi128_si32(_mm_max_epi32(b, _mm_shuffle_epi32(b, 0xb1)));
}
static inline int32_t total(Bytes a) {
  __m128i b = _mm_add_epi32(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1));
  b = _mm_add_epi32(b, _mm_shuffle_epi32(b, 0x4e));
  return _mm_cvtsi128_si32(_mm_add_epi32(b, _mm_shuffle_epi32(b, 0xb1)));
}
// 32 whole numbers from -128 to 127 of 32 bits, of which the lowest eight are kept.
static inline void put_bytes(const Bytes *a, int8_t *to) {
  Bytes packed = _mm256_packs_epi16(_mm256_packs_epi32(a[0], a[1]), _mm256_packs_epi32(a[2], a[3]));
  Bytes order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
  _mm256_storeu_si256((Bytes *)to, _mm256_permutevar8x32_epi32(packed, order));
}
#endif

// The four numbers at p, for every output.
static inline Bytes broadcast(const int8_t *p) {
  int32_t numbers;
  memcpy(&numbers, p, 4);
  return OP(set1_epi32)(numbers);
}

// sums + the products of four unsigned weights with the four signed numbers at p, of each output.
// Without VNNI two products must fit in 16 bits.
static inline Bytes four(Bytes sums, Bytes weights, const int8_t *p) {
#if HAS_VNNI && LANES == 16
  // With the numbers broadcast as they are read; compilers take another instruction for that.
  __asm__("vpdpbusd %2%{1to16%}, %1, %0" : "+v"(sums) : "v"(weights), "m"(*(const int32_t *)p));
  return sums;
#elif HAS_VNNI && defined(__AVXVNNI__)
  return _mm256_dpbusd_avx_epi32(sums, weights, broadcast(p));
#elif HAS_VNNI
  return _mm256_dpbusd_epi32(sums, weights, broadcast(p));
#else
  Bytes pairs = OP(maddubs_epi16)(weights, broadcast(p));
  return OP(add_epi32)(sums, OP(madd_epi16)(pairs, OP(set1_epi16)(1)));
#endif
}

// The largest magnitude of 32 numbers and of `most`, as bits, which are in the same order.
static inline Bytes magnitude(const float *x, Bytes most) {
  for (int v = 0; v < 32 / LANES; v++)
    most = OP(max_epi32)(most, both(bytes_at(x + v * LANES), OP(set1_epi32)(0x7fffffff)));
  return most;
}

static inline float as_float(int32_t bits) {
  float x;
  return memcpy(&x, &bits, 4), x;
}

// 32 numbers times `factor`, rounded.
static inline void rounded(const float *x, float factor, Bytes *whole) {
  for (int v = 0; v < 32 / LANES; v++)
    whole[v] = OP(cvtps_epi32)(OP(mul_ps)((Floats)loaded(x + v * LANES), OP(set1_ps)(factor)));
}

// x, of which `left` numbers are there: filled up with zeros to 32 in `full`, if need be.
static inline const float *filled_up(const float *x, long left, float *full) {
  if (left >= 32) return x;
  memset(full, 0, 4 * 32);
  return memcpy(full, x, left > 0 ? 4 * left : 0), full;
}

// What comes next is fetched ahead, a little with every group of rows: all at once would keep the
// loads waiting.
static const long AHEAD = 2048, BLOCKS_AHEAD = FETCHED_INTO == 2 ? 4096 : AHEAD;  // bytes
static inline void fetch(const uint8_t *p, long size, int part, int parts) {
#pragma GCC unroll 16
  for (long i = 0; 64 * i < size; i++)
    if (i % parts == part) fetch_line(p + BLOCKS_AHEAD + 64 * i);
}

#else
#define HAS_INTEGERS 0
#endif
