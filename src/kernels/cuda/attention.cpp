// Attention: bf16 by cuDNN if it supports the problem, otherwise by the kernels of attention.cu. Both save
// the same tensors.
//
// The graphs have the form that cuDNN recognises as flash attention (cuDNN's documentation, "scaled dot
// product attention"): softmax in its parts, the causal mask by row and column numbers.
#include "kernels/cuda/attention.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <initializer_list>
#include <limits>
#include <utility>

#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/libraries.h"
#include "lockstep/base/log.h"
#include "lockstep/base/random.h"
#include "lockstep/ops/attention.h"

namespace lockstep::kernels {
namespace {

using Extents = FusedGraph::Extents;

enum Uid : std::int64_t {
  q_uid = 1,
  k_uid,
  v_uid,
  y_uid,
  dy_uid,
  dq_uid,
  dk_uid,
  dv_uid,
  log_uid,
  delta_uid,
  scale_uid,
  masked_uid,
  one_uid
};

constexpr std::size_t mib = std::size_t{1} << 20;
constexpr cudnnDataType_t bf16 = CUDNN_DATA_BFLOAT16, float32 = CUDNN_DATA_FLOAT;

/// The tensors of a problem.
struct Shapes {
  explicit Shapes(const ops::AttentionSizes& p)
      : queries{p.batch, p.heads, p.queries, p.width},
        keys{p.batch, p.heads, p.keys, p.width},
        transposed_keys{p.batch, p.heads, p.width, p.keys},
        scores{p.batch, p.heads, p.queries, p.keys},
        transposed_scores{p.batch, p.heads, p.keys, p.queries},
        column{p.batch, p.heads, p.queries, 1} {}

  Extents column_strides() const { return {column[1] * column[2], column[2], 1, 1}; }
  Extents transposed_score_strides() const {
    return {scores[1] * scores[2] * scores[3], scores[2] * scores[3], 1, scores[3]};
  }

  Extents queries, keys, transposed_keys, scores, transposed_scores, column;
};

Extents row_strides(const ops::HeadStrides& strides) { return {strides.image, strides.head, strides.row, 1}; }
/// The strides of the same memory with rows and columns exchanged.
Extents transposed_strides(const ops::HeadStrides& strides) {
  return {strides.image, strides.head, 1, strides.row};
}

/// Scores of keys after the row's own position become minus infinity.
CudnnDescriptor masked(FusedGraph& graph, const Shapes& shapes, const CudnnDescriptor& scores) {
  const CudnnDescriptor row = graph.between(shapes.scores, CUDNN_DATA_INT32),
                        column = graph.between(shapes.scores, CUDNN_DATA_INT32),
                        sees = graph.between(shapes.scores, CUDNN_DATA_BOOLEAN),
                        result = graph.between(shapes.scores, float32);
  graph.pointwise(CUDNN_POINTWISE_GEN_INDEX, scores, row, {}, {}, float32, 2);
  graph.pointwise(CUDNN_POINTWISE_GEN_INDEX, scores, column, {}, {}, float32, 3);
  graph.pointwise(CUDNN_POINTWISE_CMP_GE, row, sees, column, {}, CUDNN_DATA_BOOLEAN);
  graph.pointwise(CUDNN_POINTWISE_BINARY_SELECT, scores, result, graph.number(masked_uid), sees);
  return result;
}

/// scale * q k'; the scale is a number on the CPU.
CudnnDescriptor scaled_scores(FusedGraph& graph, const Shapes& shapes, const CudnnDescriptor& q,
                              const CudnnDescriptor& k, const CudnnDescriptor& scale) {
  const CudnnDescriptor product = graph.between(shapes.scores, float32),
                        scores = graph.between(shapes.scores, float32);
  graph.matmul(q, k, product);
  graph.pointwise(CUDNN_POINTWISE_MUL, product, scores, scale);
  return scores;
}

float scale_of(const ops::AttentionSizes& p) { return 1.0f / std::sqrt(static_cast<float>(p.width)); }

/// Whether every row of every head consists of packs of 16 bytes.
bool aligned(const HeadMatrix& matrix) {
  const ops::HeadStrides& strides = matrix.strides;
  return strides.row % 8 == 0 && strides.head % 8 == 0 && strides.image % 8 == 0 &&
         reinterpret_cast<std::uintptr_t>(matrix.data) % 16 == 0;
}

bool all_aligned(std::initializer_list<HeadMatrix> matrices) {
  return std::ranges::all_of(matrices, aligned);
}

int major_of(int device) {
  int major = 0;
  check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device), "cudaDeviceGetAttribute",
        device);
  return major;
}

