// Products of blocks of GGUF files with rows that are quantised to 8 bits, a scale for every 32.
//
// The whole numbers of a block are multiplied and added exactly; then, block by block in their
// order, one float32 sum an output has added to it: the block's whole sum times the row's scale,
// times the weights' scale, and where the format has minima these times the sum of the row's
// numbers. Every step is one operation that rounds once, so all paths have the same bits, and a row
// has them alone and among others.

#pragma once

#include <utility>

#include "integers.h"
#include "panels_of_blocks.h"

#if HAS_INTEGERS
#define HAS_BLOCKS 1

#if !HAS_VNNI
// Products of four numbers, added up by pairs, in 16 bits: 2 · 127 · 63 fits, twice. Weights of 8
// bits are taken as signed ones, and their signs given to the numbers.
template <int BITS>
static inline Bytes pairs(Bytes weights, const int8_t *p) {
  Bytes numbers = broadcast(p);
  if (BITS == 8) {
    weights = OP(sub_epi8)(weights, OP(set1_epi8)(-128));
#if LANES == 16
    numbers = _mm512_mask_sub_epi8(numbers, _mm512_movepi8_mask(weights), Bytes(), numbers);
#else
    numbers = _mm256_sign_epi8(numbers, weights);
#endif
    weights = OP(abs_epi8)(weights);
  }
  return OP(maddubs_epi16)(weights, numbers);
}
#endif

// What is taken from a quant, where it isn't taken from the weights.
template <int F>
static constexpr int offset() {
  return KINDS[F].bits == 8 && !HAS_VNNI ? 0 : KINDS[F].offset;
}

// Rows of numbers, quantised. of them `most` at a time. Of block b and row m, at b · rows + m:
// `scales`; `sums`: of a block's 32 whole numbers, half by half; `shifts`: their sum, scaled.
static const int TILE = LANES;
struct Tile {
  int rows;
  const int8_t *numbers;  // [block][row][32]
  const float *scales, *shifts;
  const int32_t *sums;  // [block][row][2]

  // From block b on.
  Tile from(long b) const {
    long i = b * rows;
    return {rows, numbers + 32 * i, scales + i, shifts + i, sums + 2 * i};
  }
};

struct Quantised {
  std::vector<int8_t> numbers;
  std::vector<float> scales, shifts;
  std::vector<int32_t> sums;
  std::vector<Tile> tiles;

  // M rows of K numbers, filled up with zeros to `blocks`.
  void take(Rows<float> x, long M, long K, long blocks) {
    long all = M * blocks;
    // Matrix tiles read as far as 16 rows reach.
    numbers.resize(32 * (all + 16)), scales.resize(all + 16), shifts.resize(all + 16);
    sums.resize(2 * all);
    tiles.clear();
    long first = 0;
    for (long left = (M + TILE - 1) / TILE; left > 0; left--) {
      long rows = (M - first + left - 1) / left, i = first * blocks;
      tiles.push_back({(int)rows, numbers.data() + 32 * i, scales.data() + i, shifts.data() + i,
                       sums.data() + 2 * i});
      for (long b = 0; b < blocks; b++)
        for (long m = 0; m < rows; m++)
          block(x.start + (first + m) * x.apart + 32 * b, K - 32 * b, i + b * rows + m);
      first += rows;
    }
  }

 private:
  void block(const float *x, long left, long i) {
    float full[32];
    x = filled_up(x, left, full);
    float largest = as_float(greatest(magnitude(x, Bytes())));
    float factor = largest > 1e-30f ? 127 / largest : 0;  // not infinite
    Bytes whole[32 / LANES];
    rounded(x, factor, whole);
    int32_t sum[2] = {0, 0};
    for (int v = 0; v < 32 / LANES; v++) sum[v * LANES / 16] += total(whole[v]);
    put_bytes(whole, numbers.data() + 32 * i);
    scales[i] = largest / 127;
    shifts[i] = scales[i] * (float)(sum[0] + sum[1]);
    sums[2 * i] = sum[0], sums[2 * i + 1] = sum[1];
  }
};

// The quants of a block, four inputs in each vector: all eight, or those of vector j of the file's
// four that are in its low or high halves.
template <int F>
static inline Bytes weights_at(const uint8_t *q, int j) {
  const long next = 4 * LANES;
  if (KINDS[F].bits == 8) return bytes_at(q + j * next);
  Bytes x = bytes_at(q + j % 4 * next), low = OP(set1_epi8)(15);
  x = both(j < 4 ? x : OP(srli_epi16)(x, 4), low);
  if (KINDS[F].bits == 5) {
    Bytes above = bytes_at(q + 4 * next);
    above = j < 4 ? OP(slli_epi16)(above, 4 - j) : OP(srli_epi16)(above, j - 4);
    x = either(x, both(above, OP(set1_epi8)(16)));
  }
  if (KINDS[F].bits == 6) {
    Bytes above = bytes_at(q + (4 + j / 4) * next);
    above = j % 4 < 3 ? OP(slli_epi16)(above, 4 - 2 * (j % 4)) : OP(srli_epi16)(above, 2);
    x = either(x, both(above, OP(set1_epi8)(48)));
  }
  return x;
}

