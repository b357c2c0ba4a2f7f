// Attention: bf16 by cuDNN where it has it, the rest by own kernels. Both save the same.
#include "kernels/cuda/attention_plan.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/operands.h"
#include "kernels/problems.h"

namespace lockstep::kernels {
namespace {

constexpr std::int64_t most_width = 256;

AttentionProblem problem_of(const Operands& args, const AttentionSizes& sizes) {
  if (sizes.width > most_width) {
    throw UsageError("{} on a GPU: heads {} wide are not built; {} at most", args.operation, sizes.width,
                     most_width);
  }
  return {.batch = sizes.batch,
          .heads = sizes.heads,
          .time = sizes.time,
          .width = sizes.width,
          .causal = sizes.causal};
}

HeadMatrix heads_of(const Operands& args, const char* name, const Columns& columns, DType dtype,
                    const AttentionSizes& sizes) {
  auto* const data = static_cast<char*>(args.plain_of_type(name, columns.matrix, dtype));
  require_heads(args.operation, name, columns, sizes);
  return {data + static_cast<std::size_t>(columns.first) * bytes_of(dtype), columns.matrix.size(2)};
}

Columns all_of(const Tensor& matrix) { return {matrix, 0, matrix.size(2)}; }

}  // namespace

Shape CudaBackend::attention_saved_shape(std::int64_t batch, int heads, std::int64_t time) const {
  return {batch, heads, time};
}

void CudaBackend::attention(const Columns& q, const Columns& k, const Columns& v, int heads, bool causal,
                            const Tensor& y, const Tensor& saved) {
  const Operands args{"attention", device()};
  const AttentionSizes sizes = attention_sizes(args.operation, y, heads, causal, saved, *this);
  const auto part = [&](const char* name, const Columns& columns) {
    return heads_of(args, name, columns, y.dtype(), sizes);
  };
  const AttentionProblem problem = problem_of(args, sizes);
  const FlashAttention::Forward a{.q = part("q", q),
                                  .k = part("k", k),
                                  .v = part("v", v),
                                  .y = part("y", all_of(y)),
                                  .log_sum_exp = args.plain_floats("saved", saved)};
  const Launch on = launch();
  if (y.numel() == 0) return;
  if (y.dtype() == DType::bfloat16) {
    if (FusedGraph* const graph = flash_attention().forward(problem, a)) {
      const Tensor workspace = scratch(static_cast<std::int64_t>(graph->workspace_bytes()), DType::uint8);
      return flash_attention().run(*graph, problem, a, workspace.raw());
    }
  }
  launch_attention(on, y.dtype(), problem, a.q, a.k, a.v, a.y, a.log_sum_exp);
}

FlashAttention& CudaBackend::flash_attention() {
  if (!flash_attention_) flash_attention_ = std::make_unique<FlashAttention>(index_, launch().stream);
  return *flash_attention_;
}

void CudaBackend::attention_backward(const Tensor& dy, const Columns& q, const Columns& k, const Columns& v,
                                     int heads, bool causal, const Tensor& y, const Tensor& saved,
                                     const Columns& dq, const Columns& dk, const Columns& dv) {
  const Operands args{"attention_backward", device()};
  require_shape(args.operation, "y", y, dy.shape());
  const AttentionSizes sizes = attention_sizes(args.operation, dy, heads, causal, saved, *this);
  const auto part = [&](const char* name, const Columns& columns) {
    return heads_of(args, name, columns, dy.dtype(), sizes);
  };
  const Tensor delta = scratch(saved.numel());
  const AttentionProblem problem = problem_of(args, sizes);
  const FlashAttention::Backward a{.dy = part("dy", all_of(dy)),
                                   .q = part("q", q),
                                   .k = part("k", k),
                                   .v = part("v", v),
                                   .y = part("y", all_of(y)),
                                   .log_sum_exp = args.plain_floats("saved", saved),
                                   .dq = part("dq", dq),
                                   .dk = part("dk", dk),
                                   .dv = part("dv", dv),
                                   .delta = delta.data<float>()};
  const Launch on = launch();
  if (dy.numel() == 0) return;
  if (dy.dtype() == DType::bfloat16) {
    if (FusedGraph* const graph = flash_attention().backward(problem, a)) {
      const Tensor workspace = scratch(static_cast<std::int64_t>(graph->workspace_bytes()), DType::uint8);
      return flash_attention().run(*graph, problem, a, workspace.raw());
    }
  }
  launch_attention_backward(on, dy.dtype(), problem, a.dy, a.q, a.k, a.v, a.y, a.log_sum_exp, a.dq, a.dk,
                            a.dv, a.delta);
}

}  // namespace lockstep::kernels
