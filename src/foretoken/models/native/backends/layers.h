// Whole layers: products and attention with all that lies between them, the threads meeting at
// barriers.

#pragma once

#include <memory>

#include "attention.h"

// The head norms and those of what a sub-layer adds may be null. mask, rope: which of the pass's
// masks and rotary tables the layer takes. gelu: the gate goes through it, else through silu.
struct Layer {
  const float *attention_norm, *q_norm, *k_norm, *attention_out_norm, *mlp_norm, *mlp_out_norm;
  Matrix qkv, out, gate_up, down;
  long mask, rope, gelu;
  float scale, cap;
};

// A pass through layers: states [M, D] are changed in place, M being the tokens of all B rows, one
// row after the other; row b has counts[b], written from cell starts[b] on. ropes, each [.., 2, W]:
// cosines, and sines of which the first half is negated, of `turns` positions. cache: keys and values
// of each layer, [slots, K, cells, W], stored as `kind` says. seen: masks [M, L].
struct Whole {
  float *states;
  void *const *cache;
  const float *const *ropes;
  const int64_t *positions, *slots, *starts, *counts;
  const uint8_t *const *seen;
  long B, M, D, H, K, W, F, L, all_slots, cells, limit, kind, turns;
  float eps;
};

// Whether a product takes K numbers and gives N, filled up to whole panels.
static bool sized(const Matrix &m, long N, long K) {
  long columns = 0;
  for (const Matrix *part = &m; part; part = part->rest) {
    if (part->K != K || part->N != m.N) return false;
    columns += part->columns;
  }
  return columns == m.N && m.N == (N + WIDTH - 1) / WIDTH * WIDTH;
}

// Whether a layer's products have the sizes of the pass.
static bool fits(const Whole &p, const Layer &layer) {
  return layer.qkv.N == (p.H + 2 * p.K) * p.W && sized(layer.qkv, layer.qkv.N, p.D) &&
         sized(layer.out, p.D, p.H * p.W) && sized(layer.gate_up, 2 * p.F, p.D) &&
         sized(layer.down, p.D, p.F);
}

// Whether all that a pass names by number is there.
static bool inside(const Whole &p) {
  bool there = p.H % p.K == 0 && 0 < p.L && p.L <= p.limit && p.limit <= p.cells;
  long tokens = 0;
  for (long b = 0; b < p.B; b++) {
    there = there && 0 <= p.slots[b] && p.slots[b] < p.all_slots && 0 <= p.starts[b] &&
            p.starts[b] <= p.limit && 0 <= p.counts[b] && p.counts[b] <= p.M;
    tokens += p.counts[b];
  }
  there = there && tokens == p.M;
  for (long i = 0; i < p.M; i++)
    there = there && 0 <= p.positions[i] && p.positions[i] < p.turns;
  return there;
}

struct Room {
  std::unique_ptr<float[]> normed, qkv, mixed, wide, active, added;
  std::unique_ptr<int64_t[]> places;
  Division rows;
  std::vector<Desk> desks;
};

static std::unique_ptr<float[]> floats(long count) {
  return std::unique_ptr<float[]>(new float[count]);  // nothing is filled in
}

// y = x · weight / sqrt(mean(x²) + eps), of D numbers.
static void norm(const float *x, const float *weight, float *y, long D, float eps) {
  lanes squares = lanes{};
  long d = 0;
  for (; d + LANES <= D; d += LANES) squares += loaded(x + d) * loaded(x + d);
  float sum = 0;
  for (long i = 0; i < LANES; i++) sum += squares[i];
  for (; d < D; d++) sum += x[d] * x[d];
  float factor = 1 / sqrtf(sum / D + eps);
  for (d = 0; d < D; d++) y[d] = x[d] * weight[d] * factor;
}

// x · cos + (x with its halves exchanged) · sin
static void rotate(float *x, const float *cosine, long W) {
  const float *sine = cosine + W;
  for (long d = 0, half = W / 2; d < half; d++) {
    float left = x[d], right = x[d + half];
    x[d] = left * cosine[d] + right * sine[d];
    x[d + half] = right * cosine[d + half] + left * sine[d + half];
  }
}

