// Batch norm's passes over the activations, given sums per channel.
#include "lockstep/ops/batch_norm.h"

#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/device_code.cuh"
#include "kernels/cuda/image.h"
#include "kernels/cuda/kernels.h"

namespace lockstep::kernels {
namespace {

/// The image as a matrix whose rows have one channel each (channels first), or whose columns have.
struct Matrix {
  std::int64_t rows, width, channels;
  bool channels_last;

  explicit Matrix(const Image& image)
      : rows(image.channels_last ? image.images * image.places : image.images * image.channels),
        width(image.channels_last ? image.channels : image.places),
        channels(image.channels),
        channels_last(image.channels_last) {}
};

struct Normalise {
  const float *mean, *inv_std, *weight, *bias;

  struct Channel {
    float mean, factor, bias;
    __device__ float operator()(float x) const { return (x - mean) * factor + bias; }
  };
  __device__ Channel of(std::int64_t c) const {
    return {mean[c], weight ? inv_std[c] * weight[c] : inv_std[c], bias ? bias[c] : 0.0f};
  }
};

__device__ float relu(float x) { return x < 0.0f ? 0.0f : x; }  // NaN stays

struct NormaliseRelu {
  Normalise normalise;

  struct Channel {
    Normalise::Channel normalise;
    __device__ float operator()(float x) const { return relu(normalise(x)); }
    __device__ float operator()(float x, float shortcut) const { return relu(normalise(x) + shortcut); }
  };
  __device__ Channel of(std::int64_t c) const { return {normalise.of(c)}; }
};

struct Shift {
  const float* bias;

  struct Channel {
    float bias;
    __device__ float operator()(float x) const { return x + bias; }
  };
  __device__ Channel of(std::int64_t c) const { return {bias[c]}; }
};

struct InputGradient {
  const float *mean, *inv_std, *weight;
  const double *sums, *count;
  std::int64_t channels;

  struct Channel {
    float factor, mean, mean_dy, slope;
    __device__ float operator()(float dy, float x) const {
      return factor * ((dy - mean_dy) - (x - mean) * slope);
    }
  };
  __device__ Channel of(std::int64_t c) const {
    const float factor = weight ? inv_std[c] * weight[c] : inv_std[c];
    const double n = count ? *count : 0;
    if (n == 0) return {factor, mean[c], 0, 0};  // statistics that were constants
    return {factor, mean[c], static_cast<float>(sums[c] / n),
            static_cast<float>(sums[channels + c] / n * static_cast<double>(inv_std[c]))};
  }
};

/// Of what the ReLU behind a batch norm lets through.
struct ReluInputGradient {
  Normalise normalise;
  InputGradient gradient;