// dots[R] += the products of a block's vectors from `first` on before `last` with R rows.
template <int BITS, int R, int first, int last>
static inline void add_products(const Bytes *w, const int8_t *numbers, Bytes *dots) {
#if HAS_VNNI
#pragma GCC unroll 8
  for (int j = first; j < last; j++)
#pragma GCC unroll 8
    for (int r = 0; r < R; r++) dots[r] = four(dots[r], w[j], numbers + 32 * r + 4 * j);
#else
  const int fit = BITS == 4 ? 8 : BITS == 5 ? 4 : BITS == 6 ? 2 : 1;  // of them in 16 bits
#pragma GCC unroll 8
  for (int j = first; j < last; j += fit) {
    Bytes sums[R];
#pragma GCC unroll 8
    for (int i = 0; i < fit; i++)
#pragma GCC unroll 8
      for (int r = 0; r < R; r++) {
        Bytes own = pairs<BITS>(w[j + i], numbers + 32 * r + 4 * (j + i));
        sums[r] = i == 0 ? own : OP(add_epi16)(sums[r], own);
        __asm__("" : "+x"(sums[r]));  // g++ would keep all products before it adds one
      }
#pragma GCC unroll 8
    for (int r = 0; r < R; r++)
      dots[r] = OP(add_epi32)(dots[r], OP(madd_epi16)(sums[r], OP(set1_epi16)(1)));
  }
#endif
}

// sums += one block of one panel times R rows, from row `first` of the tile on. It has to be inlined:
// as a call, which compilers prefer where it occurs often, its sums would go through memory.
template <int F, int R>
__attribute__((always_inline)) static inline void rows_of_block(const Bytes *w, const Tile &x, int first, Floats scale,
                                 Floats other, Floats *sums) {
  constexpr Kind kind = KINDS[F];
  const int8_t *numbers = x.numbers + 32 * first;
  Bytes dots[R], rest[R];
#pragma GCC unroll 8
  for (int r = 0; r < R; r++) {
    const int32_t *sum = x.sums + 2 * (first + r);
    dots[r] = OP(set1_epi32)(-offset<F>() * (kind.halves ? sum[0] : sum[0] + sum[1]));
    rest[r] = OP(set1_epi32)(-offset<F>() * sum[1]);
  }
  add_products<kind.bits, R, 0, kind.halves ? 4 : 8>(w, numbers, dots);
  if constexpr (kind.halves) add_products<kind.bits, R, 4, 8>(w, numbers, rest);
#pragma GCC unroll 8
  for (int r = 0; r < R; r++) {
    Floats own = OP(set1_ps)(x.scales[first + r]);
    sums[r] = OP(fmadd_ps)(OP(mul_ps)(OP(cvtepi32_ps)(dots[r]), own), scale, sums[r]);
    if (kind.halves)
      sums[r] = OP(fmadd_ps)(OP(mul_ps)(OP(cvtepi32_ps)(rest[r]), own), other, sums[r]);
    if (kind.least)
      sums[r] = OP(fmadd_ps)(OP(set1_ps)(x.shifts[first + r]), other, sums[r]);
  }
}

// The scale of block b of a unit, and its second half's scale or its minimum.
template <int F>
static inline void scales_of(const uint8_t *u, int b, Floats &scale, Floats &other) {
  if (F == Q4_K || F == Q5_K) {
    scale = OP(mul_ps)(unsigned_at(u + (4 + b) * LANES), halves_at(u));
    Floats least = OP(mul_ps)(unsigned_at(u + (12 + b) * LANES), halves_at(u + 2 * LANES));
    other = OP(sub_ps)(OP(setzero_ps)(), least);
  } else if (F == Q6_K) {
    scale = OP(mul_ps)(signed_at(u + (2 + 2 * b) * LANES), halves_at(u));
    other = OP(mul_ps)(signed_at(u + (3 + 2 * b) * LANES), halves_at(u));
  } else {
    scale = halves_at(u + b * 2 * LANES);
    other = KINDS[F].least ? halves_at(u + (2 + b) * 2 * LANES) : scale;
  }
}

// The rows from `first` on, four at a time at most and all groups about as large.
template <int F, int R, int G>
static inline void groups_of_block(const Bytes *w, const Tile &x, int first, const uint8_t *ahead,
                                   long share, Floats scale, Floats other, Floats *sums) {
  constexpr int groups = (R + 3) / 4, rows = (R * (G + 1)) / groups - R * G / groups;
  fetch(ahead, share, G, groups);
  rows_of_block<F, rows>(w, x, first, scale, other, sums + first);
  if constexpr (G + 1 < groups)
    groups_of_block<F, R, G + 1>(w, x, first + rows, ahead, share, scale, other, sums);
}

