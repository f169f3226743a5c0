// Blocks of GGUF files, reordered into panels: `LANES` rows of a matrix side by side, so that one
// vector holds the same four inputs of each.
//
// A unit is GROUP blocks of 32 inputs. First its head: scales, and minima where the format has
// them, of all rows; then its quants, block after block, in vectors of four bytes a row:
//
//   4 vectors: in the low halves of the bytes inputs 4j to 4j + 3, in the high halves 16 + 4j to ..
//   and with 5 bits a fifth: bit j of byte b is the fifth bit of input 4j + b
//   with 6 bits two more: bits 2j and 2j + 1 of byte b belong to input 4j + b, or 16 + 4j + b
//   with 8 bits instead 8 vectors of one byte an input, to which 128 is added

#pragma once

#include "dequantise.h"

enum { Q4_0, Q4_1, Q5_0, Q8_0, Q4_K, Q5_K, Q6_K, Q6_0 };  // in the order of FORMATS

// offset: what is taken from a quant. least: whether a block has a minimum, which is added to its
// values (below 0: taken from them). halves: whether each half of a block has a scale of its own.
struct Kind {
  int bits, offset, least, group, head;
  bool halves;
};

static constexpr Kind KINDS[] = {{4, 8, 0, 2, 4, false},   {4, 0, 1, 2, 8, false},
                                 {5, 16, 0, 2, 4, false},  {8, 128, 0, 2, 4, false},
                                 {4, 0, -1, 8, 20, false}, {5, 0, -1, 8, 20, false},
                                 {6, 32, 0, 8, 20, true},  {6, 32, 0, 2, 4, false}};
static const long BLOCK = 32;  // inputs

// Bytes of a block's quants, and of a unit, in a panel.
static constexpr long quants(int format) { return LANES * 4 * KINDS[format].bits; }
static constexpr long unit(int format) {
  return LANES * KINDS[format].head + KINDS[format].group * quants(format);
}
static inline long units(int format, long K) {
  long inputs = BLOCK * KINDS[format].group;
  return (K + inputs - 1) / inputs;
}

static inline uint32_t word(const uint8_t *p) {
  uint32_t four;
  memcpy(&four, p, 4);
  return four;
}

static inline void put_word(uint8_t *p, uint32_t four) { memcpy(p, &four, 4); }

// 32 quants of one row to its four bytes of each vector.
static inline void put_quants(const uint8_t *q, int bits, uint8_t *to) {
  const long next = 4 * LANES;
  if (bits == 8) {
    for (int j = 0; j < 8; j++) put_word(to + j * next, word(q + 4 * j));
    return;
  }
  for (int j = 0; j < 4; j++) {
    uint32_t low = word(q + 4 * j) & 0x0f0f0f0f, high = word(q + 16 + 4 * j) & 0x0f0f0f0f;
    put_word(to + j * next, low | high << 4);
  }
  uint32_t above[2] = {0, 0};
  for (int j = 0; j < 8 && bits == 5; j++) above[0] |= (word(q + 4 * j) >> 4 & 0x01010101) << j;
  for (int j = 0; j < 8 && bits == 6; j++)
    above[j / 4] |= (word(q + 4 * j) >> 4 & 0x03030303) << 2 * (j % 4);
  for (int i = 0; i < bits - 4; i++) put_word(to + (4 + i) * next, above[i]);
}

static inline void nibbles(const uint8_t *p, long count, uint8_t *low, uint8_t *high) {
  for (long i = 0; i < count; i++) low[i] = p[i] & 15, high[i] = p[i] >> 4;
}

// A block of 32 of the file: its head is copied as it is.
static void lay_small(int format, const uint8_t *p, uint8_t *head, uint8_t *to, int at) {
  const Kind kind = KINDS[format];
  uint8_t q[32];
  memcpy(head + at * 2 * LANES, p, 2);
  if (kind.least) memcpy(head + (2 + at) * 2 * LANES, p + 2, 2);
  if (format == Q8_0) {
    for (int i = 0; i < 32; i++) q[i] = p[2 + i] ^ 128;
  } else {
    nibbles(p + FORMATS[format].bytes - 16, 16, q, q + 16);
    if (format == Q5_0)
      for (int i = 0; i < 32; i++) q[i] |= (word(p + 2) >> i & 1) << 4;
    if (format == Q6_0)
      for (int i = 0; i < 32; i++) q[i] |= (p[2 + i / 4] >> i % 4 * 2 & 3) << 4;
  }
  put_quants(q, kind.bits, to + at * quants(format));
}

// A block of 256 of the formats with minima: d and dmin, then 8 scales and 8 minima of a byte each.
static void lay_large(int format, const uint8_t *p, uint8_t *head, long lane, uint8_t *to) {
  memcpy(head + 2 * lane, p, 2);
  memcpy(head + 2 * LANES + 2 * lane, p + 2, 2);
  const uint8_t *high = p + 16, *low = format == Q5_K ? p + 48 : p + 16;
  for (int i = 0; i < 8; i += 2, low += 32) {
    uint8_t q[64];
    nibbles(low, 32, q, q + 32);
    for (int l = 0; l < 64 && format == Q5_K; l++) q[l] |= (high[l % 32] >> (i + l / 32) & 1) << 4;
    for (int j = i; j < i + 2; j++) {
      int scale, least;
      six_bits(p + 4, j, scale, least);
      head[(4 + j) * LANES + lane] = scale;
      head[(12 + j) * LANES + lane] = least;
      put_quants(q + 32 * (j - i), KINDS[format].bits, to + j * quants(format));
    }
  }
}

