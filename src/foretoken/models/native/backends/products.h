// Products with packed weights.
//
// Every sum goes over its terms in their order, whatever else is computed with it, so that a
// row's numbers have the same bits alone and among others. Written with the compilers' vector
// extension, for any CPU; int8 and blocks want AVX2.
//
// Weights lie in panels: WIDTH output columns side by side, for every input (int8: for every four).
// Several panels are read at a time, as one stream of addresses does not use all of the memory's
// speed: input by input for one to three rows; for more, stretch by stretch, of which the next is
// fetched while this one is multiplied.

#pragma once

#include <utility>

#include "vectors.h"

// Fetches `size` bytes, a multiple of those of a line or part of one.
static inline void fetch_lines(const void *from, long size) {
  fetch_line(from);
  if (size > 64) fetch_line((const char *)from + 64);
}

// How many panels are read together for one to three rows: as there are registers for their sums.
static constexpr int together(long rows) { return rows == 1 || LANES == 16 ? 4 : 2; }

// sums[R][V·LANES] += x[R][count] · w, of V vectors of outputs: half a panel, one, or several, which
// lie `between` apart. One panel at most fetches `step` bytes of other memory for each of count, at
// most two lines.
template <int R, int V, typename W>
static void block(Rows<float> x, Rows<W> w, long between, float *sums, long apart, long count,
                  const char *ahead, long step) {
  lanes a[R][V];
#pragma GCC unroll 16
  for (int r = 0; r < R; r++)
#pragma GCC unroll 8
    for (int v = 0; v < V; v++) a[r][v] = loaded(sums + r * apart + v * LANES);
  const W *p = w.start;
  const float *q = x.start;
  for (long k = 0; k < count; k++, p += w.apart, q++, ahead += step) {
    if (V <= 2) fetch_lines(ahead, step);
    lanes own[V];
#pragma GCC unroll 8
    for (int v = 0; v < V; v++) {
      own[v] = loaded(p + v / 2 * between + v % 2 * LANES);
      // g++ would load them again for every row, if it saw where they are from.
#if defined(__AVX512F__) && LANES == 16
      if (R > 1) __asm__("" : "+v"(own[v]));
#elif defined(__AVX__) && LANES == 8
      if (R > 1 && (V <= 2 || R == 2)) __asm__("" : "+x"(own[v]));
#endif
    }
#pragma GCC unroll 16
    for (int r = 0; r < R; r++)
#pragma GCC unroll 8
      for (int v = 0; v < V; v++) a[r][v] = fused(own[v], q[r * x.apart], a[r][v]);
  }
#pragma GCC unroll 16
  for (int r = 0; r < R; r++)
#pragma GCC unroll 8
    for (int v = 0; v < V; v++) at(sums + r * apart + v * LANES) = a[r][v];
}

template <typename W>
using Block = void (*)(Rows<float>, Rows<W>, long, float *, long, long, const char *, long);

template <int V, typename W, int... R>
static Block<W> block_of(long rows, std::integer_sequence<int, R...>) {
  static const Block<W> blocks[] = {block<R + 1, V, W>...};
  return blocks[rows - 1];
}

// sums[M][V·LANES] += x[M][count] · w, ROWS rows at a time at most, all about as many.
// Meanwhile `size` bytes for each of count are fetched from `from` on, by each group its share.
template <int V, typename W>
static void multiply(Rows<float> x, Rows<W> w, float *sums, long apart, long M, long count,
                     const void *from, long size) {
  long groups = (M + ROWS - 1) / ROWS, step = size / groups;
  const char *ahead = (const char *)from;
  for (long left = groups; left > 0; left--) {
    long rows = (M + left - 1) / left;
    auto times = block_of<V, W>(rows, std::make_integer_sequence<int, ROWS>());
    times(x, w, 0, sums, apart, count, ahead, step);
    ahead += count * step;
    x.start += rows * x.apart;
    sums += rows * apart;
    M -= rows;
  }
}

static void store(const float *sums, float *y, long M, long N, long columns, float unit) {
  for (long m = 0; m < M; m++)
    for (long n = 0; n < columns; n++) y[m * N + n] = sums[m * columns + n] * unit;
}

// y[M][N] = x wᵀ · unit for up to MANY rows and S panels. A stretch of a panel is used by all rows
// while it is in the first-level cache; panels take turns, as two streams are fetched faster than
// one: four rows take a tenth less time, without pages of 2 MiB a sixth.
template <int S, typename W>
static void many(Rows<float> x, const W *w, float *y, long M, long N, long K, float unit) {
  float sums[S][MANY * WIDTH];
  for (int s = 0; s < S; s++) memset(sums[s], 0, 4 * M * WIDTH);
  for (long k = 0; k < K; k += CHUNK) {
    long count = K - k < CHUNK ? K - k : CHUNK;
    for (int s = 0; s < S; s++) {
      const W *own = w + (s * K + k) * WIDTH;
      multiply<2, W>({x.start + k, x.apart}, {own, WIDTH}, sums[s], WIDTH, M, count,
                     own + CHUNK * WIDTH, WIDTH * sizeof(W));
    }
  }
  for (int s = 0; s < S; s++) store(sums[s], y + s * WIDTH, M, N, WIDTH, unit);
}

