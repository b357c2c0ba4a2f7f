// Device code that kernels share: 16-byte accesses, conversions, elementwise loops, and sums in a fixed
// order.
#pragma once

#include <cuda_bf16.h>

#include <algorithm>
#include <cstdint>

#include "kernels/cuda/kernels.h"
#include "lockstep/tensor/tensor.h"

template <>
inline constexpr lockstep::DType lockstep::dtype_of<__nv_bfloat16> = lockstep::DType::bfloat16;

namespace lockstep::kernels {

using BF16 = __nv_bfloat16;

/// Calls body(a float or a BF16), by the element type.
template <class Body>
void by_dtype(DType dtype, const Body& body) {
  if (dtype == DType::bfloat16) {
    body(BF16{});
  } else {
    body(float{});
  }
}

template <class Body>
void by_type_of(const Tensor& tensor, const Body& body) {
  by_dtype(tensor.dtype(), body);
}

/// An activation [N, C, positions], plain, or with its channels last ([N, positions, C]).
struct Image {
  std::int64_t images = 1, channels = 1, positions = 1;
  bool channels_last = false;

  struct Element {
    std::int64_t number, channel;  ///< number: in [N, C, positions]
  };
  /// The element stored at an address.
  constexpr Element element_at(std::int64_t at) const {
    if (!channels_last) return {at, at / positions % channels};
    const std::int64_t channel = at % channels, position = at / channels % positions;
    return {(at / (channels * positions) * channels + channel) * positions + position, channel};
  }
};

/// The image of [N, C, H, W], of [N, C, D, H, W], or of [N, C], whose rows are the positions of one image.
inline Image image_of(const Tensor& tensor) {
  if (tensor.shape().rank() == 2) return {1, tensor.size(1), tensor.size(0), true};
  return {tensor.size(0), tensor.size(1), positions_of(tensor.shape()), tensor.channel_block() != 1};
}

/// The tensor's elements; null if it is absent.
template <class T>
T* data_or_null(const Tensor& tensor) {
  return tensor ? tensor.data<T>() : nullptr;
}

__device__ inline float to_float(float x) { return x; }
__device__ inline float to_float(BF16 x) { return __bfloat162float(x); }
__device__ inline double to_float(double x) { return x; }
__device__ inline float to_float(std::int64_t x) { return static_cast<float>(x); }
__device__ inline float to_float(std::int32_t x) { return static_cast<float>(x); }
__device__ inline float to_float(std::uint8_t x) { return static_cast<float>(x); }

/// Rounds to T: float, double or bf16.
template <class T, class From>
__device__ T rounded(From x) {
  if constexpr (sizeof(T) == 2) {
    return __float2bfloat16_rn(static_cast<float>(x));
  } else {
    return static_cast<T>(x);
  }
}

/// Width elements for one read or write; their address is a multiple of their size.
template <class T, int Width>
struct alignas(sizeof(T) * Width) Pack {
  T lane[Width];
};

template <class T, int Width>
__device__ Pack<T, Width> load_pack(const T* from) {
  return *reinterpret_cast<const Pack<T, Width>*>(from);
}

template <class T, int Width>
__device__ void store_pack(T* to, const Pack<T, Width>& pack) {
  *reinterpret_cast<Pack<T, Width>*>(to) = pack;
}

/// The number of elements of T in 16 bytes.
template <class T>
inline constexpr int pack_width = 16 / static_cast<int>(sizeof(T));

/// Loads Count elements, 16 bytes at a time; if there are that many bytes, they are aligned to 16.
template <int Count, class T>
__device__ Pack<T, Count> load_vector(const T* from) {
  constexpr int at_once = std::min(Count, pack_width<T>);
  Pack<T, Count> all;
#pragma unroll
  for (int i = 0; i < Count; i += at_once) {
    const auto some = load_pack<T, at_once>(from + i);
    for (int k = 0; k < at_once; ++k) all.lane[i + k] = some.lane[k];
  }
  return all;
}

/// Whether packs of `bytes` may begin at the address.
inline bool packs_at(const void* address, std::size_t bytes = 16) {
  return reinterpret_cast<std::uintptr_t>(address) % bytes == 0;
}

constexpr std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

/// The blocks for `threads` threads of work: at most enough to fill the device; then threads loop.
inline unsigned grid_for(std::int64_t threads, int block, const Launch& on) {
  const std::int64_t blocks = ceil_div(threads, block), max_blocks = std::int64_t{on.multiprocessors} * 16;
  return static_cast<unsigned>(blocks < 1 ? 1 : blocks < max_blocks ? blocks : max_blocks);
}

__device__ inline std::int64_t global_thread() {
  return static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
}
__device__ inline std::int64_t global_threads() { return static_cast<std::int64_t>(gridDim.x) * blockDim.x; }

// An operation in parts (Backend::run_parts) has one more dimension of its grids, z: a block works on one
// part. Arguments of kernels, and so the division of work, are those of part 0: operands that are not shared
// begin part_number() times their elements further on.

/// The part of an operation on which a block works.
__device__ inline unsigned part_number() { return blockIdx.z; }
/// The grid of one part, once for each part.
inline dim3 for_parts(dim3 grid, int parts) {
  grid.z = static_cast<unsigned>(parts);
  return grid;
}

template <class Element>
__global__ void __launch_bounds__(256) run_elements(std::int64_t count, Element element) {
  for (std::int64_t i = global_thread(); i < count; i += global_threads()) element(i);
}

/// Calls element(i) for each i below count, in one thread each, in every part. Few elements with much work
/// need small blocks.
template <class Element>
void for_elements(const Launch& on, std::int64_t count, const Element& element, int block = 256,
                  int parts = 1) {
  if (count > 0)
    run_elements<<<for_parts(grid_for(count, block, on), parts), block, 0, on.stream>>>(count, element);
}

template <int count>
using Width = std::integral_constant<int, count>;

/// Calls body(elements per read and write): those in 16 bytes, or one if packs are not possible.
template <class T, class Body>
void with_width(bool packs, const Body& body) {
  packs ? body(Width<pack_width<T>>{}) : body(Width<1>{});
}

/// A grid of rows and packs of columns, for kernels that loop over both: enough rows at once to fill the
/// device. A block has enough rows to fill it, so that no lane of a warp idles if rows are short.
struct RowGrid {
  dim3 grid, block;