// y[R][S · LANES] += x · w of `count` units of S panels, which lie `between` apart.
template <int F, int R, int S>
static void blocks_times(const uint8_t *w, long between, Tile x, float *y, long apart, long count) {
  const Kind kind = KINDS[F];
  const long share = unit(F) / kind.group;
  Floats sums[S][R];
#pragma GCC unroll 8
  for (int s = 0; s < S; s++)
#pragma GCC unroll 16
    for (int r = 0; r < R; r++) sums[s][r] = (Floats)loaded(y + r * apart + s * LANES);
  for (long u = 0; u < count; u++, w += unit(F), x = x.from(kind.group)) {
    // Behind a panel's end come the next S panels, which start where these S end.
    const long jump = (count - u) * unit(F) > BLOCKS_AHEAD ? 0 : (S - 1) * between;
#pragma GCC unroll 4
    for (int s = 0; s < S; s++) {
      const uint8_t *own = w + s * between;
      for (int b = 0; b < kind.group; b++) {
        const uint8_t *q = own + LANES * kind.head + b * quants(F);
        Tile at = x.from(b);
        Floats scale, other;
        scales_of<F>(own, b, scale, other);
        Bytes vectors[8];
#pragma GCC unroll 8
        for (int j = 0; j < 8; j++) vectors[j] = weights_at<F>(q, j);
        const uint8_t *ahead = own + jump + b * share;
        groups_of_block<F, R, 0>(vectors, at, 0, ahead, share, scale, other, sums[s]);
      }
    }
  }
#pragma GCC unroll 8
  for (int s = 0; s < S; s++)
#pragma GCC unroll 16
    for (int r = 0; r < R; r++) at(y + r * apart + s * LANES) = (lanes)sums[s][r];
}

typedef void (*BlocksTimes)(const uint8_t *, long, Tile, float *, long, long);

// How many panels are multiplied at a time with so many rows: as there are registers for sums.
static constexpr int most_panels(int rows) {
  return LANES == 16 ? (rows <= 4 ? 4 : rows <= 8 ? 2 : 1) : rows == 1 ? 4 : rows == 2 ? 2 : 1;
}

template <int F, int R>
static constexpr BlocksTimes times_of(bool wide) {
  if constexpr (most_panels(R) == 4) return wide ? blocks_times<F, R, 4> : blocks_times<F, R, 2>;
  return blocks_times<F, R, most_panels(R) < 2 ? 1 : 2>;
}

template <int F, int... R>
static BlocksTimes times_of(int rows, bool wide, std::integer_sequence<int, R...>) {
  static const BlocksTimes narrow_[] = {times_of<F, R + 1>(false)...};
  static const BlocksTimes wide_[] = {times_of<F, R + 1>(true)...};
  return (wide ? wide_ : narrow_)[rows - 1];
}

static const long STRETCH = 1024;  // inputs that all tiles are multiplied with in turn

// y [M][N] = x wᵀ of a share of the panels of WIDTH columns.
template <int F>
static void panels_of(const Quantised &x, const Matrix &m, float *y, long M, long first, long end) {
  long all = units(F, m.K), between = all * unit(F), inputs = BLOCK * KINDS[F].group;
  long stretch = x.tiles.size() == 1 ? all : STRETCH / inputs;
  for (long p = first; p < end;) {
    bool wide = most_panels(M) == 4 && end - p >= 2;
    const uint8_t *w = (const uint8_t *)m.weights + 2 * p * between;
    long columns = wide ? 2 * WIDTH : WIDTH;
    for (long i = 0; i < M; i++) memset(y + i * m.N + p * WIDTH, 0, 4 * columns);
    for (long u = 0; u < all; u += stretch) {
      long count = all - u < stretch ? all - u : stretch, row = 0;
      for (const Tile &tile : x.tiles) {
        auto times = times_of<F>(tile.rows, wide, std::make_integer_sequence<int, TILE>());
        long step = most_panels(tile.rows) == 1 ? LANES : columns;
        for (long n = 0; n < columns; n += step)
          times(w + u * unit(F) + n / LANES * between, between, tile.from(u * KINDS[F].group),
                y + row * m.N + p * WIDTH + n, m.N, count);
        row += tile.rows;
      }
    }
    p += wide ? 2 : 1;
  }
}

#include "products_amx.h"

template <int F>
static void panels_by_way(const Quantised &x, const Matrix &m, float *y, long M, long first,
                          long end) {
  if (M >= tiled_rows(F) && tiles_permitted()) panels_by_tiles<F>(x, m, y, M, first, end);
  else panels_of<F>(x, m, y, M, first, end);
}

static void panels_blocks(Rows<float> x, const Matrix &m, int format, float *y, long M, long first,
                          long end) {
  static thread_local Quantised room;
  room.take(x, M, m.K, units(format, m.K) * KINDS[format].group);
  static void (*const ways[])(const Quantised &, const Matrix &, float *, long, long, long) = {
      panels_by_way<Q4_0>, panels_by_way<Q4_1>, panels_by_way<Q5_0>, panels_by_way<Q8_0>,
      panels_by_way<Q4_K>, panels_by_way<Q5_K>, panels_by_way<Q6_K>, panels_by_way<Q6_0>};
  ways[format](room, m, y, M, first, end);
}

#else
#define HAS_BLOCKS 0
#define HAS_TILES 0
static bool tiles_permitted() { return false; }
static void panels_blocks(Rows<float>, const Matrix &, int, float *, long, long, long) {}
#endif
