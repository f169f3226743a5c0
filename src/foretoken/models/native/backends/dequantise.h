// Blocks of GGUF files, as floating-point numbers. Formats: ggml's quants.
//
// A value is a small whole number times its block's scale, plus a minimum where the format has one.
// Scale and whole number have so few bits that their product is exact in float32: with a fused
// multiply-add or without one, the results are those of the Python package `gguf`, bit by bit.

#pragma once

#include "vectors.h"

static const long LARGEST_BLOCK = 256;

static inline float half_at(const uint8_t *p) {
  uint16_t bits;
  memcpy(&bits, p, sizeof bits);
  uint32_t size = (uint32_t)(bits & 0x7fff) << 13, sign = (uint32_t)(bits & 0x8000) << 16;
  float x;
  if ((bits & 0x7c00) == 0x7c00) {  // infinite or no number: the exponent stays full
    size |= 0x7f800000;
    memcpy(&x, &size, sizeof x);
  } else {
    memcpy(&x, &size, sizeof x);
    x *= 0x1p112f;  // the exponent is 112 too small
  }
  return sign ? -x : x;
}

static void q4_0(const uint8_t *__restrict p, float *__restrict y) {
  float d = half_at(p);
  for (int i = 0; i < 16; i++) {
    y[i] = d * ((p[2 + i] & 15) - 8);
    y[16 + i] = d * ((p[2 + i] >> 4) - 8);
  }
}

static void q4_1(const uint8_t *__restrict p, float *__restrict y) {
  float d = half_at(p), m = half_at(p + 2);
  for (int i = 0; i < 16; i++) {
    y[i] = d * (p[4 + i] & 15) + m;
    y[16 + i] = d * (p[4 + i] >> 4) + m;
  }
}

// The fifth bits lie together: that of value i is bit i of 32.
static void q5_0(const uint8_t *__restrict p, float *__restrict y) {
  float d = half_at(p);
  uint32_t high;
  memcpy(&high, p + 2, sizeof high);
  for (int i = 0; i < 16; i++) {
    y[i] = d * (int)(((p[6 + i] & 15) | (high >> i & 1) << 4) - 16);
    y[16 + i] = d * (int)(((p[6 + i] >> 4) | (high >> (16 + i) & 1) << 4) - 16);
  }
}

// The upper two bits lie together: those of value i are bits 2i and 2i + 1 of 64.
static void q6_0(const uint8_t *__restrict p, float *__restrict y) {
  float d = half_at(p);
  uint64_t high;
  memcpy(&high, p + 2, sizeof high);
  for (int i = 0; i < 16; i++) {
    y[i] = d * (int)(((p[10 + i] & 15) | (high >> 2 * i & 3) << 4) - 32);
    y[16 + i] = d * (int)(((p[10 + i] >> 4) | (high >> (32 + 2 * i) & 3) << 4) - 32);
  }
}

static void q8_0(const uint8_t *__restrict p, float *__restrict y) {
  float d = half_at(p);
  for (int i = 0; i < 32; i++) y[i] = d * (int8_t)p[2 + i];
}

// Scale and minimum of part i of 8, six bits each, from 12 bytes.
static inline void six_bits(const uint8_t *p, int i, int &scale, int &least) {
  scale = i < 4 ? p[i] & 63 : (p[i + 4] & 15) | p[i - 4] >> 6 << 4;
  least = i < 4 ? p[i + 4] & 63 : p[i + 4] >> 4 | p[i] >> 6 << 4;
}

// 64 values at a time share 32 bytes: their lower and their upper halves.
static void q4_k(const uint8_t *__restrict p, float *__restrict y) {
  float d = half_at(p), dm = half_at(p + 2);
  const uint8_t *q = p + 16;
  for (int i = 0; i < 8; i += 2, q += 32, y += 64) {
    int scale[2], least[2];
    for (int j = 0; j < 2; j++) six_bits(p + 4, i + j, scale[j], least[j]);
    float a = d * scale[0], b = d * scale[1], m = dm * least[0], n = dm * least[1];
    for (int l = 0; l < 32; l++) y[l] = a * (q[l] & 15) - m;
    for (int l = 0; l < 32; l++) y[32 + l] = b * (q[l] >> 4) - n;
  }
}

