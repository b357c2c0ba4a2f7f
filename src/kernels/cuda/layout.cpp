// Channels first or last: which convolutions want, and copies between them.
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/error.h"
#include "kernels/cuda/operands.h"

namespace lockstep::kernels {

// Tensor cores read the channels of a place together.
int CudaBackend::preferred_channel_block(std::int64_t channels, DType) const {
  return static_cast<int>(std::max<std::int64_t>(1, channels));
}

void CudaBackend::to_layout(const Tensor& from, const Tensor& to) {
  constexpr const char* operation = "to_layout";
  const Operands args{operation, device()};
  require_shape(operation, "to", to, from.shape());
  const void* const source = args.raw("from", from);
  void* const target = args.of_type("to", to, from.dtype());
  const Launch on = launch();
  if (from.channel_block() == to.channel_block()) {
    check(cudaMemcpyAsync(target, source, from.bytes(), cudaMemcpyDeviceToDevice, on.stream),
          "cudaMemcpyAsync", index_);
    return;
  }
  const Image image = args.image_of("from", from);
  args.image_of("to", to);
  const std::int64_t rows = image.channels_last ? image.places : image.channels;
  const std::int64_t columns = image.channels_last ? image.channels : image.places;
  launch_transpose(on, from.dtype(), source, target, image.images, rows, columns);
}

void CudaBackend::normalize_images(const Tensor& x, const Tensor& scale, const Tensor& shift,
                                   const Tensor& y) {
  constexpr const char* operation = "normalize_images";
  const Operands args{operation, device()};
  require_plain(operation, "x", x);
  require_shape(operation, "y", y, x.shape());
  const Image image = args.image_of("y", y);
  launch_normalize_images(
      launch(), args.elements<std::uint8_t>("x", x), args.floats_of("scale", scale, {image.channels}),
      args.floats_of("shift", shift, {image.channels}), image, y.dtype(), args.raw("y", y));
}

}  // namespace lockstep::kernels
