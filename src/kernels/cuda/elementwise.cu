// Fills, conversions, and sums of rows.
#include "lockstep/ops/elementwise.h"

#include "kernels/cuda/column_sums.cuh"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/map.cuh"

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

template <class T>
struct Element {
  const T* x;
  std::int64_t width;
  __device__ void operator()(std::int64_t row, std::int64_t column, float* totals) const {
    totals[0] += to_float(x[row * width + column]);
  }
};

void sum_rows(CudaBackend& gpu, const ops::SumRows& op) {
  const std::int64_t width = op.row.numel();
  by_type_of(op.x, [&]<class T>(T) {
    sum_columns<1, float>(gpu, op.rows(), width, Element<T>{op.x.data<T>(), width},
                          IntoGradients<1>{{op.row.data<float>()}, op.accumulate});
  });
}

}  // namespace

bool convert(const Launch& on, const Tensor& from, const Tensor& to) {
  const auto run = [&]<class From, class To>(From, To) {
    if (from.dtype() != dtype_of<From> || to.dtype() != dtype_of<To>) return false;
    map_elementwise(on, from.stored_numel(), Same{}, to.data<To>(), from.data<From>());
    return true;
  };
  return run(float{}, BF16{}) || run(BF16{}, float{}) || run(double{}, float{}) ||
         run(std::int64_t{}, float{}) || run(std::uint8_t{}, float{});
}

void enter_elementwise(CudaBackend& gpu) { gpu.enter<&fill, &sum_rows>(); }

}  // namespace lockstep::kernels
