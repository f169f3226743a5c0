// Products of int8 weights with rows that are quantised too, one scale a row.
//
// Instructions multiply unsigned with signed bytes. Weights lie in [-127, 127], and 128 is added to
// them. A row's numbers have 8 bits with VNNI; without, pairs of products are added in 16 bits, and
// the numbers have 7, as 2 · 255 · 63 fits. Sums are exact.

#pragma once

#include <algorithm>

#include "integers.h"

#if HAS_INTEGERS

// On either side of zero.
static const int INT8_LEVELS = HAS_VNNI ? 127 : 63;

// Rows multiplied together at most, as there are registers for sums; and as in `together`.
static const int ROWS_INT8 = LANES == 16 ? 12 : HAS_VNNI ? 5 : 4;
static constexpr int together_int8(long rows) {
  return rows <= (LANES == 16 ? 3 : 2) ? together(rows) : 1;
}

// Rows of numbers, quantised, in tiles of ROWS_INT8 at most that are all about as large; tile t has
// rows starts[t] on before starts[t + 1]. Inputs 4k to 4k + 3 of row r of a tile are `numbers` from
// 4 · (k · rows + r) on after those of earlier tiles. Of each row its scale and its sum, times -128.
struct Levels {
  std::vector<int8_t> numbers;
  std::vector<float> scales;
  std::vector<int32_t> sums;
  std::vector<long> starts;

  // M rows of K numbers, filled up with zeros to `fours`.
  void take(const float *x, long M, long K, long fours) {
    long tiles = (M + ROWS_INT8 - 1) / ROWS_INT8;
    numbers.resize(4 * M * fours), scales.resize(M), sums.resize(M), starts.resize(tiles + 1);
    for (long t = 0; t <= tiles; t++) starts[t] = M * t / tiles;
    for (long t = 0; t < tiles; t++)
      for (long m = starts[t], rows = starts[t + 1] - m, r = 0; r < rows; r++) {
        int8_t *to = numbers.data() + 4 * (m * fours + r);
        row(x + (m + r) * K, K, m + r, to, 4 * rows);
      }
  }

 private:
  // Row m, to fours that lie `apart`.
  void row(const float *x, long K, long m, int8_t *to, long apart) {
    float full[32];
    int8_t own[32];
    Bytes most = Bytes(), all = Bytes(), whole[32 / LANES];
    for (long k = 0; k < K; k += 32) most = magnitude(filled_up(x + k, K - k, full), most);
    float largest = as_float(greatest(most));
    float factor = largest > 1e-30f ? INT8_LEVELS / largest : 0;
    for (long k = 0; k < K; k += 32) {
      rounded(filled_up(x + k, K - k, full), factor, whole);
      put_bytes(whole, own);
      for (int v = 0; v < 32 / LANES; v++) all = OP(add_epi32)(all, whole[v]);
      for (long j = 0; j < 32 && j < K - k; j += 4, to += apart) memcpy(to, own + j, 4);
    }
    scales[m] = largest / INT8_LEVELS;
    sums[m] = -128 * total(all);
  }
};

// sums[R][S·WIDTH] += a tile of R rows times S panels, which lie `between` apart, of `count` times
// four inputs. For each `step` bytes at `ahead`, and as far from each panel, are fetched.
template <int R, int S>
static void block_int8(const int8_t *x, const uint8_t *w, long between, int32_t *sums, long count,
                       const uint8_t *ahead, long step) {
  Bytes a[R][2 * S];
#pragma GCC unroll 16
  for (int r = 0; r < R; r++)
#pragma GCC unroll 8
    for (int s = 0; s < 2 * S; s++) a[r][s] = bytes_at(sums + (r * 2 * S + s) * LANES);
  for (long k = 0; k < count; k++, x += 4 * R, w += 4 * WIDTH, ahead += step)
#pragma GCC unroll 8
    for (int s = 0; s < 2 * S; s++) {
      if (s % 2 == 0) fetch_lines(ahead + s / 2 * between, step);
      Bytes own = bytes_at(w + s / 2 * between + s % 2 * 4 * LANES);
#pragma GCC unroll 16
      for (int r = 0; r < R; r++) a[r][s] = four(a[r][s], own, x + 4 * r);
    }
#pragma GCC unroll 16
  for (int r = 0; r < R; r++)
#pragma GCC unroll 8
    for (int s = 0; s < 2 * S; s++) memcpy(sums + (r * 2 * S + s) * LANES, &a[r][s], 4 * LANES);
}

typedef void (*BlockInt8)(const int8_t *, const uint8_t *, long, int32_t *, long, const uint8_t *,
                          long);

template <int... R>
static BlockInt8 block_int8_of(long rows, bool wide, std::integer_sequence<int, R...>) {
  static const BlockInt8 narrow_[] = {block_int8<R + 1, 1>...};
  static const BlockInt8 wide_[] = {block_int8<R + 1, together_int8(R + 1)>...};
  return (wide ? wide_ : narrow_)[rows - 1];
}

// y of all rows and the outputs of `count` panels from panel p on. For several tiles stretch by
// stretch, of which each tile fetches its share of the next.
static void times_int8(const Levels &x, const Matrix &m, float *y, long p, long count, long fours,
                       std::vector<int32_t> &sums) {
  const long rows = x.scales.size(), tiles = x.starts.size() - 1, columns = count * WIDTH;
  const long size = 4 * WIDTH * fours, step = 4 * WIDTH / tiles;
  const long next = count > 1 ? AHEAD : 4 * WIDTH * CHUNK;
  const uint8_t *w = (const uint8_t *)m.weights + p * size;
  sums.resize(rows * columns);
  for (long i = 0; i < rows; i++) std::fill_n(sums.begin() + i * columns, columns, x.sums[i]);
  for (long k = 0, near; k < fours; k += near, w += 4 * WIDTH * near) {
    near = tiles == 1 || fours - k < CHUNK ? fours - k : CHUNK;
    const uint8_t *ahead = w + next;
    for (long t = 0; t < tiles; t++, ahead += near * step) {
      long first = x.starts[t], own = x.starts[t + 1] - first;
      auto times = block_int8_of(own, count > 1, std::make_integer_sequence<int, ROWS_INT8>());
      times(x.numbers.data() + 4 * (first * fours + k * own), w, size,
            sums.data() + first * columns, near, ahead, step);
    }
  }
  for (long i = 0; i < rows; i++)
    for (long c = 0, n = p * WIDTH; c < columns; c++, n++)
      y[i * m.N + n] = sums[i * columns + c] * (m.scales[n] * x.scales[i]);
}

static void panels_int8(const float *x, const Matrix &m, float *y, long M, long first, long end) {
  static thread_local Levels levels;
  static thread_local std::vector<int32_t> sums;
  long fours = (m.K + 3) / 4, most = M <= ROWS_INT8 ? together_int8(M) : 1;
  levels.take(x, M, m.K, fours);
  for (long p = first, count; p < end; p += count) {
    count = end - p >= most ? most : 1;
    times_int8(levels, m, y, p, count, fours, sums);
  }
}

#else
static const int INT8_LEVELS = 0;
static void panels_int8(const float *, const Matrix &, float *, long, long, long) {}
#endif