// gate · up / (1 + e^-x), x being the gate for silu; e^-|x| cannot overflow. gelu by tanh is
// gate · (1 + tanh(x / 2)) / 2 with this x = sqrt(8 / pi) · (gate + 0.044715 · gate³).
static inline lanes gated(lanes gate, lanes up, long gelu) {
  lanes x = gelu ? gate * 1.59576912f * (gate * gate * 0.044715f + 1.0f) : gate;
  lanes size = x > 0.0f ? x : -x, e = exponential(-size), one = lanes{} + 1.0f;
  return gate * (x > 0.0f ? one : e) / (e + 1.0f) * up;
}

static void activate(const float *gate, const float *up, float *y, long F, long gelu) {
  long f = 0;
  for (; f + LANES <= F; f += LANES) at(y + f) = gated(loaded(gate + f), loaded(up + f), gelu);
  for (; f < F; f++) y[f] = gated(lanes{} + gate[f], lanes{} + up[f], gelu)[0];
}

// Adds x wᵀ to the states, normed before where there is a norm for it; ends with all threads having
// done theirs.
static void add(const Whole &p, const float *x, const Matrix &w, const float *weight,
                const Room &room, long who, long of) {
  long M = p.M;
  share(x, w, room.added.get(), M, weight ? 0 : p.states, p.D, who, of);
#pragma omp barrier
  if (!weight) return;
#pragma omp for
  for (long i = 0; i < M; i++) {
    float *y = room.added.get() + i * w.N;
    norm(y, weight, y, p.D, p.eps);
    for (long d = 0; d < p.D; d++) p.states[i * p.D + d] += y[d];
  }
}

// One thread's share of a layer's attention; ends with all threads having done theirs.
static void attention(const Whole &p, const Layer &layer, long index, Room &room, long who, long of) {
  long M = p.M, row = layer.qkv.N;
#pragma omp for
  for (long i = 0; i < M; i++)
    norm(p.states + i * p.D, layer.attention_norm, room.normed.get() + i * p.D, p.D, p.eps);
  share(room.normed.get(), layer.qkv, room.qkv.get(), M, 0, 0, who, of);
#pragma omp barrier
  Pass pass = {room.qkv.get(), p.cache[2 * index], p.cache[2 * index + 1], p.kind, room.rows,
               p.slots, room.places.get(), p.seen[layer.mask], room.mixed.get(), p.H, p.K, p.W, p.L,
               p.cells, layer.scale, layer.cap};
#pragma omp for
  for (long i = 0; i < M; i++) {
    for (long head = 0; head < p.H + p.K; head++) {
      float *x = room.qkv.get() + i * row + head * p.W;
      const float *weight = head < p.H ? layer.q_norm : layer.k_norm;
      if (weight) norm(x, weight, x, p.W, p.eps);
      rotate(x, p.ropes[layer.rope] + p.positions[i] * 2 * p.W, p.W);
    }
    write(pass, i);
  }
  attend_all(pass, room.desks);
  add(p, room.mixed.get(), layer.out, layer.attention_out_norm, room, who, of);
}

// The same for a layer's feed-forward.
static void feed_forward(const Whole &p, const Layer &layer, const Room &room, long who, long of) {
  long M = p.M, row = layer.gate_up.N;
#pragma omp for
  for (long i = 0; i < M; i++)
    norm(p.states + i * p.D, layer.mlp_norm, room.normed.get() + i * p.D, p.D, p.eps);
  share(room.normed.get(), layer.gate_up, room.wide.get(), M, 0, 0, who, of);
#pragma omp barrier
  long first = p.F * who / of, count = p.F * (who + 1) / of - first;
  for (long i = 0; i < M; i++)
    activate(room.wide.get() + i * row + first, room.wide.get() + i * row + p.F + first,
             room.active.get() + i * p.F + first, count, layer.gelu);
#pragma omp barrier
  add(p, room.active.get(), layer.down, layer.mlp_out_norm, room, who, of);
}
