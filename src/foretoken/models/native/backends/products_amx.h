// Products of blocks with many rows by matrix tiles (AMX), where the CPU has them: for prompts.
//
// A stretch of a panel is unpacked once into whole numbers of 8 bits, which are used by all tiles
// of rows. Whole numbers are exact whoever adds them, and scales are applied in the same order and
// by the same operations as in `products_blocks.h`, so that a row has the same bits by either way.
// The next products are made while these are scaled: what a tile has just stored can't be read at
// once.

#pragma once

// The rows from which on tiles are faster: blocks of 256 have more scales to unpack.
static constexpr long tiled_rows(int format) { return KINDS[format].group == 8 ? 48 : 32; }

#if LANES == 16 && defined(__AMX_INT8__) && defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#define HAS_TILES 1

// The system has to be asked before a process may use them.
static bool tiles_permitted() {
  const long request = 0x1023, data = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
  static const bool permitted = syscall(SYS_arch_prctl, request, data) == 0;
  return permitted;
}

// Tiles, two of each. Compilers want their numbers as they are written in the source.
#define PRODUCTS 0
#define MORE_PRODUCTS 1
#define NUMBERS 2
#define MORE_NUMBERS 3
#define WEIGHTS 4
#define MORE_WEIGHTS 5

// 16 rows of one block, or of half of one: rows in NUMBERS, four inputs of each output in a row of
// WEIGHTS.
template <int F>
static void configure_tiles() {
  struct {
    uint8_t palette, start, reserved[14];
    uint16_t bytes[16];
    uint8_t rows[16];
  } __attribute__((aligned(64))) config = {};
  const int inputs = KINDS[F].halves ? 16 : 32;
  config.palette = 1;
  for (int more = 0; more < 2; more++) {
    config.bytes[PRODUCTS + more] = 64, config.rows[PRODUCTS + more] = 16;
    config.bytes[NUMBERS + more] = inputs, config.rows[NUMBERS + more] = 16;
    config.bytes[WEIGHTS + more] = 64, config.rows[WEIGHTS + more] = inputs / 4;
  }
  _tile_loadconfig(&config);
}

// A stretch of a panel, unpacked. Of each block: numbers as tiles want them, and `scales_of` it.
struct Stage {
  static const int BLOCKS_AT_MOST = STRETCH / BLOCK;
  alignas(64) int8_t numbers[BLOCKS_AT_MOST][8 * 64];
  alignas(64) float scales[BLOCKS_AT_MOST][LANES], others[BLOCKS_AT_MOST][LANES];

  template <int F>
  void take(const uint8_t *w, long units) {
    int at = 0;
    for (long u = 0; u < units; u++, w += unit(F))
      for (int b = 0; b < KINDS[F].group; b++, at++) {
        const uint8_t *q = w + LANES * KINDS[F].head + b * quants(F);
        Floats scale, other;
        scales_of<F>(w, b, scale, other);
        _mm512_store_ps(scales[at], scale);
        _mm512_store_ps(others[at], other);
        for (int j = 0; j < 8; j++) {
          Bytes signed_ = _mm512_sub_epi8(weights_at<F>(q, j), _mm512_set1_epi8(KINDS[F].offset));
          _mm512_store_si512(numbers[at] + 64 * j, signed_);
        }
      }
  }
};

// Products of the tile's rows with two blocks, or with the halves of one: [which][row][output].
struct Dots {
  alignas(64) int32_t of[2][16][16];
};

template <int F>
static inline void dots_of(const int8_t *weights, const int8_t *numbers, long rows, Dots &dots) {
  const bool halves = KINDS[F].halves;
  _tile_zero(PRODUCTS);
  _tile_loadd(NUMBERS, numbers, 32);
  _tile_loadd(WEIGHTS, weights, 64);
  _tile_dpbssd(PRODUCTS, NUMBERS, WEIGHTS);
  _tile_zero(MORE_PRODUCTS);
  _tile_loadd(MORE_NUMBERS, numbers + (halves ? 16 : 32 * rows), 32);
  _tile_loadd(MORE_WEIGHTS, weights + (halves ? 4 : 8) * 64, 64);
  _tile_dpbssd(MORE_PRODUCTS, MORE_NUMBERS, MORE_WEIGHTS);
  _tile_stored(PRODUCTS, dots.of[0], 64);
  _tile_stored(MORE_PRODUCTS, dots.of[1], 64);
}