std::size_t memory_of(int device) {
  cudaDeviceProp properties{};
  check(cudaGetDeviceProperties(&properties, device), "cudaGetDeviceProperties", device);
  return properties.totalGlobalMem;
}

}  // namespace

FusedGraph attention_graph(const ops::AttentionSizes& sizes, const AttentionStrides& strides) {
  FusedGraph graph;
  const Shapes shapes(sizes);
  const CudnnDescriptor q = graph.tensor(q_uid, shapes.queries, row_strides(strides.q), bf16),
                        k = graph.tensor(k_uid, shapes.transposed_keys, transposed_strides(strides.k), bf16),
                        v = graph.tensor(v_uid, shapes.keys, row_strides(strides.v), bf16),
                        y = graph.tensor(y_uid, shapes.queries, row_strides(strides.y), bf16),
                        logs = graph.tensor(log_uid, shapes.column, shapes.column_strides(), float32);
  CudnnDescriptor scores = scaled_scores(graph, shapes, q, k, graph.number(scale_uid));
  if (sizes.causal) scores = masked(graph, shapes, scores);
  const CudnnDescriptor max = graph.between(shapes.column, shapes.column_strides(), float32),
                        off = graph.between(shapes.scores, float32),
                        exponentials = graph.between(shapes.scores, float32),
                        sum = graph.between(shapes.column, shapes.column_strides(), float32),
                        log = graph.between(shapes.column, shapes.column_strides(), float32),
                        probabilities = graph.between(shapes.scores, bf16);
  graph.reduce(CUDNN_REDUCE_TENSOR_MAX, scores, max);
  graph.pointwise(CUDNN_POINTWISE_SUB, scores, off, max);
  graph.pointwise(CUDNN_POINTWISE_EXP, off, exponentials);
  graph.reduce(CUDNN_REDUCE_TENSOR_ADD, exponentials, sum);
  graph.pointwise(CUDNN_POINTWISE_LOG, sum, log);
  graph.pointwise(CUDNN_POINTWISE_ADD, max, logs, log);
  graph.pointwise(CUDNN_POINTWISE_DIV, exponentials, probabilities, sum);
  graph.matmul(probabilities, v, y);
  return graph;
}

