// The loops of a float32 pass on a CPU, as functions for Python.

#include <omp.h>

#include "dequantise.h"
#include "layers.h"
#include "pack.h"
#include "quantise.h"

extern "C" {
long width() { return WIDTH; }

// How many levels on either side of zero the rows have that INT8 matrices are multiplied with; 0
// where they can't be.
int int8_levels() { return INT8_LEVELS; }

// Whether blocks of GGUF files can be multiplied as they lie.
int has_blocks() { return HAS_BLOCKS; }

// Whether many rows are multiplied with blocks by matrix tiles: 1; 0 where these loops or the CPU
// have none; -1 where the system doesn't permit them.
int tiles() { return !HAS_TILES ? 0 : tiles_permitted() ? 1 : -1; }

// `bytes` of blocks of a format -> `values` numbers, float32 or (half) float16. Returns the largest
// magnitude, infinite where there is one or what is no number; -1, and does nothing, where the sizes
// don't agree.
float dequantise(const uint8_t *blocks, long bytes, void *to, long values, int format, int half,
                 int threads) {
  if (format < 0 || format >= MANY_FORMATS) return -1;
  const Format &f = FORMATS[format];
  long count = bytes / f.bytes;
  if (count * f.bytes != bytes || count * f.values != values) return -1;
  uint32_t most = half ? unpack(f, blocks, (uint16_t *)to, count, threads)
                       : unpack(f, blocks, (float *)to, count, threads);
  most = most < 0x7f800000 ? most : 0x7f800000;
  float largest;
  memcpy(&largest, &most, sizeof largest);
  return largest;
}

// x [groups, 32] -> whole numbers [groups, 32] from -most to most - 1, and scales [groups].
void quantise(const float *x, int8_t *whole, float *scales, long groups, long most, int threads) {
#pragma omp parallel for num_threads(threads)
  for (long g = 0; g < groups; g += LANES)
    quantise_groups(x + g * GROUP, whole + g * GROUP, scales + g,
                    groups - g < LANES ? groups - g : LANES, most);
}

// [N, K] of numbers of two or four bytes -> panels of WIDTH rows each, N filled up with zeros.
void pack(const void *rows, void *to, long N, long K, int size, int threads) {
  if (size == 2) pack_panels((const uint16_t *)rows, (uint16_t *)to, N, K, threads);
  if (size == 4) pack_panels((const float *)rows, (float *)to, N, K, threads);
}

// Bytes of the panels of an [N, K] of blocks of a format; 0 where it can't be multiplied here.
long laid_size(long N, long K, int format) {
  if (!HAS_BLOCKS || format < 0 || format >= MANY_FORMATS ) return 0;
  return (N + WIDTH - 1) / WIDTH * 2 * units(format, K) * unit(format);
}

// [N, K] as blocks of a format -> panels for `linear`.
void lay(const uint8_t *rows, uint8_t *to, long N, long K, int format, int threads) {
  lay_panels(format, rows, to, N, K, threads);
}

// Rows of an [N, K] of blocks in panels -> numbers [count, K].
void rows_of(const uint8_t *panels, const int64_t *rows, float *to, long count, long K,
             int format) {
  for (long i = 0; i < count; i++) row_of(format, panels, rows[i], K, to + i * K);
}

// x [M, K] -> y [M, N]
void linear(const float *x, const Matrix *m, float *y, long M, int threads) {
#pragma omp parallel for num_threads(threads)
  for (int i = 0; i < threads; i++) share(x, *m, y, M, 0, 0, i, threads);
}

// turned [B, T, H + 2K, W]: queries, keys, values. keys, values [slots, K, cells, W]: one layer of
// the cache, stored as `kind` says. Row b writes its T cells at `places` of slots[b], then looks at
// the first L of them.
// seen [B, T, L], or null where everything is. cap: of scores, 0 for none. -> out [B, T, H, W]. W
// is a multiple of WIDTH.
// Returns 1, and does nothing, where a slot or a place isn't in the cache.
int attend(const float *turned, void *keys, void *values, long kind, const int64_t *slots,
           const int64_t *places, const uint8_t *seen, float *out, long B, long T, long H, long K,
           long W, long L, long all_slots, long cells, float scale, float cap, int threads) {
  bool inside = H % K == 0 && W % WIDTH == 0 && 0 < L && L <= cells;
  for (long b = 0; b < B; b++) inside = inside && 0 <= slots[b] && slots[b] < all_slots;
  for (long i = 0; i < B * T; i++) inside = inside && 0 <= places[i] && places[i] < cells;
  if (!inside) return 1;
  Division rows(B, [T](long) { return T; }, K, H / K);
  Pass p = {turned, keys, values, kind, rows, slots, places, seen, out, H, K, W, L, cells, scale, cap};
  std::vector<Desk> desks = shared_desks(rows, L, threads);
#pragma omp parallel num_threads(threads)
  {
#pragma omp for
    for (long i = 0; i < B * T; i++) write(p, i);
    attend_all(p, desks);
  }
  return 0;
}

// The sub-layers from `first` on before `last`: 2i is the attention of layer i, 2i + 1 its
// feed-forward. Heads are of whole vectors, and those of a token fill whole panels.
// Returns 1, and does nothing, where the sizes or numbers that it is given don't agree.
int layers(const Whole *given, const Layer *stack, long first, long last, int threads) {
  const Whole &p = *given;
  long M = p.M, wide = 0, added = 0, heads = (p.H + 2 * p.K) * p.W;
  if (!inside(p)) return 1;
  for (long s = first; s < last; s++) {
    const Layer &layer = stack[s / 2];
    if (!fits(p, layer)) return 1;
    wide = layer.gate_up.N > wide ? layer.gate_up.N : wide;
    added = layer.out.N > added ? layer.out.N : added;
    added = layer.down.N > added ? layer.down.N : added;
  }
  Room room = {floats(M * p.D), floats(M * heads), floats(M * p.H * p.W), floats(M * wide),
               floats(M * p.F), floats(M * added), std::unique_ptr<int64_t[]>(new int64_t[M]),
               Division(p.B, [&p](long b) { return p.counts[b]; }, p.K, p.H / p.K), {}};
  room.desks = shared_desks(room.rows, p.L, threads);
  for (long i = 0; i < M; i++) {
    long b = room.rows.of[i], place = p.starts[b] + i - room.rows.begins[b];
    room.places[i] = place < p.limit ? place : p.limit - 1;
  }
#pragma omp parallel num_threads(threads)
  {
    long who = omp_get_thread_num(), of = omp_get_num_threads();
    for (long s = first; s < last; s++)
      if (s % 2 == 0)
        attention(p, stack[s / 2], s / 2, room, who, of);
      else
        feed_forward(p, stack[s / 2], room, who, of);
  }
  return 0;
}
}