// sums[16] += one product times the rows' scales, times `scale`.
static inline void scaled(const int32_t (*dots)[16], const float *own, Floats scale, Floats *sums) {
#pragma GCC unroll 16
  for (int r = 0; r < 16; r++) {
    Floats dot = _mm512_mul_ps(_mm512_cvtepi32_ps(bytes_at(dots[r])), _mm512_set1_ps(own[r]));
    sums[r] = _mm512_fmadd_ps(dot, scale, sums[r]);
  }
}

// sums[16] += `least` times the rows' sums.
static inline void shifted(const float *shifts, Floats least, Floats *sums) {
#pragma GCC unroll 16
  for (int r = 0; r < 16; r++)
    sums[r] = _mm512_fmadd_ps(_mm512_set1_ps(shifts[r]), least, sums[r]);
}

// y[rows of the tile][LANES] += x · w, of `blocks` blocks, an even number. Rows that the tile lacks
// are multiplied too, with whatever follows, and left out.
template <int F>
static void tiles_times(const Stage &w, const Tile &x, float *y, long apart, int blocks) {
  const int step = KINDS[F].halves ? 1 : 2;  // blocks at a time
  Dots dots[2];
  Floats sums[16];
#pragma GCC unroll 16
  for (int r = 0; r < 16; r++)
    sums[r] = r < x.rows ? (Floats)loaded(y + r * apart) : _mm512_setzero_ps();
  dots_of<F>(w.numbers[0], x.numbers, x.rows, dots[0]);
  for (int b = 0; b < blocks; b += step) {
    int next = b + step;
    const Dots &d = dots[b / step % 2];
    if (next < blocks)
      dots_of<F>(w.numbers[next], x.numbers + 32 * next * x.rows, x.rows, dots[next / step % 2]);
#pragma GCC unroll 2
    for (int i = 0; i < 2; i++) {
      int at = KINDS[F].halves ? b : b + i;
      Floats scale = _mm512_load_ps(KINDS[F].halves && i ? w.others[at] : w.scales[at]);
      scaled(d.of[i], x.scales + at * x.rows, scale, sums);
      if (KINDS[F].least)
        shifted(x.shifts + at * x.rows, _mm512_load_ps(w.others[at]), sums);
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < 16; r++)
    if (r < x.rows) at(y + r * apart) = (lanes)sums[r];
}

// y [M][N] = x wᵀ of a share of the panels of WIDTH columns.
template <int F>
static void panels_by_tiles(const Quantised &x, const Matrix &m, float *y, long M, long first,
                            long end) {
  static thread_local Stage stage;
  const int group = KINDS[F].group, most = Stage::BLOCKS_AT_MOST / group;
  long all = units(F, m.K);
  configure_tiles<F>();
  for (long p = 2 * first; p < 2 * end; p++) {
    const uint8_t *w = (const uint8_t *)m.weights + p * all * unit(F);
    for (long i = 0; i < M; i++) at(y + i * m.N + p * LANES) = lanes{};
    for (long u = 0; u < all; u += most) {
      long count = all - u < most ? all - u : most, row = 0;
      stage.take<F>(w + u * unit(F), count);
      for (const Tile &tile : x.tiles) {
        tiles_times<F>(stage, tile.from(u * group), y + row * m.N + p * LANES, m.N, count * group);
        row += tile.rows;
      }
    }
  }
  _tile_release();
}

#else
#define HAS_TILES 0
static bool tiles_permitted() { return false; }
template <int F>
static void panels_by_tiles(const Quantised &, const Matrix &, float *, long, long, long) {}
#endif