FusedGraph attention_backward_graph(const ops::AttentionSizes& sizes, const AttentionStrides& strides) {
  FusedGraph graph;
  const Shapes shapes(sizes);
  const auto rows = [&](Uid uid, const Extents& extents, const ops::HeadStrides& of) {
    return graph.tensor(uid, extents, row_strides(of), bf16);
  };
  const CudnnDescriptor q = rows(q_uid, shapes.queries, strides.q),
                        y = rows(y_uid, shapes.queries, strides.y),
                        dy = rows(dy_uid, shapes.queries, strides.dy),
                        dq = rows(dq_uid, shapes.queries, strides.dq),
                        dk = rows(dk_uid, shapes.keys, strides.dk),
                        dv = rows(dv_uid, shapes.keys, strides.dv),
                        k = graph.tensor(k_uid, shapes.transposed_keys, transposed_strides(strides.k), bf16),
                        v = graph.tensor(v_uid, shapes.transposed_keys, transposed_strides(strides.v), bf16),
                        logs = graph.tensor(log_uid, shapes.column, shapes.column_strides(), float32),
                        delta = graph.tensor(delta_uid, shapes.column, shapes.column_strides(), float32),
                        scale = graph.number(scale_uid);

  // delta = row sums of dy y, into memory
  const CudnnDescriptor products = graph.between(shapes.queries, float32),
                        row_sums = graph.between(shapes.column, shapes.column_strides(), float32);
  graph.pointwise(CUDNN_POINTWISE_MUL, dy, products, y);
  graph.reduce(CUDNN_REDUCE_TENSOR_ADD, products, row_sums);
  graph.pointwise(CUDNN_POINTWISE_MUL, row_sums, delta, graph.number(one_uid));

  // p = e^(scores - log sum), dv = p' dy
  const CudnnDescriptor off = graph.between(shapes.scores, float32),
                        p = graph.between(shapes.scores, float32);
  const CudnnDescriptor scores = scaled_scores(graph, shapes, q, k, scale);
  graph.pointwise(CUDNN_POINTWISE_SUB, scores, off, logs);
  graph.pointwise(CUDNN_POINTWISE_EXP, sizes.causal ? masked(graph, shapes, off) : off, p);
  const CudnnDescriptor transposed_p =
      graph.between(shapes.transposed_scores, shapes.transposed_score_strides(), bf16);
  graph.reshape(p, transposed_p);
  graph.matmul(transposed_p, dy, dv);

  // ds = scale p (dy v' - delta), dk = ds' q, dq = ds k
  const CudnnDescriptor dp = graph.between(shapes.scores, float32),
                        centred = graph.between(shapes.scores, float32),
                        unscaled = graph.between(shapes.scores, float32),
                        ds = graph.between(shapes.scores, float32),
                        transposed_ds =
                            graph.between(shapes.transposed_scores, shapes.transposed_score_strides(), bf16),
                        transposed_k = graph.between(shapes.keys, row_strides(strides.k), bf16);
  graph.matmul(dy, v, dp);
  graph.pointwise(CUDNN_POINTWISE_SUB, dp, centred, delta);
  graph.pointwise(CUDNN_POINTWISE_MUL, centred, unscaled, p);
  graph.pointwise(CUDNN_POINTWISE_MUL, unscaled, ds, scale);
  graph.reshape(ds, transposed_ds);
  graph.matmul(transposed_ds, q, dk);
  graph.reshape(k, transposed_k);
  graph.matmul(ds, transposed_k, dq);
  return graph;
}

bool AttentionSupport::fits(const ops::AttentionSizes& sizes, const AttentionMatrices& m) const {
  const std::int64_t max_width = major == 9 ? 256 : 128;
  if (m.positions || m.bias || (sizes.causal && sizes.queries != sizes.keys)) return false;
  return sizes.group() == 1 && sizes.width % 8 == 0 && sizes.width <= max_width;
}

bool AttentionSupport::forward(const ops::AttentionSizes& sizes, const AttentionMatrices& m) const {
  return fits(sizes, m) && all_aligned({m.q, m.k, m.v, m.y});
}

bool AttentionSupport::backward(const ops::AttentionSizes& sizes, const AttentionMatrices& m,
                                const AttentionGradients& g) const {
  // Before 9.15.1 cuDNN reads beyond the keys in a captured graph if they do not fill the last tile.
  constexpr std::size_t reads_no_further = 91501;
  constexpr std::int64_t tile = 128;
  if (!fits(sizes, m) || (sizes.queries == 1 && sizes.keys == 1)) return false;
  if (cudnn_version < reads_no_further && sizes.keys % tile != 0) return false;
  return all_aligned({m.q, m.k, m.v, m.y, g.dy, g.dq, g.dk, g.dv});
}

std::size_t FlashAttention::Key::hash() const {
  return hash_of(sizes.batch, sizes.heads, sizes.queries, sizes.keys, sizes.width, sizes.causal,
                 strides.q.row, strides.dq.row, backward, parts);
}

FlashAttention::FlashAttention(int device, cudaStream_t stream)
    : device_(device),
      support_{cudnnGetVersion(), major_of(device)},
      properties_(device_properties(device)),
      max_workspace_bytes_(memory_of(device) / 4) {
  make(handle_, cudnnCreate, "cudnnCreate", device);
  check(cudnnSetStream(handle_.get(), stream), "cudnnSetStream", device);
}

FlashAttention::~FlashAttention() = default;

std::string FlashAttention::obstacle_to(FusedGraph& graph, const CudnnEngine* engine) {
  if (!graph.build(properties_, {.engine = engine})) return graph.why();
  if (graph.workspace_bytes() <= max_workspace_bytes_) return {};
  return fmt::format("it takes {} MiB of working memory, more than a quarter of the GPU's",
                     graph.workspace_bytes() / mib);
}

