// Fills, conversions, sums and multiples.
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/map.cuh"

namespace lockstep::kernels {
namespace {

template <class T>
__global__ void __launch_bounds__(256) fill_elements(std::int64_t count, T value, T* to) {
  for (std::int64_t i = global_thread(); i < count; i += global_threads()) to[i] = value;
}

template <class T>
void fill(const Launch& on, std::int64_t count, T value, void* to) {
  fill_elements<<<grid_for(count, 256, on), 256, 0, on.stream>>>(count, value, static_cast<T*>(to));
}

struct Same {
  template <class T>
  __device__ T operator()(T x) const {
    return x;
  }
};

struct Sum {
  __device__ float operator()(float a, float b) const { return a + b; }
  __device__ double operator()(double a, double b) const { return a + b; }
  __device__ float operator()(float a, double b) const { return a + static_cast<float>(b); }
};

struct Multiple {
  float factor;
  __device__ float operator()(float x) const { return factor * x; }
};

}  // namespace

void launch_fill(const Launch& on, DType dtype, void* to, std::int64_t count, double value) {
  if (count == 0) return;
  switch (dtype) {
    case DType::float32:
      fill(on, count, static_cast<float>(value), to);
      break;
    case DType::float64:
      fill(on, count, value, to);
      break;
    case DType::bfloat16:
      fill(on, count, __float2bfloat16_rn(static_cast<float>(value)), to);
      break;
    case DType::int64:
      fill(on, count, static_cast<std::int64_t>(value), to);
      break;
    case DType::int32:
      fill(on, count, static_cast<std::int32_t>(value), to);
      break;
    case DType::uint8:
      fill(on, count, static_cast<std::uint8_t>(value), to);
      break;
    case DType::float16:
      throw_not_built("fill", dtype);
  }
  check_launch("fill", on);
}

bool launch_convert(const Launch& on, DType from_type, const void* from, DType to_type, void* to,
                    std::int64_t count) {
  if (from_type == DType::float32 && to_type == DType::bfloat16) {
    map("copy", on, count, Same{}, static_cast<BF16*>(to), static_cast<const float*>(from));
  } else if (from_type == DType::bfloat16 && to_type == DType::float32) {
    map("copy", on, count, Same{}, static_cast<float*>(to), static_cast<const BF16*>(from));
  } else if (from_type == DType::float64 && to_type == DType::float32) {
    map("copy", on, count, Same{}, static_cast<float*>(to), static_cast<const double*>(from));
  } else {
    return false;
  }
  return true;
}

void launch_add(const Launch& on, DType dtype, const void* a, const void* b, void* y, std::int64_t count) {
  with_float_type<BF16>("add", dtype, [&]<class T>(T) {
    map("add", on, count, Sum{}, static_cast<T*>(y), static_cast<const T*>(a), static_cast<const T*>(b));
  });
}

void launch_scale(const Launch& on, DType dtype, const void* x, float factor, void* y, std::int64_t count) {
  with_float_type<BF16>("scale", dtype, [&]<class T>(T) {
    map("scale", on, count, Multiple{factor}, static_cast<T*>(y), static_cast<const T*>(x));
  });
}

bool launch_accumulate(const Launch& on, DType into_type, void* into, DType x_type, const void* x,
                       std::int64_t count) {
  const auto run = [&]<class Into, class X>(Into, X) {
    auto* const sum = static_cast<Into*>(into);
    map("accumulate", on, count, Sum{}, sum, static_cast<const Into*>(sum), static_cast<const X*>(x));
  };
  if (into_type == DType::float32 && x_type == DType::float32) {
    run(float{}, float{});
  } else if (into_type == DType::float64 && x_type == DType::float64) {
    run(double{}, double{});
  } else if (into_type == DType::float32 && x_type == DType::float64) {
    run(float{}, double{});
  } else {
    return false;
  }
  return true;
}

}  // namespace lockstep::kernels