// The same for R rows and S panels.
template <int R, int S, typename W>
static void few(Rows<float> x, const W *w, float *y, long N, long K, float unit) {
  float sums[R * S * WIDTH] = {0};
  block<R, 2 * S, W>(x, {w, WIDTH}, K * WIDTH, sums, S * WIDTH, K, 0, 0);
  store(sums, y, R, N, S * WIDTH, unit);
}

template <typename W>
using Few = void (*)(Rows<float>, const W *, float *, long, long, float);

template <typename W, int... R>
static Few<W> few_of(long rows, std::integer_sequence<int, R...>) {
  static const Few<W> all[] = {few<R + 1, together(R + 1), W>...};
  return all[rows - 1];
}

// As many of the `left` panels as are best read together -> how many.
template <typename W>
static long some(Rows<float> x, const W *w, float *y, long M, long N, long K, long left,
                 float unit) {
  const int most = LANES == 16 || sizeof(W) == 4 ? 3 : 2;  // rows that are few
  if (M <= most && left >= together(M))
    return few_of<W>(M, std::make_integer_sequence<int, most>())(x, w, y, N, K, unit), together(M);
  // Beyond a group of rows, and with half the bytes, multiplying takes longer than fetching; with
  // wide registers one panel is fetched fast enough.
  bool two = LANES < 16 && left >= 2 && M <= ROWS && sizeof(W) == 4;
  for (long m = 0; m < M; m += MANY)
    (two ? many<2, W> : many<1, W>)({x.start + m * x.apart, x.apart}, w, y + m * N,
                                    M - m < MANY ? M - m : MANY, N, K, unit);
  return 1 + two;
}

// What a product multiplies with: N outputs, filled up to whole panels, of K inputs. Where its
// weights are of several kinds, these are the first `columns`, and `rest` has those after them.
// bias may be null. int8 weights have a scale each output.
struct Matrix {
  const void *weights;
  const float *bias, *scales;
  const Matrix *rest;
  long N, K, columns;
  float unit;
  int kind;
};
enum { FLOAT32, FLOAT16, INT8, BLOCKS };  // and from BLOCKS on the formats of `FORMATS`

#include "products_blocks.h"
#include "products_int8.h"

template <typename W>
static void panels(Rows<float> x, const Matrix &m, float *y, long M, long first, long end) {
  const W *w = (const W *)m.weights;
  for (long p = first; p < end;)
    p += some(x, w + p * m.K * WIDTH, y + p * WIDTH, M, m.N, m.K, end - p, m.unit);
}

// The rows of x[M][K], copied where they lie whole pages apart: these would all be kept in the same
// few places of the first-level cache, and push each other out.
static Rows<float> apart(const float *x, long M, long K, std::vector<float> &room) {
  if (M == 1 || K % 1024) return {x, K};
  room.resize(M * (K + WIDTH));
  for (long m = 0; m < M; m++) memcpy(room.data() + m * (K + WIDTH), x + m * K, 4 * K);
  return {room.data(), K + WIDTH};
}

// One thread's share of y[M][N] = x wᵀ + bias; `sum`, if given, has its D columns added to.
static void share(const float *x, const Matrix &whole, float *y, long M, float *sum, long D,
                  long who, long of) {
  if (!M) return;  // the loops are for one row or more
  long before = 0;
  std::vector<float> spread;
  for (const Matrix *part = &whole; part; before += part->columns, part = part->rest) {
    const Matrix &m = *part;
    float *own = y + before;
    long count = m.columns / WIDTH, first = count * who / of, end = count * (who + 1) / of;
    if (m.kind == FLOAT32) panels<float>(apart(x, M, m.K, spread), m, own, M, first, end);
    if (m.kind == FLOAT16) panels<uint16_t>(apart(x, M, m.K, spread), m, own, M, first, end);
    if (m.kind == INT8) panels_int8(x, m, own, M, first, end);
    if (m.kind >= BLOCKS) panels_blocks({x, m.K}, m, m.kind - BLOCKS, own, M, first, end);
    long last = sum && before + end * WIDTH > D ? D - before : end * WIDTH;
    for (long i = 0; i < M && (m.bias || sum); i++)
      for (long n = first * WIDTH; n < last; n++) {
        if (m.bias) own[i * m.N + n] += m.bias[n];
        if (sum) sum[i * D + before + n] += own[i * m.N + n];
      }
  }
}
