// One element of the result from the elements of equal number: loops for that.
#pragma once

#include <algorithm>

#include "kernels/cuda/device_code.cuh"

namespace lockstep::kernels {

template <int Width, class Function, class To, class... From>
__device__ void map_pack(const Function& f, To* to, const Pack<From, Width>&... in) {
  Pack<To, Width> out;
  for (int lane = 0; lane < Width; ++lane) out.lane[lane] = rounded<To>(f(to_float(in.lane[lane])...));
  store_pack(to, out);
}

/// The first `packs` packs of `count` elements, then the rest one by one. `to` may be one of `from`.
template <int Width, class Function, class To, class... From>
__global__ void __launch_bounds__(256)
    map_elements(std::int64_t packs, std::int64_t count, Function f, To* to, const From*... from) {
  for (std::int64_t i = global_thread(); i < packs; i += global_threads()) {
    map_pack<Width>(f, to + i * Width, load_pack<From, Width>(from + i * Width)...);
  }
  for (std::int64_t i = packs * Width + global_thread(); i < count; i += global_threads()) {
    map_pack<1>(f, to + i, load_pack<From, 1>(from + i)...);
  }
}

/// to[i] = f(from[i]...), computed in float, or in double where an operand is double.
template <class Function, class To, class... From>
void map_elementwise(const Launch& on, std::int64_t count, const Function& f, To* to, const From*... from) {
  if (count == 0) return;
  constexpr int width = 16 / static_cast<int>(std::max({sizeof(To), sizeof(From)...}));
  constexpr int block = 256;
  const bool aligned =
      packs_at(to, width * sizeof(To)) && (true && ... && packs_at(from, width * sizeof(From)));
  const std::int64_t threads = aligned ? ceil_div(count, width) : count;
  map_elements<width><<<grid_for(threads, block, on), block, 0, on.stream>>>(aligned ? count / width : 0,
                                                                             count, f, to, from...);
}

}  // namespace lockstep::kernels