static void q5_k(const uint8_t *__restrict p, float *__restrict y) {
  float d = half_at(p), dm = half_at(p + 2);
  const uint8_t *high = p + 16, *q = p + 48;
  for (int i = 0; i < 8; i += 2, q += 32, y += 64) {
    int scale[2], least[2];
    for (int j = 0; j < 2; j++) six_bits(p + 4, i + j, scale[j], least[j]);
    float a = d * scale[0], b = d * scale[1], m = dm * least[0], n = dm * least[1];
    for (int l = 0; l < 32; l++) y[l] = a * ((q[l] & 15) | (high[l] >> i & 1) << 4) - m;
    for (int l = 0; l < 32; l++) y[32 + l] = b * (q[l] >> 4 | (high[l] >> (i + 1) & 1) << 4) - n;
  }
}

static void q6_k(const uint8_t *__restrict p, float *__restrict y) {
  const uint8_t *low = p, *high = p + 128;
  const int8_t *scales = (const int8_t *)p + 192;
  float d = half_at(p + 208);
  for (int n = 0; n < 2; n++, low += 64, high += 32, scales += 8, y += 128)
    for (int part = 0; part < 4; part++)
      for (int side = 0; side < 2; side++) {
        float a = d * scales[2 * part + side];
        const uint8_t *l = low + part % 2 * 32 + 16 * side, *h = high + 16 * side;
        float *to = y + 32 * part + 16 * side;
        for (int i = 0; i < 16; i++)
          to[i] = a * (((part < 2 ? l[i] & 15 : l[i] >> 4) | (h[i] >> 2 * part & 3) << 4) - 32);
      }
}

struct Format {
  long bytes, values;
  void (*read)(const uint8_t *, float *);
};

static const Format FORMATS[] = {{18, 32, q4_0},    {20, 32, q4_1},    {22, 32, q5_0},
                                 {34, 32, q8_0},    {144, 256, q4_k},  {176, 256, q5_k},
                                 {210, 256, q6_k}, {26, 32, q6_0}};
static const int MANY_FORMATS = sizeof FORMATS / sizeof *FORMATS;

// float32 to float16, to the nearest and of two to the even one.
static inline uint16_t narrowed(float x) {
  uint32_t bits;
  memcpy(&bits, &x, sizeof bits);
  uint32_t sign = bits >> 16 & 0x8000, size = bits & 0x7fffffff;
  if (size > 0x7f800000) return sign | 0x7e00;
  if (size >= 0x477ff000) return sign | 0x7c00;  // from 65520 on
  if (size < 0x38800000) {  // below 2^-14: adding 0.5 leaves the 10 bits at the end
    float y;
    memcpy(&y, &size, sizeof y);
    y += 0.5f;
    memcpy(&size, &y, sizeof size);
    return sign | (size - 0x3f000000);
  }
  return sign | (size - 0x38000000 + 0xfff + (size >> 13 & 1)) >> 13;
}

static inline void put(const float *x, float *y, long count) { memcpy(y, x, count * sizeof *x); }

static inline void put(const float *x, uint16_t *y, long count) {
  long i = 0;
#if defined(__F16C__)
  for (; i + 8 <= count; i += 8)
    _mm_storeu_si128((__m128i *)(y + i),
                     _mm256_cvtps_ph(_mm256_loadu_ps(x + i), _MM_FROUND_TO_NEAREST_INT));
#endif
  for (; i < count; i++) y[i] = narrowed(x[i]);
}

// `count` blocks at p; returns the largest magnitude's bits.
template <typename T>
static uint32_t unpack(const Format &format, const uint8_t *p, T *y, long count, int threads) {
  uint32_t most = 0;
#pragma omp parallel for num_threads(threads) reduction(max : most)
  for (long b = 0; b < count; b++) {
    float x[LARGEST_BLOCK];
    format.read(p + b * format.bytes, x);
    put(x, y + b * format.values, format.values);
    uint32_t bits[LARGEST_BLOCK];
    memcpy(bits, x, format.values * sizeof *x);
    for (long i = 0; i < format.values; i++) {
      uint32_t size = bits[i] & 0x7fffffff;
      most = size > most ? size : most;
    }
  }
  return most;
}
