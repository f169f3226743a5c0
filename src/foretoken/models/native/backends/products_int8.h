// Products of int8 weights with rows that are quantised to 7 bits, one scale a row.
//
// AVX2 multiplies unsigned with signed bytes and adds pairs in 16 bits: 2 · 127 · 127 fits. So the
// weights lie in [-127, 127] and a row's numbers, shifted by ZERO, in [1, 127]. Sums are exact.

#ifdef __AVX2__
#define HAS_INT8 (LANES == 8)

static const int ZERO = 64, LEVELS = 63;

// x [M][K] -> levels [M][K filled up to fours] with `scales` [M]; a row of zeros has scale 0.
static void quantise(const float *x, uint8_t *levels, float *scales, long M, long K, long filled) {
  for (long m = 0; m < M; m++, x += K, levels += filled) {
    float most = 0;
    for (long k = 0; k < K; k++) most = fabsf(x[k]) > most ? fabsf(x[k]) : most;
    float factor = most > 1e-30f ? LEVELS / most : 0;
    for (long k = 0; k < K; k++) levels[k] = (uint8_t)(int32_t)(rintf(x[k] * factor) + ZERO);
    memset(levels + K, ZERO, filled - K);
    scales[m] = factor > 0 ? most / LEVELS : 0;
  }
}

// sums[R][S·WIDTH] += rows of `x` times S panels, `count` times four inputs; see `block`.
template <int R, int S>
static void block_int8(const uint8_t *x, long apart, const int8_t *w, long between, int32_t *sums,
                       long count, const char *ahead, long step) {
  const long wide = S * WIDTH;
  __m256i a[R][2 * S], ones = _mm256_set1_epi16(1);
#pragma GCC unroll 8
  for (int r = 0; r < R; r++)
#pragma GCC unroll 8
    for (int s = 0; s < 2 * S; s++)
      a[r][s] = _mm256_loadu_si256((const __m256i *)(sums + r * wide + s * 8));
  for (long k = 0; k < count; k++, w += 4 * WIDTH, ahead += step) {
    if (S == 1) __builtin_prefetch(ahead);
#pragma GCC unroll 8
    for (int s = 0; s < 2 * S; s++) {
      const int8_t *from = w + s / 2 * between + s % 2 * 32;
      __m256i own = _mm256_loadu_si256((const __m256i *)from);
      __asm__("" : "+x"(own));  // as in `block`
#pragma GCC unroll 8
      for (int r = 0; r < R; r++) {
        int32_t four;
        memcpy(&four, x + r * apart + 4 * k, 4);
        __m256i pairs = _mm256_maddubs_epi16(_mm256_set1_epi32(four), own);
        a[r][s] = _mm256_add_epi32(a[r][s], _mm256_madd_epi16(pairs, ones));
      }
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; r++)
#pragma GCC unroll 8
    for (int s = 0; s < 2 * S; s++)
      _mm256_storeu_si256((__m256i *)(sums + r * wide + s * 8), a[r][s]);
}

static void (*const blocks_int8[])(const uint8_t *, long, const int8_t *, long, int32_t *, long,
                                   const char *, long) = {
    0, block_int8<1, 1>, block_int8<2, 1>, block_int8<3, 1>, block_int8<4, 1>};

// y of M rows and the `columns` outputs from n on.
static void store_int8(const int32_t *sums, const float *scales, const Matrix &m, float *y, long M,
                       long n, long columns) {
  for (long i = 0; i < M; i++)
    for (long c = 0; c < columns; c++)
      y[i * m.N + n + c] = (sums[i * columns + c] - m.shifts[n + c]) * (m.scales[n + c] * scales[i]);
}

// Up to MANY rows and one panel, four rows at a time.
static void many_int8(const uint8_t *x, const float *scales, const Matrix &m, float *y, long M,
                      long p, long fours) {
  int32_t sums[MANY * WIDTH];
  memset(sums, 0, 4 * M * WIDTH);
  const int8_t *w = (const int8_t *)m.weights + 4 * p * fours * WIDTH;
  long groups = (M + 3) / 4, step = 4 * WIDTH / groups;
  for (long k = 0; k < fours; k += CHUNK, w += 4 * CHUNK * WIDTH) {
    long count = fours - k < CHUNK ? fours - k : CHUNK, done = 0;
    const char *ahead = (const char *)w + 4 * CHUNK * WIDTH;
    for (long left = groups; left > 0; left--, ahead += count * step) {
      long rows = (M - done + left - 1) / left;
      blocks_int8[rows](x + done * 4 * fours + 4 * k, 4 * fours, w, 0, sums + done * WIDTH, count,
                        ahead, step);
      done += rows;
    }
  }
  store_int8(sums, scales, m, y, M, p * WIDTH, WIDTH);
}

template <int R, int S>
static void few_int8(const uint8_t *x, const float *scales, const Matrix &m, float *y, long p,
                     long fours) {
  int32_t sums[R * S * WIDTH] = {0};
  const int8_t *w = (const int8_t *)m.weights + 4 * p * fours * WIDTH;
  block_int8<R, S>(x, 4 * fours, w, 4 * fours * WIDTH, sums, fours, 0, 0);
  store_int8(sums, scales, m, y, R, p * WIDTH, S * WIDTH);
}

static void panels_int8(const float *x, const Matrix &m, float *y, long M, long first, long end) {
  long fours = (m.K + 3) / 4;
  std::vector<uint8_t> levels(M * 4 * fours);
  std::vector<float> scales(M);
  quantise(x, levels.data(), scales.data(), M, m.K, 4 * fours);
  const uint8_t *q = levels.data();
  for (long p = first; p < end;) {
    long left = end - p;
    if (M == 1 && left >= 4) {
      few_int8<1, 4>(q, scales.data(), m, y, p, fours), p += 4;
    } else if (M == 2 && left >= 2) {
      few_int8<2, 2>(q, scales.data(), m, y, p, fours), p += 2;
    } else {
      for (long i = 0; i < M; i += MANY)
        many_int8(q + i * 4 * fours, scales.data() + i, m, y + i * m.N,
                  M - i < MANY ? M - i : MANY, p, fours);
      p++;
    }
  }
}

#else
#define HAS_INT8 0
static void panels_int8(const float *, const Matrix &, float *, long, long, long) {}
#endif
