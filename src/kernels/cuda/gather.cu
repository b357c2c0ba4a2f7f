// Elements of an axis by number, and their gradient, summed in the order of the indices: uses are sorted by
// what they name (stably), and a thread sums those of one element.
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/device_code.cuh"
#include "kernels/cuda/error.h"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/sorted_uses.h"
#include "lockstep/ops/gather.h"

namespace lockstep::kernels {
namespace {

constexpr int block = 256;

template <class T>
__global__ void __launch_bounds__(block)
    gather_elements(ops::GatherSizes sizes, const T* x, const std::int64_t* indices, T* y) {
  const std::int64_t count = sizes.outer * sizes.taken * sizes.inner;
  for (std::int64_t e = global_thread(); e < count; e += global_threads()) {
    const std::int64_t row = e / sizes.inner, column = e % sizes.inner;
    const std::int64_t index = indices[sizes.by_element ? e : row % sizes.taken];
    const bool there = index >= 0 && index < sizes.extent;
    y[e] = there ? x[(row / sizes.taken * sizes.extent + index) * sizes.inner + column] : rounded<T>(0.0f);
  }
}

/// What a use names: a place of the axis, or, by_element, an element of dx. Indices outside name what is not
/// there.
__global__ void __launch_bounds__(block)
    name_uses(ops::GatherSizes sizes, const std::int64_t* indices, std::int64_t uses, std::int64_t named,
              std::int32_t* names, std::int32_t* numbers) {
  for (std::int64_t e = global_thread(); e < uses; e += global_threads()) {
    const std::int64_t index = indices[e];
    std::int64_t name = index;
    if (sizes.by_element)
      name = (e / (sizes.inner * sizes.taken) * sizes.extent + index) * sizes.inner + e % sizes.inner;
    names[e] = static_cast<std::int32_t>(index >= 0 && index < sizes.extent ? name : named);
    numbers[e] = static_cast<std::int32_t>(e);
  }
}

/// A thread for each use that is the first of its name, and, if not by_element, for each column of [outer,
/// inner].
template <class T>
__global__ void __launch_bounds__(block)
    sum_uses(ops::GatherSizes sizes, const std::int32_t* names, const std::int32_t* numbers,
             std::int64_t uses, std::int64_t named, const T* dy, T* dx) {
  const std::int64_t columns = sizes.by_element ? 1 : sizes.outer * sizes.inner;
  for (std::int64_t e = global_thread(); e < uses * columns; e += global_threads()) {
    const std::int64_t first = e / columns, column = e % columns, name = names[first];
    if (name >= named || (first > 0 && names[first - 1] == name)) continue;
    const std::int64_t o = column / sizes.inner, c = column % sizes.inner;
    const auto place = [&](std::int64_t extent, std::int64_t row) {
      return sizes.by_element ? row : (o * extent + row) * sizes.inner + c;
    };
    float sum = 0;
    for (std::int64_t i = first; i < uses && names[i] == name; ++i)
      sum += to_float(dy[place(sizes.taken, numbers[i])]);
    dx[place(sizes.extent, name)] = rounded<T>(sum);
  }
}

void gather(CudaBackend& gpu, const ops::Gather& op) {
  const ops::GatherSizes sizes = op.sizes();
  const Launch on = gpu.launch();
  check_data(on, op.indices, sizes.extent, nullptr, DataFault::index_outside, op.name, gpu.fault());
  if (op.y.numel() == 0) return;
  by_type_of(op.x, [&]<class T>(T) {
    gather_elements<<<grid_for(op.y.numel(), block, on), block, 0, on.stream>>>(
        sizes, static_cast<const T*>(op.x.data<T>()), op.indices.data<std::int64_t>(), op.y.data<T>());
  });
}

void gather_backward(CudaBackend& gpu, const ops::GatherBackward& op) {
  const ops::GatherSizes sizes = op.sizes();
  const std::int64_t uses = op.indices.numel(), named = sizes.by_element ? op.dx.numel() : sizes.extent;
  SortedUses sorted(gpu, op.name, uses, named);
  const Launch on = gpu.launch();
  check(cudaMemsetAsync(op.dx.raw(), 0, op.dx.bytes(), on.stream), "cudaMemsetAsync", gpu.device().index);
  if (op.dy.numel() == 0) return;
  name_uses<<<grid_for(uses, block, on), block, 0, on.stream>>>(sizes, op.indices.data<std::int64_t>(), uses,
                                                                named, sorted.rows(), sorted.numbers());
  sorted.sort();
  by_type_of(op.dy, [&]<class T>(T) {
    sum_uses<<<grid_for(op.dy.numel(), block, on), block, 0, on.stream>>>(
        sizes, sorted.sorted_rows(), sorted.sorted_numbers(), uses, named,
        static_cast<const T*>(op.dy.data<T>()), op.dx.data<T>());
  });
}

}  // namespace

void enter_gather(CudaBackend& gpu) {
  gpu.enter<&gather>();
  gpu.enter<&gather_backward>();
}

}  // namespace lockstep::kernels
