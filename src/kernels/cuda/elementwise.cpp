// Fills, copies, sums and multiples, rows, activations and dropout.
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/error.h"
#include "kernels/cuda/operands.h"
#include "kernels/problems.h"

namespace lockstep::kernels {

void CudaBackend::fill(const Tensor& out, double value) {
  const Operands args{"fill", device()};
  if (out.channel_block() != 1) args.image_of("the tensor", out);
  launch_fill(launch(), out.dtype(), args.raw("the tensor", out), out.stored_numel(), value);
}

void CudaBackend::copy(const Tensor& from, const Tensor& to) {
  constexpr const char* operation = "copy";
  require_alike(operation, "the target", to, from);
  const bool converts = from.dtype() != to.dtype();
  const bool up = from.device() == Device::cpu(), down = to.device() == Device::cpu();
  const auto known = [&](const Device& other) { return other == Device::cpu() || other == device(); };
  if ((up && down) || !known(from.device()) || !known(to.device())) {
    throw UsageError("copy: the backend of {} cannot copy from {} to {}", to_string(device()),
                     to_string(from.device()), to_string(to.device()));
  }
  if (up) refuse_in_recording("values come from the CPU");
  if (up && converts) {
    const Tensor here = empty(from.shape(), from.dtype(), from.channel_block());
    copy(from, here);
    return copy(here, to);
  }
  if (down && converts) return copy(in_type(from, to.dtype()), to);
  if (down) {
    const Transfer one{from, to};
    return read({&one, 1});
  }
  const Launch on = launch();
  if (up) return upload_.copy(from.raw(), to.raw(), from.bytes());
  if (!converts) {
    check(cudaMemcpyAsync(to.raw(), from.raw(), from.bytes(), cudaMemcpyDeviceToDevice, on.stream),
          "cudaMemcpyAsync", index_);
  } else if (!launch_convert(on, from.dtype(), from.raw(), to.dtype(), to.raw(), from.stored_numel())) {
    throw UsageError("copy: {} is not converted to {}", to_string(from.dtype()), to_string(to.dtype()));
  }
}

void CudaBackend::add(const Tensor& a, const Tensor& b, const Tensor& y) {
  const Operands args{"add", device()};
  require_alike("add", "b", b, a);
  require_alike("add", "y", y, a);
  launch_add(launch(), a.dtype(), args.raw("a", a), args.of_type("b", b, a.dtype()),
             args.of_type("y", y, a.dtype()), a.stored_numel());
}

void CudaBackend::scale(const Tensor& x, float factor, const Tensor& y) {
  const Operands args{"scale", device()};
  require_alike("scale", "y", y, x);
  launch_scale(launch(), x.dtype(), args.raw("x", x), factor, args.of_type("y", y, x.dtype()),
               x.stored_numel());
}

void CudaBackend::add_rows(const Tensor& x, const Tensor& row, const Tensor& y) {
  const Operands args{"add_rows", device()};
  require_shape("add_rows", "y", y, x.shape());
  const void* const from = args.plain_of_type("x", x, x.dtype());
  const std::int64_t rows = repetitions("add_rows", x, row);
  launch_add_rows(launch(), x.dtype(), from, args.plain_floats("row", row),
                  args.plain_of_type("y", y, x.dtype()), rows, row.numel());
}

void CudaBackend::sum_rows(const Tensor& x, const Tensor& row, bool accumulate) {
  const Operands args{"sum_rows", device()};
  const void* const from = args.plain_of_type("x", x, x.dtype());
  const std::int64_t width = row.numel(), rows = repetitions("sum_rows", x, row);
  const Tensor partial = scratch(row_chunks(rows) * width);
  launch_sum_rows(launch(), x.dtype(), from, args.plain_floats("row", row), rows, width, accumulate,
                  partial.data<float>());
}

void CudaBackend::activation(Activation kind, const Tensor& x, const Tensor& y) {
  const Operands args{"activation", device()};
  require_alike("activation", "y", y, x);
  launch_activation(launch(), kind, x.dtype(), args.raw("x", x), args.of_type("y", y, x.dtype()),
                    x.stored_numel());
}

void CudaBackend::activation_backward(Activation kind, const Tensor& x, const Tensor& dy, const Tensor& dx) {
  const Operands args{"activation_backward", device()};
  require_alike("activation_backward", "dy", dy, x);
  require_alike("activation_backward", "dx", dx, x);
  launch_activation_backward(launch(), kind, x.dtype(), args.raw("x", x), args.of_type("dy", dy, x.dtype()),
                             args.of_type("dx", dx, x.dtype()), x.stored_numel());
}

void CudaBackend::dropout(const Tensor& x, float p, const RandomKey& key, const Tensor& y) {
  const Operands args{"dropout", device()};
  if (!(p >= 0.0f && p < 1.0f)) throw UsageError("dropout: p = {} is not in [0, 1)", p);
  require_alike("dropout", "y", y, x);
  const void* const from = args.raw("x", x);
  void* const to = args.of_type("y", y, x.dtype());
  if (p == 0.0f) return copy(x, y);
  refuse_in_recording("dropout draws other numbers at every step");
  const Image image = x.channel_block() == 1 ? Image{.places = x.numel()} : args.image_of("x", x);
  launch_dropout(launch(), x.dtype(), from, image, p, key, to);
}

}  // namespace lockstep::kernels
