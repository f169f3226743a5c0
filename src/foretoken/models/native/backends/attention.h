// Attention over the cache: sums go in the order of its cells, and what a token does not see adds
// zero, so that a node of a tree has the bits of the same token in a chain.

#pragma once

#include <algorithm>

#include "products.h"

// e^x for x <= 0: 2^n · e^r with |r| <= ln 2 / 2, to a unit in the last place; 0 below -87. NaN stays
// NaN: the sum of its bits would be a number.
static inline lanes exponential(lanes x) {
  const float magic = 12582912.0f;  // adding it rounds to an integer, in the low bits
  lanes shifted = x * 1.44269504f + magic, n = shifted - magic;
  lanes r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
  lanes p = r * 1.9875691500e-4f + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  lanes e = (lanes)((patterns)p + ((patterns)shifted << 23));
  return x == x ? (lanes)((whole)e & (x > -87.0f)) : x;
}

// tanh, to two units in the last place: a polynomial in x² near 0, (1 - e) / (1 + e) beyond.
static inline lanes hyperbolic(lanes x) {
  lanes size = x > 0.0f ? x : -x, e = exponential(size * -2.0f), square = x * x;
  lanes p = square * -6.05372e-3f + 2.096820e-2f;
  p = p * square - 5.384499e-2f;
  p = p * square + 1.3332733e-1f;
  p = p * square - 3.3333329e-1f;
  lanes far = (1.0f - e) / (1.0f + e);
  return size < 0.625f ? x + x * square * p : x > 0.0f ? far : -far;
}

// How keys and values are stored.
enum Stored { STORED_FLOAT32, STORED_FLOAT16, STORED_BFLOAT16 };

static inline uint32_t bits_of(float x) {
  uint32_t bits;
  return memcpy(&bits, &x, 4), bits;
}

