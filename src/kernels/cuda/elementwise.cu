// Fills, conversions, sums of rows, and dropout by counter, with the element numbers of the CPU.
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

void sum_rows(CudaBackend& gpu, const ops::SumRows& op) {
  const std::int64_t width = op.row.numel();
  by_type_of(op.x, [&]<class T>(T) {
    const T* const x = op.x.data<T>();
    sum_columns<1, float, T>(gpu, op.rows(), width, sums_packs<float, T>(width, x), Elements<T>{x},
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
         run(std::int64_t{}, float{}) || run(std::int32_t{}, float{}) || run(std::uint8_t{}, float{});
}

namespace {

struct Keep {
  Random random;
  float p;
  float factor;  // 1 / (1 - p)

  __device__ float apply(float x, std::uint32_t word) const {
    return Random::to_uniform(word) >= p ? x * factor : 0.0f;
  }
};

/// Four elements are one Philox block.
template <class T>
struct DropPack {
  std::int64_t count;
  Keep keep;
  const T* x;
  T* y;
  __device__ void operator()(std::int64_t i) const {
    const auto words = keep.random.block(static_cast<std::uint64_t>(i));
    if (4 * i + 4 <= count) {
      const Pack<T, 4> in = load_pack<T, 4>(x + 4 * i);
      Pack<T, 4> out;
      for (int lane = 0; lane < 4; ++lane)
        out.lane[lane] = rounded<T>(keep.apply(to_float(in.lane[lane]), words[lane]));
      store_pack(y + 4 * i, out);
    } else {
      for (std::int64_t lane = 0; 4 * i + lane < count; ++lane)
        y[4 * i + lane] = rounded<T>(keep.apply(to_float(x[4 * i + lane]), words[lane]));
    }
  }
};

/// Element by element; with channels last, elements keep their numbers in [N, C, H, W].
template <class T>
struct DropElement {
  Image image;
  Keep keep;
  const T* x;
  T* y;
  __device__ void operator()(std::int64_t i) const {
    const auto element = static_cast<std::uint64_t>(image.element_at(i).number);
    y[i] = rounded<T>(keep.apply(to_float(x[i]), keep.random.bits(element)));
  }
};

void dropout(CudaBackend& gpu, const ops::Dropout& op) {
  const std::int64_t count = op.x.stored_numel();
  if (op.p == 0.0f) return gpu.copy(op.x, op.y);
  const Launch on = gpu.launch();
  const Keep keep{Random(op.key), op.p, 1.0f / (1.0f - op.p)};
  by_type_of(op.x, [&]<class T>(T) {
    const T* const x = op.x.data<T>();
    T* const y = op.y.data<T>();
    if (op.x.channel_block() != 1) {
      for_elements(on, count, DropElement<T>{image_of(op.x), keep, x, y});
    } else if (packs_at(x, 4 * sizeof(T)) && packs_at(y, 4 * sizeof(T))) {
      for_elements(on, ceil_div(count, 4), DropPack<T>{count, keep, x, y});
    } else {
      for_elements(on, count, DropElement<T>{Image{.positions = count}, keep, x, y});
    }
  });
}

}  // namespace

void enter_elementwise(CudaBackend& gpu) {
  gpu.enter<&fill, &sum_rows>();
  gpu.enter<&dropout>();
}

}  // namespace lockstep::kernels
