// Numbers as small whole ones, with a scale for each 32 of them.
//
// For whole numbers q the best scale is Σ x·q / Σ q², which leaves Σ x² - (Σ x·q)² / Σ q². Of the q
// that several first scales round to, those are taken that leave least: quantise.py has the same in
// torch's operators.

#pragma once

#include "vectors.h"

static const long GROUP = 32;
static const float STEPS[] = {-0.9f, -0.6f, -0.3f, 0.0f, 0.3f, 0.6f, 0.9f};
static const float OF_BYTES[] = {1.0f};  // ±127
static const float ROUNDING = 0x1.8p23f;  // adding it leaves no bits behind the point

// As many groups as there are lanes, a group in each: x[i] has the numbers at place i.
struct Groups {
  lanes x[GROUP], most;

  // q: the numbers times each group's factor as whole ones from -most to most - 1. Returns the
  // scales that suit these best, and what they gain.
  struct Fit {
    lanes scale, gain;
  };
  Fit rounded(lanes factor, lanes *q) const {
    lanes product = {}, square = {}, low = -most, high = most - 1, one = high - high + 1;
    for (long i = 0; i < GROUP; i++) {
      lanes y = x[i] * factor + ROUNDING - ROUNDING;
      y = y < low ? low : y;
      y = y > high ? high : y;
      q[i] = y;
      product += x[i] * y;
      square += y * y;
    }
    square = square < one ? one : square;
    return {product / square, product * (product / square)};
  }

  lanes extreme() const {
    lanes found = {}, size = {};
    for (long i = 0; i < GROUP; i++) {
      lanes own = x[i] < 0 ? -x[i] : x[i];
      found = own > size ? x[i] : found;
      size = own > size ? own : size;
    }
    return found;
  }

  // The scales, and their whole numbers; where a number is none, neither is the scale.
  lanes quantised(const float *steps, long many, lanes *q) const {
    lanes found = extreme(), zero = {}, size = found < 0 ? -found : found;
    lanes inverse = size > zero + 1e-30f ? 1 / found : zero, best = zero - 1, factor = zero;
    for (long i = 0; i < many; i++) {
      lanes trial = inverse * (steps[i] - most), gain = rounded(trial, q).gain;
      factor = gain > best ? trial : factor;
      best = gain > best ? gain : best;
    }
    return rounded(factor, q).scale;
  }
};

// `count` groups, at most as many as there are lanes.
static void quantise_groups(const float *x, int8_t *whole, float *scales, long count, long most) {
  Groups groups = {};
  groups.most += (float)most;
  for (long g = 0; g < count; g++)
    for (long i = 0; i < GROUP; i++) groups.x[i][g] = x[g * GROUP + i];
  lanes q[GROUP];
  bool bytes = most == 128;
  lanes found = groups.quantised(bytes ? OF_BYTES : STEPS, bytes ? 1 : 7, q);
  for (long g = 0; g < count; g++) {
    scales[g] = found[g];
    for (long i = 0; i < GROUP; i++) {
      float y = q[i][g];
      whole[g * GROUP + i] = y == y ? (int8_t)y : 0;
    }
  }
}