// float32 to the nearest number of 16 bits, of two the even one. NaN stays NaN; what float16 has no
// number for becomes its largest, as an infinity would reach those that don't see it: 0 · inf is NaN.
static inline uint16_t narrowed(float x, long kind) {
  uint32_t bits = bits_of(x), size = bits & 0x7fffffff, sign = bits >> 16 & 0x8000;
  if (size > 0x7f800000) return kind == STORED_FLOAT16 ? 0x7e00 : 0x7fc0;
  if (kind == STORED_BFLOAT16) return (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
  if (size >= 0x477ff000) return sign | 0x7bff;
  if (size < 0x38800000)  // below 2^-14 half's numbers lie as far apart as float's from 0.5 on
    return sign | (bits_of((x < 0 ? -x : x) + 0.5f) - bits_of(0.5f));
  return sign | (size + 0xc8000fff + (size >> 13 & 1)) >> 13;
}

// `count` rows of W numbers, from number `first` of a cache on: where they lie, or widened in `room`.
static const float *widened(const void *cache, long kind, long first, long count, long W,
                            float *room) {
  if (kind == STORED_FLOAT32) return (const float *)cache + first;
  const uint16_t *from = (const uint16_t *)cache + first;
  for (long i = 0; i < count * W; i += LANES)  // W is whole vectors
    if (kind == STORED_FLOAT16)
      at(room + i) = loaded(from + i);
    else
      at(room + i) = (lanes)(__builtin_convertvector(*(const halves *)(from + i), whole) << 16);
  return room;
}

// Which tokens of a pass belong to which of its rows, and the work that attention is divided into.
struct Division {
  // WIDTH queries of a row's key/value head, from query `first` on.
  struct Panel {
    long row, head, first;
  };
  std::vector<int64_t> begins;  // of each row the first token, and the number of all tokens
  std::vector<int64_t> of;      // of each token the row
  std::vector<Panel> panels;

  // counts: tokens of each row. K key/value heads have G queries of a token each.
  template <class Counts>
  Division(long B, Counts counts, long K, long G) : begins{0} {
    for (long b = 0; b < B; b++) {
      long count = counts(b);
      begins.push_back(begins.back() + count);
      of.insert(of.end(), count, b);
      for (long head = 0; head < K; head++)
        for (long first = 0; first < count * G; first += WIDTH) panels.push_back({b, head, first});
    }
  }
};

// One pass's attention over M tokens; see `attend` below. cap: scores s become cap · tanh(s / cap);
// 0 for none.
struct Pass {
  const float *turned;
  void *keys, *values;
  long kind;
  const Division &rows;
  const int64_t *slots, *places;
  const uint8_t *seen;
  float *out;
  long H, K, W, L, cells;
  float scale, cap;
};

// Keys and values of token i into the cache.
static void write(const Pass &p, long i) {
  const float *own = p.turned + (i * (p.H + 2 * p.K) + p.H) * p.W;
  for (long head = 0; head < 2 * p.K; head++, own += p.W) {
    void *cache = head < p.K ? p.keys : p.values;
    long first = ((p.slots[p.rows.of[i]] * p.K + head % p.K) * p.cells + p.places[i]) * p.W;
    if (p.kind == STORED_FLOAT32)
      memcpy((float *)cache + first, own, 4 * p.W);
    else
      for (long d = 0; d < p.W; d++) ((uint16_t *)cache)[first + d] = narrowed(own[d], p.kind);
  }
}

struct Span {
  long first, cells;
};

// What tokens t to `end` see: from the first cell that any does to the last. What lies
// before their windows has been given back, and would take memory again if it were read.
static Span span(const Pass &p, long t, long end) {
  if (!p.seen) return {0, p.L};
  long from = p.L, to = 0;
  for (const uint8_t *own = p.seen + t * p.L; t < end; t++, own += p.L) {
    const void *first = memchr(own, 1, from), *last = memrchr(own + to, 1, p.L - to);
    if (first) from = (const uint8_t *)first - own;
    if (last) to = (const uint8_t *)last - own + 1;
  }
  return {from, from < to ? to - from : 0};
}

// scores[count], filled up to whole vectors, become e^(score - highest), or 0 where they are hidden.
static void exponentials(float *scores, const uint8_t *seen, long count, long filled) {
  const uint8_t *hidden = seen ? (const uint8_t *)memchr(seen, 0, count) : 0;
  for (long j = hidden ? hidden - seen : count; j < filled; j++)
    if (j >= count || !seen[j]) scores[j] = -INFINITY;
  lanes most = lanes{} - INFINITY;
  for (long j = 0; j < filled; j += LANES) {
    lanes score = loaded(scores + j);
    most = score > most ? score : most;
  }
  float highest = most[0];
  for (long i = 1; i < LANES; i++) highest = most[i] > highest ? most[i] : highest;
  if (highest == -INFINITY) highest = 0;  // all are hidden: -inf - -inf would be NaN
  for (long j = 0; j < filled; j += LANES)
    at(scores + j) = exponential(loaded(scores + j) - highest);
}

static const long SOON = 16;  // rows of values that are fetched ahead
static const long TOGETHER = 4;  // queries whose shares are added up side by side
static const long WORTH = 192;  // cells from which on threads share a panel

// A panel's attention between its steps. reach: the cells that its queries see. shares [count]
// [filled]: of each query the scores, which become its shares of the values; sums: of the shares.
struct Desk {
  Span reach;
  long count, filled;
  std::vector<float> shares;
  float sums[WIDTH];
};

// A thread's own numbers while it is at a step.
struct Scratch {
  std::vector<float> numbers, wide;  // wide [CHUNK][W]: cells that are stored as 16 bits
  float *of(long count) {
    if ((long)numbers.size() < count) numbers.resize(count);
    return numbers.data();
  }
};

// The first cell that a panel sees, as a place in the cache.
static long history(const Pass &p, const Division::Panel &panel, const Desk &desk) {
  return ((p.slots[panel.row] * p.K + panel.head) * p.cells + desk.reach.first) * p.W;
}

// Token of query r of a panel.
static long token(const Pass &p, const Division::Panel &panel, long r) {
  return p.rows.begins[panel.row] + (panel.first + r) / (p.H / p.K);
}

// Where the numbers of query r of a panel begin in a row of heads.
static long column(const Pass &p, const Division::Panel &panel, long r) {
  long G = p.H / p.K;
  return (panel.head * G + (panel.first + r) % G) * p.W;
}

static void lay(const Pass &p, const Division::Panel &panel, Desk &desk) {
  long begin = p.rows.begins[panel.row], end = p.rows.begins[panel.row + 1];
  long left = (end - begin) * (p.H / p.K) - panel.first;
  desk.count = left < WIDTH ? left : WIDTH;
  desk.reach = span(p, token(p, panel, 0), token(p, panel, desk.count - 1) + 1);
  desk.filled = (desk.reach.cells + LANES - 1) / LANES * LANES;
  size_t size = desk.count * desk.filled;
  if (desk.shares.size() < size) desk.shares.resize(size);
}

// The scores of the cells from `from` on before `to`. Lanes are queries. What is stored as float32
// is fetched ahead, the keys of the next group while one is multiplied.
static void score(const Pass &p, const Division::Panel &panel, Desk &desk, long from, long to,
                  Scratch &scratch) {
  const long count = desk.count, row = (p.H + 2 * p.K) * p.W, first = history(p, panel, desk);
  float *queries = scratch.of((p.W + CHUNK) * WIDTH), *scores = queries + p.W * WIDTH;
  memset(queries, 0, 4 * p.W * WIDTH);
  for (long r = 0; r < count; r++) {
    const float *q = p.turned + token(p, panel, r) * row + column(p, panel, r);
    for (long d = 0; d < p.W; d++) queries[d * WIDTH + r] = q[d] * p.scale;
  }
  if (p.kind) scratch.wide.resize(CHUNK * p.W);
  auto times = count <= LANES ? multiply<1, float> : multiply<2, float>;
  for (long j = from; j < to; j += CHUNK) {
    long near = to - j < CHUNK ? to - j : CHUNK;
    const float *keys = widened(p.keys, p.kind, first + j * p.W, near, p.W, scratch.wide.data());
    memset(scores, 0, 4 * near * WIDTH);
    times({keys, p.W}, {queries, WIDTH}, scores, WIDTH, near, p.W, keys + ROWS * p.W,
          p.kind ? 0 : 4 * near);
    for (long i = 0; p.cap && i < near * WIDTH; i += LANES)
      at(scores + i) = hyperbolic(loaded(scores + i) / p.cap) * p.cap;
    for (long r = 0; r < count; r++)
      for (long i = 0; i < near; i++) desk.shares[r * desk.filled + j + i] = scores[i * WIDTH + r];
  }
}

// The shares of up to TOGETHER queries from `from` on. Lanes are cells.
static void weigh(const Pass &p, const Division::Panel &panel, Desk &desk, long from) {
  const long L = desk.reach.cells, filled = desk.filled;
  const long count = std::min(TOGETHER, desk.count - from);
  float *own = desk.shares.data() + from * filled, sums[TOGETHER] = {0};
  for (long r = 0; r < count; r++) {
    const uint8_t *seen = p.seen ? p.seen + token(p, panel, from + r) * p.L + desk.reach.first : 0;
    exponentials(own + r * filled, seen, L, filled);
  }
  if (count == TOGETHER)  // as many chains of sums side by side
    for (long j = 0; j < L; j++)
      for (long r = 0; r < TOGETHER; r++) sums[r] += own[r * filled + j];
  else
    for (long j = 0; j < L; j++)
      for (long r = 0; r < count; r++) sums[r] += own[r * filled + j];
  for (long r = 0; r < count; r++) desk.sums[from + r] = sums[r];
}

// The numbers from `from` on before `to` of what each query sees.
static void mix(const Pass &p, const Division::Panel &panel, const Desk &desk, long from, long to,
                Scratch &scratch) {
  const long count = desk.count, L = desk.reach.cells, filled = desk.filled;
  const long groups = (count + ROWS - 1) / ROWS;  // each fetches a row of values for every one
  const float *shares = desk.shares.data();
  float *mixed = scratch.of(count * p.W);
  memset(mixed, 0, 4 * count * p.W);
  if (p.kind) scratch.wide.resize(CHUNK * p.W);
  for (long j = 0; j < L; j += CHUNK) {
    long near = L - j < CHUNK ? L - j : CHUNK, first = history(p, panel, desk) + j * p.W;
    const float *values = widened(p.values, p.kind, first, near, p.W, scratch.wide.data());
    if (p.W % WIDTH == 0)
      for (long d = from; d < to; d += WIDTH)
        multiply<2, float>({shares + j, filled}, {values + d, p.W}, mixed + d, p.W, count, near,
                           values + d + SOON * p.W, p.kind ? 0 : 4 * p.W * groups);
    else  // narrow heads, of whole vectors
      for (long r = 0; r < count; r++)
        for (long i = 0; i < near; i++)
          for (long d = from; d < to; d += LANES) {
            float *sum = mixed + r * p.W + d;
            at(sum) = fused(loaded(values + i * p.W + d), shares[r * filled + j + i], loaded(sum));
          }
  }
  for (long r = 0; r < count; r++) {
    float *out = p.out + token(p, panel, r) * p.H * p.W + column(p, panel, r);
    float sum = desk.sums[r] > 0 ? desk.sums[r] : 1;  // a token that sees nothing is filling
    for (long d = from; d < to; d++) out[d] = mixed[r * p.W + d] / sum;
  }
}

// The desks of the last panels, which the threads share: those that are left where each takes as many
// whole ones as the others, if a sixth of the time is lost by waiting for these.
static std::vector<Desk> shared_desks(const Division &rows, long L, long threads) {
  long panels = rows.panels.size(), left = panels % threads, turns = panels / threads + 1;
  bool shared = left && L >= WORTH && 6 * (threads - left) >= turns * threads;
  return std::vector<Desk>(shared ? left : 0);
}

// A thread's part of a pass's attention; all threads are in it. Of the panels that are shared the
// cells are, then the queries, then the numbers of the heads; each is computed as it is otherwise.
static void attend_all(const Pass &p, std::vector<Desk> &desks) {
  const long shared = desks.size(), whole = p.rows.panels.size() - shared;
  const long block = p.W % WIDTH ? p.W : WIDTH, blocks = p.W / block;
  const long chunks = (p.L + CHUNK - 1) / CHUNK, fours = WIDTH / TOGETHER;
  const Division::Panel *panels = p.rows.panels.data(), *last = panels + whole;
  Scratch scratch;
  Desk desk;
#pragma omp for schedule(dynamic)
  for (long i = 0; i < whole; i++) {
    lay(p, panels[i], desk);
    score(p, panels[i], desk, 0, desk.reach.cells, scratch);
    for (long r = 0; r < desk.count; r += TOGETHER) weigh(p, panels[i], desk, r);
    mix(p, panels[i], desk, 0, p.W, scratch);
  }
  if (!shared) return;
#pragma omp for
  for (long i = 0; i < shared; i++) lay(p, last[i], desks[i]);
#pragma omp for schedule(dynamic)
  for (long i = 0; i < shared * chunks; i++) {
    Desk &own = desks[i / chunks];
    long from = i % chunks * CHUNK, to = std::min(from + CHUNK, own.reach.cells);
    if (from < to) score(p, last[i / chunks], own, from, to, scratch);
  }
#pragma omp for schedule(dynamic)
  for (long i = 0; i < shared * fours; i++) {
    long from = i % fours * TOGETHER;
    if (from < desks[i / fours].count) weigh(p, last[i / fours], desks[i / fours], from);
  }
#pragma omp for schedule(dynamic)
  for (long i = 0; i < shared * blocks; i++) {
    long from = i % blocks * block;
    mix(p, last[i / blocks], desks[i / blocks], from, from + block, scratch);
  }
}