void FlashAttention::say_workspace(const Key& key, const FusedGraph& graph) {
  constexpr std::size_t much = std::size_t{1} << 30;
  if (graph.workspace_bytes() < std::max(much, said_workspace_bytes_ + 1)) return;
  said_workspace_bytes_ = graph.workspace_bytes();
  Log().info(
      "attention over {} positions takes {} MiB of working memory on cuda:{}, for the same bits every time: "
      "it "
      "grows with the square of the positions, and train.micro_batches divides it",
      key.sizes.keys, graph.workspace_bytes() / mib, device_);
}

FusedGraph* FlashAttention::graph_for(const Key& key) {
  return graphs_.get(key, [&]() -> std::unique_ptr<FusedGraph> {
    Key one = key;
    one.parts = 1;
    one.sizes.batch /= key.parts;
    FusedGraph* const alone = key.parts == 1 ? nullptr : graph_for(one);
    if (key.parts > 1 && !alone) return nullptr;
    auto graph = std::make_unique<FusedGraph>(key.backward ? attention_backward_graph(key.sizes, key.strides)
                                                           : attention_graph(key.sizes, key.strides));
    const std::string obstacle = obstacle_to(*graph, alone ? &alone->engine() : nullptr);
    if (obstacle.empty()) {
      say_workspace(key, *graph);
      return graph;
    }
    if (!alone && !std::exchange(warned_, true)) {
      Log().warning(
          "cuDNN's attention on cuda:{} is not used for {} heads of width {} over {} positions ({}): own, "
          "slower kernels are used",
          device_, key.sizes.heads, key.sizes.width, key.sizes.queries, obstacle);
    }
    graph.reset();
    return graph;
  });
}

FusedGraph* FlashAttention::forward(const ops::AttentionSizes& sizes, const AttentionMatrices& m, int parts) {
  if (!support_.forward(sizes, m)) return nullptr;
  return graph_for(
      {sizes, {.q = m.q.strides, .k = m.k.strides, .v = m.v.strides, .y = m.y.strides}, false, parts});
}

FusedGraph* FlashAttention::backward(const ops::AttentionSizes& sizes, const AttentionMatrices& m,
                                     const AttentionGradients& g, int parts) {
  if (!support_.backward(sizes, m, g)) return nullptr;
  return graph_for({sizes,
                    {.q = m.q.strides,
                     .k = m.k.strides,
                     .v = m.v.strides,
                     .y = m.y.strides,
                     .dy = g.dy.strides,
                     .dq = g.dq.strides,
                     .dk = g.dk.strides,
                     .dv = g.dv.strides},
                    true,
                    parts});
}

void FlashAttention::run(FusedGraph& graph, const ops::AttentionSizes& sizes, const AttentionMatrices& m,
                         void* workspace) {
  float scale = scale_of(sizes), hidden = -std::numeric_limits<float>::infinity();
  const std::array<std::int64_t, 7> uids{q_uid, k_uid, v_uid, y_uid, log_uid, scale_uid, masked_uid};
  const std::array<void*, 7> data{m.q.data, m.k.data, m.v.data, m.y.data, m.log_sum_exp, &scale, &hidden};
  const std::size_t used = sizes.causal ? 7 : 6;
  graph.run(handle_.get(), std::span(uids).first(used), std::span(data).first(used), workspace);
}

void FlashAttention::run(FusedGraph& graph, const ops::AttentionSizes& sizes, const AttentionMatrices& m,
                         const AttentionGradients& g, void* workspace) {
  float scale = scale_of(sizes), hidden = -std::numeric_limits<float>::infinity(), one = 1;
  const std::array<std::int64_t, 13> uids{q_uid,  k_uid,   v_uid,     y_uid,     dy_uid,  dq_uid,    dk_uid,
                                          dv_uid, log_uid, delta_uid, scale_uid, one_uid, masked_uid};
  const std::array<void*, 13> data{m.q.data,  m.k.data,  m.v.data,  m.y.data,      g.dy.data,
                                   g.dq.data, g.dk.data, g.dv.data, m.log_sum_exp, g.delta,
                                   &scale,    &one,      &hidden};
  const std::size_t used = sizes.causal ? 13 : 12;
  graph.run(handle_.get(), std::span(uids).first(used), std::span(data).first(used), workspace);
}