// A block of 256 with 16 scales.
static void lay_q6_k(const uint8_t *p, uint8_t *head, long lane, uint8_t *to) {
  memcpy(head + 2 * lane, p + 208, 2);
  for (int i = 0; i < 16; i++) head[(2 + i) * LANES + lane] = p[192 + i];
  const uint8_t *low = p, *high = p + 128;
  for (int n = 0; n < 2; n++, low += 64, high += 32)
    for (int part = 0; part < 4; part++) {
      uint8_t q[32];
      for (int i = 0; i < 32; i++) {
        uint8_t four = part < 2 ? low[part % 2 * 32 + i] & 15 : low[part % 2 * 32 + i] >> 4;
        q[i] = four | (high[i] >> 2 * part & 3) << 4;
      }
      put_quants(q, 6, to + (4 * n + part) * quants(Q6_K));
    }
}

// Blocks of a row of K inputs.
static inline long blocks_of(int format, long K) {
  return (K + FORMATS[format].values - 1) / FORMATS[format].values;
}

// `count` rows of K inputs -> one panel, whose memory holds zeros before.
static void lay_panel(int format, const uint8_t *rows, long count, long K, uint8_t *to) {
  const Format &f = FORMATS[format];
  long blocks = blocks_of(format, K), head = LANES * KINDS[format].head;
  for (long lane = 0; lane < count; lane++)
    for (long b = 0; b < blocks; b++) {
      const uint8_t *p = rows + (lane * blocks + b) * f.bytes;
      if (f.values == BLOCK) {
        uint8_t *u = to + b / 2 * unit(format);
        lay_small(format, p, u + 2 * lane, u + head + 4 * lane, b % 2);
      } else {
        uint8_t *u = to + b * unit(format);
        if (format == Q6_K) lay_q6_k(p, u, lane, u + head + 4 * lane);
        else lay_large(format, p, u, lane, u + head + 4 * lane);
      }
    }
}

// [N, K] -> panels of LANES rows, N filled up to WIDTH with rows of zeros.
static void lay_panels(int format, const uint8_t *rows, uint8_t *to, long N, long K, int threads) {
  long size = units(format, K) * unit(format);
  long row = blocks_of(format, K) * FORMATS[format].bytes;
#pragma omp parallel for num_threads(threads)
  for (long p = 0; p < (N + WIDTH - 1) / WIDTH * 2; p++) {
    long first = p * LANES, count = N - first < LANES ? N - first : LANES;
    memset(to + p * size, 0, size);
    if (count > 0) lay_panel(format, rows + first * row, count, K, to + p * size);
  }
}

// The other way round: a lane's 32 quants from its four bytes of each vector.
static inline void get_quants(const uint8_t *from, int bits, uint8_t *q) {
  const long next = 4 * LANES;
  if (bits == 8) {
    for (int j = 0; j < 8; j++) put_word(q + 4 * j, word(from + j * next));
    return;
  }
  for (int j = 0; j < 4; j++) {
    uint32_t both = word(from + j * next);
    put_word(q + 4 * j, both & 0x0f0f0f0f);
    put_word(q + 16 + 4 * j, both >> 4 & 0x0f0f0f0f);
  }
  for (int j = 0; j < 8 && bits > 4; j++) {
    uint32_t above = word(from + (bits == 5 ? 4 : 4 + j / 4) * next);
    uint32_t own = bits == 5 ? above >> j & 0x01010101 : above >> 2 * (j % 4) & 0x03030303;
    put_word(q + 4 * j, word(q + 4 * j) | own << 4);
  }
}

// Half h of block b of a unit: its scale and its minimum, as `dequantise.h` has them.
static inline void scale_at(int format, const uint8_t *u, long lane, int b, int h, float &scale,
                            float &least) {
  least = 0;
  const uint8_t *d = u + 2 * lane;
  if (format == Q4_K || format == Q5_K) {
    scale = half_at(d) * u[(4 + b) * LANES + lane];
    least = -(half_at(d + 2 * LANES) * u[(12 + b) * LANES + lane]);
  } else if (format == Q6_K) {
    scale = half_at(d) * (int8_t)u[(2 + 2 * b + h) * LANES + lane];
  } else {
    scale = half_at(d + b * 2 * LANES);
    if (KINDS[format].least) least = half_at(d + (2 + b) * 2 * LANES);
  }
}

// Row `row` of a matrix in panels -> K numbers.
static void row_of(int format, const uint8_t *panels, long row, long K, float *y) {
  const Kind kind = KINDS[format];
  const uint8_t *u = panels + row / LANES * units(format, K) * unit(format);
  long lane = row % LANES;
  for (long at = 0; at < K; u += unit(format))
    for (int b = 0; b < kind.group && at < K; b++, at += BLOCK) {
      uint8_t q[BLOCK];
      get_quants(u + LANES * kind.head + b * quants(format) + 4 * lane, kind.bits, q);
      float scale, least;
      for (long i = 0; i < BLOCK && at + i < K; i++) {
        if (i % 16 == 0) scale_at(format, u, lane, b, i / 16, scale, least);
        y[at + i] = scale * ((int)q[i] - kind.offset) + least;
      }
    }
}
