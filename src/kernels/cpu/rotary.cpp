// Rotary positions: the angles of all positions once, then every row of every head by them.
#include "lockstep/ops/rotary.h"

#include <cmath>

#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/stored.h"

namespace lockstep::kernels {
namespace {

constexpr std::int64_t elements_per_thread = 8192;

/// Pair i is (x[i * step], x[i * step + apart]).
template <std::int64_t step, class E>
void turn_row(const E* x, std::int64_t apart, std::int64_t pairs, const float* cosines, const float* sines,
              E* y) {
#pragma GCC ivdep
  for (std::int64_t i = 0; i < pairs; ++i) {
    const float a = widened(x[i * step]), b = widened(x[i * step + apart]);
    put(y[i * step], a * cosines[i] - b * sines[i]);
    put(y[i * step + apart], b * cosines[i] + a * sines[i]);
  }
}

}  // namespace

void rotary(CpuBackend& cpu, const ops::Rotary& op) {
  const std::int64_t time = op.x.size(2), width = op.x.size(3), pairs = width / 2;
  if (op.x.numel() == 0) return;
  const Tensor table = cpu.scratch(2 * time * pairs);
  float *const cosines = table.data<float>(), *const sines = cosines + time * pairs;
  constexpr std::int64_t angles_per_thread = 512;
  parallel_items(cpu.threads(), pairs, angles_per_thread / time,
                 [=, log2_base = std::log2(static_cast<double>(op.base)),
                  first = static_cast<double>(op.first_position), back = op.back](std::int64_t i) {
                   const double turns = ops::turns_per_position(log2_base, i, width);
                   for (std::int64_t t = 0; t < time; ++t) {
                     const ops::Turn turn = ops::turned_by((first + static_cast<double>(t)) * turns);
                     cosines[t * pairs + i] = turn.cosine;
                     sines[t * pairs + i] = back ? -turn.sine : turn.sine;
                   }
                 });
  by_type_of(op.x, [&]<class E>(E) {
    const E* const x = op.x.data<E>();
    E* const y = op.y.data<E>();
    parallel_items(cpu.threads(), op.x.numel() / width, elements_per_thread / width,
                   [=, halves = op.layout == ops::RotaryLayout::halves](std::int64_t row) {
                     const std::int64_t at = row * width, angle = row % time * pairs;
                     if (halves)
                       turn_row<1>(x + at, pairs, pairs, cosines + angle, sines + angle, y + at);
                     else
                       turn_row<2>(x + at, 1, pairs, cosines + angle, sines + angle, y + at);
                   });
  });
}

void enter_rotary(CpuBackend& cpu) { cpu.enter<&rotary>(); }

}  // namespace lockstep::kernels
