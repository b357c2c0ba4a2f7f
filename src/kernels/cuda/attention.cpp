// Attention: bf16 by cuDNN where it has it, the rest by own kernels. Both save the same.
#include "lockstep/ops/attention.h"

#include "kernels/cuda/attention_plan.h"
#include "kernels/cuda/cuda_backend.h"

namespace lockstep::kernels {
namespace {

/// `op`'s, of heads as wide as kernels are built for.
template <class Op>
ops::AttentionSizes sizes_of(const Op& op) {
  constexpr std::int64_t most_width = 256;
  const ops::AttentionSizes sizes = op.sizes();
  if (op.saved.shape().rank() != 3)
    throw UsageError("{} on a GPU: saved has shape {}, not {}", op.name, to_string(op.saved.shape()),
                     to_string(Shape{sizes.batch, sizes.heads, sizes.queries}));
  if (sizes.width <= most_width) return sizes;
  throw UsageError("{} on a GPU: heads {} wide are not built; {} at most", op.name, sizes.width, most_width);
}

HeadMatrix heads_of(const ops::Columns& columns, const ops::AttentionSizes& sizes) {
  const Tensor& matrix = columns.matrix;
  return {
      static_cast<char*>(matrix.raw()) + static_cast<std::size_t>(columns.first) * bytes_of(matrix.dtype()),
      ops::head_strides(columns, sizes.width)};
}

template <class Op>
AttentionMatrices matrices_of(const Op& op, const ops::AttentionSizes& sizes) {
  return {heads_of(op.q, sizes), heads_of(op.k, sizes), heads_of(op.v, sizes),
          heads_of(ops::all_columns(op.y), sizes), op.saved.template data<float>()};
}

/// By a graph of cuDNN's, if there is one.
template <class... Arguments>
bool run_graph(CudaBackend& gpu, FusedGraph* graph, const Arguments&... arguments) {
  if (!graph) return false;
  const Tensor workspace = gpu.scratch(static_cast<std::int64_t>(graph->workspace_bytes()), DType::uint8);
  gpu.flash_attention().run(*graph, arguments..., workspace.raw());
  return true;
}

void attention(CudaBackend& gpu, const ops::Attention& op) {
  const ops::AttentionSizes sizes = sizes_of(op);
  const AttentionMatrices matrices = matrices_of(op, sizes);
  if (op.y.numel() == 0) return;
  if (op.y.dtype() == DType::bfloat16 &&
      run_graph(gpu, gpu.flash_attention().forward(sizes, matrices), sizes, matrices))
    return;
  attend(gpu.launch(), op.y.dtype(), sizes, matrices);
}

void attention_backward(CudaBackend& gpu, const ops::AttentionBackward& op) {
  const ops::AttentionSizes sizes = sizes_of(op);
  const AttentionMatrices matrices = matrices_of(op, sizes);
  const Tensor delta = gpu.scratch(op.saved.numel());
  const AttentionGradients gradients{heads_of(ops::all_columns(op.dy), sizes), heads_of(op.dq, sizes),
                                     heads_of(op.dk, sizes), heads_of(op.dv, sizes), delta.data<float>()};
  if (op.dy.numel() == 0) return;
  if (op.dy.dtype() == DType::bfloat16 &&
      run_graph(gpu, gpu.flash_attention().backward(sizes, matrices, gradients), sizes, matrices, gradients))
    return;
  attend_backward(gpu.launch(), op.dy.dtype(), sizes, matrices, gradients);
}

}  // namespace

Shape CudaBackend::attention_saved_shape(std::int64_t batch, int heads, std::int64_t queries,
                                         std::int64_t) const {
  return {batch, heads, queries};
}

FlashAttention& CudaBackend::flash_attention() {
  if (!flash_attention_) flash_attention_ = std::make_unique<FlashAttention>(index_, pool_.stream());
  return *flash_attention_;
}

void enter_attention(CudaBackend& gpu) { gpu.enter<&attention, &attention_backward>(); }

}  // namespace lockstep::kernels