namespace {

/// The sizes of `op`. UsageError if its heads are too wide.
template <class Op>
ops::AttentionSizes sizes_of(const Op& op) {
  constexpr std::int64_t max_width = 256;
  const ops::AttentionSizes sizes = op.sizes();
  if (op.saved && op.saved.shape().rank() != 3)
    throw UsageError("{} on a GPU: saved has shape {}, not {}", op.name, to_string(op.saved.shape()),
                     to_string(Shape{sizes.batch, sizes.heads, sizes.queries}));
  if (sizes.width <= max_width) return sizes;
  throw UsageError("{} on a GPU: heads of width {} are not supported; at most {}", op.name, sizes.width,
                   max_width);
}

HeadMatrix heads_of(const ops::Columns& columns, const ops::AttentionSizes& sizes) {
  const Tensor& matrix = columns.matrix;
  return {
      static_cast<char*>(matrix.raw()) + static_cast<std::size_t>(columns.first) * bytes_of(matrix.dtype()),
      ops::head_strides(columns, sizes.width)};
}

template <class Op>
AttentionMatrices matrices_of(const Op& op, const ops::AttentionSizes& sizes) {
  return {heads_of(op.q, sizes),
          heads_of(op.k, sizes),
          heads_of(op.v, sizes),
          heads_of(ops::all_columns(op.y), sizes),
          op.saved ? op.saved.template data<float>() : nullptr,
          op.positions ? op.positions.template data<std::int64_t>() : nullptr,
          op.bias ? op.bias.template data<float>() : nullptr,
          ops::bias_strides(op.bias)};
}

/// Runs a graph of cuDNN and returns true, if there is one.
template <class... Arguments>
bool run_graph(CudaBackend& gpu, FusedGraph* graph, const Arguments&... arguments) {
  if (!graph) return false;
  const Tensor workspace = gpu.scratch(static_cast<std::int64_t>(graph->workspace_bytes()), DType::uint8);
  gpu.flash_attention().run(*graph, arguments..., workspace.raw());
  return true;
}

void attention_of_parts(CudaBackend& gpu, const ops::Attention& op, int parts) {
  ops::AttentionSizes sizes = sizes_of(op);
  const AttentionMatrices matrices = matrices_of(op, sizes);
  if (op.y.numel() == 0) return;
  if (op.y.dtype() == DType::bfloat16 && op.saved) {
    FlashAttention& flash = gpu.flash_attention();
    if (run_graph(gpu, flash.forward(sizes, matrices, parts), sizes, matrices)) return;
    sizes.batch /= parts;
    if (flash.forward(sizes, matrices)) return gpu.run_each_part(op, parts);
    sizes.batch *= parts;
  }
  attend(gpu.launch(), op.y.dtype(), sizes, matrices);
}

void attention_backward_of_parts(CudaBackend& gpu, const ops::AttentionBackward& op, int parts) {
  ops::AttentionSizes sizes = sizes_of(op);
  const AttentionMatrices matrices = matrices_of(op, sizes);
  const Tensor delta = gpu.scratch(op.saved.numel());
  const AttentionGradients gradients{heads_of(ops::all_columns(op.dy), sizes),
                                     heads_of(op.dq, sizes),
                                     heads_of(op.dk, sizes),
                                     heads_of(op.dv, sizes),
                                     delta.data<float>(),
                                     op.dbias ? op.dbias.data<float>() : nullptr};
  if (op.dy.numel() == 0) return;
  if (op.dbias) gpu.fill(op.dbias, 0);  // the kernels do not visit keys that no query sees
  if (op.dy.dtype() == DType::bfloat16) {
    FlashAttention& flash = gpu.flash_attention();
    if (run_graph(gpu, flash.backward(sizes, matrices, gradients, parts), sizes, matrices, gradients)) return;
    sizes.batch /= parts;
    if (flash.backward(sizes, matrices, gradients)) return gpu.run_each_part(op, parts);
    sizes.batch *= parts;
  }
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

void enter_attention(CudaBackend& gpu) {
  gpu.enter_parts<&attention_of_parts, &attention_backward_of_parts>();
}

}  // namespace lockstep::kernels
