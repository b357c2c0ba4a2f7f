// Rotary positions: a thread has a pair of one position, in some of all heads, so that angles are made
// seldom.
#include "lockstep/ops/rotary.h"

#include <algorithm>
#include <cmath>

#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/device_code.cuh"

namespace lockstep::kernels {
namespace {

constexpr int block = 256;

/// Pair i is (x[i * step], x[i * step + apart]). sign: of the angles.
struct Pairs {
  std::int64_t heads, time, width, step, apart;
  double log2_base, first_position;
  float sign;
};

template <class T>
__global__ void __launch_bounds__(block) turn(Pairs p, const T* x, T* y) {
  const std::int64_t pairs = p.width / 2;
  for (std::int64_t number = global_thread(); number < p.time * pairs; number += global_threads()) {
    const std::int64_t t = number / pairs, i = number % pairs;
    const ops::Turn by = ops::turned_by((p.first_position + static_cast<double>(t)) *
                                        ops::turns_per_position(p.log2_base, i, p.width));
    const float cosine = by.cosine, sine = p.sign * by.sine;
    for (std::int64_t head = blockIdx.y; head < p.heads; head += gridDim.y) {
      const std::int64_t first = (head * p.time + t) * p.width + i * p.step, second = first + p.apart;
      const float a = to_float(x[first]), b = to_float(x[second]);
      y[first] = rounded<T>(a * cosine - b * sine);
      y[second] = rounded<T>(b * cosine + a * sine);
    }
  }
}

void rotary(CudaBackend& gpu, const ops::Rotary& op) {
  if (op.x.numel() == 0) return;
  const bool halves = op.layout == ops::RotaryLayout::halves;
  const std::int64_t heads = op.x.size(0) * op.x.size(1), time = op.x.size(2), width = op.x.size(3);
  const Pairs pairs{heads,
                    time,
                    width,
                    halves ? 1 : 2,
                    halves ? width / 2 : 1,
                    std::log2(static_cast<double>(op.base)),
                    static_cast<double>(op.first_position),
                    op.back ? -1.0f : 1.0f};
  const Launch on = gpu.launch();
  const unsigned across = grid_for(time * width / 2, block, on);
  const auto most = static_cast<std::int64_t>(grid_for(op.x.numel() / 2, block, on));
  const auto down = static_cast<unsigned>(std::clamp<std::int64_t>(most / across, 1, heads));
  by_type_of(op.x, [&]<class T>(T) {
    turn<<<dim3(across, down), block, 0, on.stream>>>(pairs, op.x.data<T>(), op.y.data<T>());
  });
}

}  // namespace

void enter_rotary(CudaBackend& gpu) { gpu.enter<&rotary>(); }

}  // namespace lockstep::kernels