  struct Channel {
    Normalise::Channel normalise;
    InputGradient::Channel gradient;
    __device__ float operator()(float dy, float x) const {
      return gradient(dy * (normalise(x) > 0.0f ? 1.0f : 0.0f), x);
    }
  };
  __device__ Channel of(std::int64_t c) const { return {normalise.of(c), gradient.of(c)}; }
};

template <int Width, class Function, class T, class... From>
__device__ Pack<T, Width> lanes_of(const Function* f, int stride, const Pack<From, Width>&... in) {
  Pack<T, Width> out;
  for (int lane = 0; lane < Width; ++lane)
    out.lane[lane] = rounded<T>(f[lane * stride](to_float(in.lane[lane])...));
  return out;
}

/// y = f(from...), f depending on the channel. Width divides the matrix's. Threads keep their columns.
template <int Width, class Parameters, class T, class... From>
__global__ void __launch_bounds__(256)
    map_channels(Matrix matrix, Parameters parameters, T* y, const From*... from) {
  const std::int64_t packs = matrix.width / Width;
  for (std::int64_t i = global_thread(); i < packs; i += global_threads()) {
    const std::int64_t at = i * Width;
    typename Parameters::Channel channel[Width];
    if (matrix.channels_last) {
      for (int lane = 0; lane < Width; ++lane) channel[lane] = parameters.of(at + lane);
    }
    for (std::int64_t row = blockIdx.y; row < matrix.rows; row += gridDim.y) {
      const std::int64_t place = row * matrix.width + at;
      if (!matrix.channels_last) channel[0] = parameters.of(row % matrix.channels);
      store_pack(y + place,
                 lanes_of<Width, typename Parameters::Channel, T>(channel, matrix.channels_last ? 1 : 0,
                                                                  load_pack<From, Width>(from + place)...));
    }
  }
}

/// y = f(from...) by `parameters` of each channel, all of T.
template <class T, class Parameters, class... From>
void map_image(const Launch& on, const Parameters& parameters, const Tensor& y, const From&... from) {
  if (y.numel() == 0) return;
  const Matrix matrix(image_of(y));
  constexpr int packed = pack_width<T>;
  const bool packs = matrix.width % packed == 0 && packs_at(y.raw()) && (true && ... && packs_at(from.raw()));
  const std::int64_t columns = packs ? matrix.width / packed : matrix.width;
  const auto block = static_cast<unsigned>(columns < 256 ? ceil_div(columns, 32) * 32 : 256);
  const std::int64_t across = columns < 256 * 1024 ? ceil_div(columns, block) : 1024;
  // As many rows at once as fill the device.
  const std::int64_t wanted = ceil_div(std::int64_t{on.multiprocessors} * 4096, across * block);
  const std::int64_t most = wanted < 65535 ? wanted : 65535;
  const dim3 grid(static_cast<unsigned>(across),
                  static_cast<unsigned>(matrix.rows < most ? matrix.rows : most));
  T* const to = y.data<T>();
  if (packs) {
    map_channels<packed><<<grid, block, 0, on.stream>>>(matrix, parameters, to, from.template data<T>()...);
  } else {
    map_channels<1><<<grid, block, 0, on.stream>>>(matrix, parameters, to, from.template data<T>()...);
  }
}

template <class Op>
Normalise normalise_of(const Op& op) {
  return {op.mean.template data<float>(), op.inv_std.template data<float>(), data_or_null<float>(op.weight),
          data_or_null<float>(op.bias)};
}

template <class Op>
InputGradient gradient_of(const Op& op) {
  return {op.mean.template data<float>(),  op.inv_std.template data<float>(), data_or_null<float>(op.weight),
          op.sums.template data<double>(), data_or_null<double>(op.count),    op.dy.size(1)};
}

void batch_norm(CudaBackend& gpu, const ops::BatchNorm& op) {
  by_type_of(op.x, [&]<class T>(T) { map_image<T>(gpu.launch(), normalise_of(op), op.y, op.x); });
}

void batch_norm_relu(CudaBackend& gpu, const ops::BatchNormRelu& op) {
  by_type_of(op.x, [&]<class T>(T) {
    const NormaliseRelu normalise{normalise_of(op)};
    if (op.shortcut) {
      map_image<T>(gpu.launch(), normalise, op.y, op.x, op.shortcut);
    } else {
      map_image<T>(gpu.launch(), normalise, op.y, op.x);
    }
  });
}

void batch_norm_backward_input(CudaBackend& gpu, const ops::BatchNormBackwardInput& op) {
  by_type_of(op.dy, [&]<class T>(T) { map_image<T>(gpu.launch(), gradient_of(op), op.dx, op.dy, op.x); });
}

void batch_norm_relu_backward_input(CudaBackend& gpu, const ops::BatchNormReluBackwardInput& op) {
  by_type_of(op.dy, [&]<class T>(T) {
    map_image<T>(gpu.launch(), ReluInputGradient{normalise_of(op), gradient_of(op)}, op.dx, op.dy, op.x);
  });
}

}  // namespace

void add_channels(const Launch& on, const Tensor& bias, const Tensor& y) {
  by_type_of(y, [&]<class T>(T) { map_image<T>(on, Shift{bias.data<float>()}, y, y); });
}

void enter_batch_norm(CudaBackend& gpu) {
  gpu.enter<&batch_norm>();
  gpu.enter<&batch_norm_relu>();
  gpu.enter<&batch_norm_backward_input>();
  gpu.enter<&batch_norm_relu_backward_input>();
}

}  // namespace lockstep::kernels
