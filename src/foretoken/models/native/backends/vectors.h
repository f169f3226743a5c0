// The vectors that all loops here are written with: the compilers' vector extension, for any CPU.

#pragma once

#include <math.h>
#include <stdint.h>
#include <string.h>

#include <vector>

#if defined(__F16C__) || defined(__AVX2__)
#include <immintrin.h>
#endif

#ifndef LANES
#ifdef __AVX512F__
#define LANES 16
#else
#define LANES 8
#endif
#endif

// ROWS: that are multiplied together at most, as there are registers for their sums.
static const long WIDTH = 2 * LANES, ROWS = LANES == 16 ? 12 : 6, CHUNK = 128, MANY = 48;
typedef float lanes __attribute__((vector_size(4 * LANES), aligned(4)));
typedef int32_t whole __attribute__((vector_size(4 * LANES), aligned(4)));
typedef uint32_t patterns __attribute__((vector_size(4 * LANES), aligned(4)));
typedef uint16_t halves __attribute__((vector_size(2 * LANES), aligned(2)));

static inline lanes &at(float *p) { return *(lanes *)p; }
static inline lanes loaded(const float *p) { return *(const lanes *)p; }

// float16 to float32, which holds all of its numbers.
static inline lanes loaded(const uint16_t *p) {
#if defined(__F16C__) && LANES == 8
  return (lanes)_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p));
#elif defined(__AVX512F__) && LANES == 16
  return (lanes)_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p));
#else
  whole bits = __builtin_convertvector(*(const halves *)p, whole);
  lanes size = (lanes)((bits & 0x7fff) << 13) * 0x1p112f;  // the exponent is 112 too small
  whole endless = ((bits & 0x7c00) == 0x7c00) & 0x7f800000;  // infinite, or NaN
  return (lanes)((whole)size | endless | (bits & 0x8000) << 16);
#endif
}

// x · y + sum, rounded once. Where it is left to them, compilers fuse a product with its sum in one
// loop and not in another: g++, tuned for Zen 2 and 3 or Alder Lake, doesn't where a loop adds to
// one sum alone. A row by itself would have other bits than among others.
static inline lanes fused(lanes x, float y, lanes sum) {
#if defined(__FMA__) && LANES == 8
  return (lanes)_mm256_fmadd_ps((__m256)x, _mm256_set1_ps(y), (__m256)sum);
#elif defined(__AVX512F__) && LANES == 16
  return (lanes)_mm512_fmadd_ps((__m512)x, _mm512_set1_ps(y), (__m512)sum);
#else
  return x * y + sum;
#endif
}

// Rows of numbers: the first, and the distance to the next row.
template <typename T>
struct Rows {
  const T *start;
  long apart;
};

// The cache that lines are fetched into ahead of their use: 3, the first level; 2, the second. Up to
// its fourth generation Zen's first level waits for few lines at a time, and the second for more:
// there a pass of one row over blocks takes a fifth less. From the fifth on it has AVX-VNNI.
#if !defined(__AVXVNNI__) && \
    (defined(__znver1__) || defined(__znver2__) || defined(__znver3__) || defined(__znver4__))
#define FETCHED_INTO 2
#else
#define FETCHED_INTO 3
#endif
static inline void fetch_line(const void *p) { __builtin_prefetch(p, 0, FETCHED_INTO); }
