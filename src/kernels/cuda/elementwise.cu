// Fills, conversions, and sums of rows.
#include "kernels/cuda/column_sums.cuh"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/device_code.cuh"
#include "kernels/cuda/kernels.h"
#include "lockstep/ops/elementwise.h"

namespace lockstep::kernels {
namespace {

template <class T>
struct Filled {
  T value;
  T* to;
  __device__ void operator()(std::int64_t i) const { to[i] = value; }
};

template <class T>
void fill_with(const Launch& on, const Tensor& to, T value) {
  for_elements(on, to.stored_numel(), Filled<T>{value, to.data<T>()});
}

void fill(CudaBackend& gpu, const ops::Fill& op) {
  const Launch on = gpu.launch();
  switch (op.to.dtype()) {
    case DType::float32:
      return fill_with(on, op.to, static_cast<float>(op.value));
    case DType::float64:
      return fill_with(on, op.to, op.value);
    case DType::bfloat16:
      return fill_with(on, op.to, __float2bfloat16_rn(static_cast<float>(op.value)));
    case DType::int64:
      return fill_with(on, op.to, static_cast<std::int64_t>(op.value));
    case DType::int32:
      return fill_with(on, op.to, static_cast<std::int32_t>(op.value));
    case DType::uint8:
      return fill_with(on, op.to, static_cast<std::uint8_t>(op.value));
    default:
      return;  // refused by the operation
  }
}

struct Same {
  template <class T>
  __device__ T operator()(T x) const {
    return x;
  }
};

void sum_rows(CudaBackend& gpu, const ops::SumRows& op, int parts) {
  const std::int64_t width = op.row.numel();
  by_type_of(op.x, [&]<class T>(T) {
    const T* const x = op.x.data<T>();
    sum_columns<1, float, T>(gpu, op.rows(), width, sums_packs<float, T>(width, x), Elements<T>{x},
                             IntoGradients<1>{{op.row.data<float>()}, op.accumulate}, parts);
  });
}

}  // namespace

void store(const Launch& on, std::uint64_t value, std::uint64_t* to) {
  for_elements(on, 1, Filled<std::uint64_t>{value, to});
}

bool convert(const Launch& on, const Tensor& from, const Tensor& to) {
  const auto run = [&]<class From, class To>(From, To) {
    if (from.dtype() != dtype_of<From> || to.dtype() != dtype_of<To>) return false;
    map_elementwise(on, from.stored_numel(), Same{}, to.data<To>(), from.data<From>());
    return true;
  };
  return run(float{}, BF16{}) || run(BF16{}, float{}) || run(double{}, float{}) ||
         run(std::int64_t{}, float{}) || run(std::int32_t{}, float{}) || run(std::uint8_t{}, float{});
}

void enter_elementwise(CudaBackend& gpu) {
  gpu.enter<&fill>();
  gpu.enter_at_once<&sum_rows>();
}

}  // namespace lockstep::kernels
