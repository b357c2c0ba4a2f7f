// Losses.
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/operands.h"

namespace lockstep::kernels {
namespace {

LossRows rows_of(const Operands& args, const Tensor& logits, const Tensor& targets,
                 const CrossEntropy& options) {
  if (logits.shape().rank() != 2) {
    throw UsageError("{}: the logits have shape {}, not [rows, classes]", args.operation,
                     to_string(logits.shape()));
  }
  require_shape(args.operation, "the targets", targets, {logits.size(0)});
  return {.rows = logits.size(0),
          .classes = logits.size(1),
          .ignore_index = options.ignore_index,
          .label_smoothing = options.label_smoothing};
}

double* total_of(const Operands& args, const Tensor& total) {
  require_shape(args.operation, "the total", total, {2});
  return args.elements<double>("the total", total);
}

}  // namespace

void CudaBackend::cross_entropy(const Tensor& logits, const Tensor& targets, const CrossEntropy& options,
                                const Tensor& log_sum_exp, const Tensor& total) {
  const Operands args{"cross_entropy", device()};
  const LossRows sizes = rows_of(args, logits, targets, options);
  const void* const x = args.plain_of_type("the logits", logits, logits.dtype());
  const auto* const target = args.elements<std::int64_t>("the targets", targets);
  float* const logs = args.floats_of("log_sum_exp", log_sum_exp, {sizes.rows});
  double* const to = total_of(args, total);
  const Launch on = launch();
  launch_check_data(on, target, sizes.rows, sizes.classes, &options.ignore_index, DataFault::target_outside,
                    checked_cross_entropy, static_cast<DataFault*>(fault_.raw()));
  const Tensor losses = scratch(sizes.rows, DType::float64);
  launch_cross_entropy(on, logits.dtype(), x, target, sizes, logs, losses.data<double>(), to);
}

void CudaBackend::cross_entropy_backward(const Tensor& logits, const Tensor& targets,
                                         const CrossEntropy& options, const Tensor& log_sum_exp,
                                         const Tensor& factor, const Tensor& dlogits) {
  const Operands args{"cross_entropy_backward", device()};
  const LossRows sizes = rows_of(args, logits, targets, options);
  require_shape(args.operation, "dlogits", dlogits, logits.shape());
  launch_cross_entropy_backward(
      launch(), logits.dtype(), args.plain_of_type("the logits", logits, logits.dtype()),
      args.elements<std::int64_t>("the targets", targets), sizes,
      args.floats_of("log_sum_exp", log_sum_exp, {sizes.rows}), args.floats_of("the factor", factor, {}),
      args.plain_of_type("dlogits", dlogits, logits.dtype()));
}

void CudaBackend::count_correct(const Tensor& logits, const Tensor& targets, const Tensor& correct) {
  const Operands args{"count_correct", device()};
  const LossRows sizes = rows_of(args, logits, targets, {});
  require_shape(args.operation, "the count", correct, {});
  const void* const x = args.plain_of_type("the logits", logits, logits.dtype());
  const auto* const target = args.elements<std::int64_t>("the targets", targets);
  auto* const to = args.elements<std::int64_t>("the count", correct);
  const Tensor hits = scratch(sizes.rows, DType::int32);
  launch_count_correct(launch(), logits.dtype(), x, target, sizes.rows, sizes.classes,
                       hits.data<std::int32_t>(), to);
}

void CudaBackend::squared_error(const Tensor& x, const Tensor& target, const Tensor& total) {
  const Operands args{"squared_error", device()};
  require_shape(args.operation, "target", target, x.shape());
  const void* const from = args.plain_of_type("x", x, x.dtype());
  const void* const wanted = args.plain_of_type("target", target, x.dtype());
  double* const to = total_of(args, total);
  const Tensor sums = scratch((x.numel() + 4095) / 4096, DType::float64);
  launch_squared_error(launch(), x.dtype(), from, wanted, x.numel(), sums.data<double>(), to);
}

void CudaBackend::squared_error_backward(const Tensor& x, const Tensor& target, const Tensor& factor,
                                         const Tensor& dx) {
  const Operands args{"squared_error_backward", device()};
  require_shape(args.operation, "target", target, x.shape());
  require_shape(args.operation, "dx", dx, x.shape());
  launch_squared_error_backward(launch(), x.dtype(), args.plain_of_type("x", x, x.dtype()),
                                args.plain_of_type("target", target, x.dtype()), x.numel(),
                                args.floats_of("the factor", factor, {}),
                                args.plain_of_type("dx", dx, x.dtype()));
}

}  // namespace lockstep::kernels