  RowGrid(const Launch& on, std::int64_t rows, std::int64_t columns, std::int64_t max_across) {
    constexpr std::int64_t max_down = 65535, threads = 256;
    const std::int64_t x = std::clamp<std::int64_t>(columns, 1, threads), y = threads / x;
    const std::int64_t across = std::min(ceil_div(columns, x), max_across);
    const std::int64_t blocks_to_fill = ceil_div(std::int64_t{on.multiprocessors} * 2048, across * x * y);
    block = dim3(static_cast<unsigned>(x), static_cast<unsigned>(y));
    grid = dim3(static_cast<unsigned>(across),
                static_cast<unsigned>(std::min({ceil_div(rows, y), blocks_to_fill, max_down})));
  }
};

/// The rows of a thread of a RowGrid: first_row(), then every row_stride().
__device__ inline std::int64_t first_row() {
  return static_cast<std::int64_t>(blockIdx.y) * blockDim.y + threadIdx.y;
}
__device__ inline std::int64_t rows_apart() { return static_cast<std::int64_t>(gridDim.y) * blockDim.y; }

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

/// Joins the x of all lanes of a warp in a fixed order; every lane gets the result.
template <class T, class Join>
__device__ T warp_join(T x, const Join& join) {
  for (int offset = 16; offset > 0; offset /= 2) x = join(x, __shfl_xor_sync(0xffffffffu, x, offset));
  return x;
}

template <class T>
__device__ T warp_sum(T x) {
  return warp_join(x, [](T a, T b) { return a + b; });
}
__device__ inline float warp_max(float x) {
  return warp_join(x, [](float a, float b) { return fmaxf(a, b); });
}

/// Joins the x of a block of up to 1024 threads, a multiple of 32; every thread gets the result. All threads
/// of the block must call it. shared: shared memory for 32 elements, free again after the call. none: the
/// neutral element of join.
template <class T, class Join>
__device__ T block_join(T x, T none, T* shared, const Join& join) {
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  x = warp_join(x, join);
  if (lane == 0) shared[warp] = x;
  __syncthreads();
  const T total = warp_join(lane < static_cast<int>(blockDim.x) / 32 ? shared[lane] : none, join);
  __syncthreads();
  return total;
}

template <class T>
__device__ T block_sum(T x, T* shared) {
  return block_join(x, T(0), shared, [](T a, T b) { return a + b; });
}

}  // namespace lockstep::kernels
