// The small transforms of Winograd's F(4 x 4, 3 x 3) on vectors of channels: Toom-Cook at the points 0, 5/8,
// -5/8, 3/2, -3/2 and infinity, whose rounding errors are half of those at 0, 1, -1, 2, -2 in the mean, and a
// quarter at most.
//
// With input matrix B^T [6 x 6], filter matrix G [6 x 3] and output matrix A^T [4 x 6]:
// y = A^T ((G g G^T) * (B^T d B)) A, with * element by element, correlates a 6 x 6 patch d with a 3 x 3
// kernel g.
#pragma once

#include "kernels/cpu/simd.h"

namespace lockstep::kernels::winograd {

inline constexpr int tile = 4;                     ///< outputs a side
inline constexpr int patch = 6;                    ///< inputs a side
inline constexpr int frequencies = patch * patch;  ///< products in place of 9 * 16 multiplications
inline constexpr float a = 0.625f, b = 1.5f;       ///< the points, both signs
inline constexpr float a2 = a * a, b2 = b * b, a3 = a2 * a, b3 = b2 * b;
inline constexpr float g0 = 1 / (a2 * b2), ga = 1 / (2 * a2 * (a2 - b2)), gb = 1 / (2 * b2 * (b2 - a2));

/// v = B^T d
template <class T>
inline void input(const T* d, T* v) {
  const T d0 = d[0], d1 = d[1], d2 = d[2], d3 = d[3], d4 = d[4], d5 = d[5];
  const T even_a = d4 - b2 * d2, odd_a = a * d3 - (a * b2) * d1;
  const T even_b = d4 - a2 * d2, odd_b = b * d3 - (b * a2) * d1;
  v[0] = (a2 * b2) * d0 - (a2 + b2) * d2 + d4;
  v[1] = even_a + odd_a;
  v[2] = even_a - odd_a;
  v[3] = even_b + odd_b;
  v[4] = even_b - odd_b;
  v[5] = (a2 * b2) * d1 - (a2 + b2) * d3 + d5;
}

/// y = A^T m
template <class T>
inline void output(const T* m, T* y) {
  const T sum_a = m[1] + m[2], difference_a = m[1] - m[2];
  const T sum_b = m[3] + m[4], difference_b = m[3] - m[4];
  y[0] = m[0] + sum_a + sum_b;
  y[1] = a * difference_a + b * difference_b;
  y[2] = a2 * sum_a + b2 * sum_b;
  y[3] = a3 * difference_a + b3 * difference_b + m[5];
}

/// z = A dy
template <class T>
inline void output_gradient(const T* y, T* z) {
  const T y0 = y[0], y1 = y[1], y2 = y[2], y3 = y[3];
  const T even_a = y0 + a2 * y2, odd_a = a * y1 + a3 * y3;
  const T even_b = y0 + b2 * y2, odd_b = b * y1 + b3 * y3;
  z[0] = y0;
  z[1] = even_a + odd_a;
  z[2] = even_a - odd_a;
  z[3] = even_b + odd_b;
  z[4] = even_b - odd_b;
  z[5] = y3;
}

/// u = G w
template <class T>
inline void filter(const T* w, T* u) {
  const T w0 = w[0], w1 = w[1], w2 = w[2];
  const T even_a = ga * w0 + (ga * a2) * w2, odd_a = (ga * a) * w1;
  const T even_b = gb * w0 + (gb * b2) * w2, odd_b = (gb * b) * w1;
  u[0] = g0 * w0;
  u[1] = even_a + odd_a;
  u[2] = even_a - odd_a;
  u[3] = even_b + odd_b;
  u[4] = even_b - odd_b;
  u[5] = w2;
}

/// w = G^T u
template <class T>
inline void filter_gradient(const T* u, T* w) {
  const T sum_a = u[1] + u[2], difference_a = u[1] - u[2];
  const T sum_b = u[3] + u[4], difference_b = u[3] - u[4];
  w[0] = g0 * u[0] + ga * sum_a + gb * sum_b;
  w[1] = (ga * a) * difference_a + (gb * b) * difference_b;
  w[2] = (ga * a2) * sum_a + (gb * b2) * sum_b + u[5];
}

}  // namespace lockstep::kernels::winograd
