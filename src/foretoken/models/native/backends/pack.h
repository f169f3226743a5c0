// A matrix's rows, reordered into panels.

#pragma once

#include "products.h"

// `count` rows of K numbers -> [K][WIDTH], filled up with zeros.
template <typename T>
static void pack_panel(const T *__restrict rows, long count, long K, T *__restrict to) {
  if (count == WIDTH) {
    for (long k = 0; k < K; k++)
      for (long w = 0; w < WIDTH; w++) to[k * WIDTH + w] = rows[w * K + k];
    return;
  }
  for (long k = 0; k < K; k++)
    for (long w = 0; w < WIDTH; w++) to[k * WIDTH + w] = w < count ? rows[w * K + k] : T();
}

template <typename T>
static void pack_panels(const T *rows, T *to, long N, long K, int threads) {
#pragma omp parallel for num_threads(threads)
  for (long n = 0; n < N; n += WIDTH)
    pack_panel(rows + n * K, N - n < WIDTH ? N - n : WIDTH, K, to + n * K);
}
