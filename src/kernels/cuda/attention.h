// Flash attention in bf16 as graphs of cuDNN, forward and backward.
#pragma once

#include <cstdint>
#include <memory>

#include "kernels/cuda/fused_graph.h"
#include "kernels/cuda/kernels.h"
#include "kernels/plan_cache.h"

namespace lockstep::kernels {

/// The strides that a plan depends on, besides the sizes.
struct AttentionStrides {
  ops::HeadStrides q, k, v, y, dy = {}, dq = {}, dk = {}, dv = {};  ///< the last four: backward only
  bool operator==(const AttentionStrides&) const = default;
};

/// The graphs of one problem, with as many key heads as query heads.
FusedGraph attention_graph(const ops::AttentionSizes& sizes, const AttentionStrides& strides);
FusedGraph attention_backward_graph(const ops::AttentionSizes& sizes, const AttentionStrides& strides);

/// The problems that go to cuDNN: those that it documents. It supports all of them
/// (tests/kernels/cuda/graphs.cpp).
struct AttentionSupport {
  std::size_t cudnn_version;
  int major;  ///< of the GPU's compute capability

  bool forward(const ops::AttentionSizes& sizes, const AttentionMatrices& matrices) const;
  bool backward(const ops::AttentionSizes& sizes, const AttentionMatrices& matrices,
                const AttentionGradients& gradients) const;

 private:
  bool fits(const ops::AttentionSizes& sizes, const AttentionMatrices& matrices) const;
};

/// Graphs by problem. The first time that cuDNN has no graph, or only one with too much working memory, a
/// warning says that Lockstep's slower kernels are used. The backward stores one number for each pair of
/// positions, so that its bits repeat.
class FlashAttention {
 public:
  FlashAttention(int device, cudaStream_t stream);
  ~FlashAttention();
  FlashAttention(const FlashAttention&) = delete;
  FlashAttention& operator=(const FlashAttention&) = delete;

  /// The graph for these arguments, or null. The batch is so many parts, each with the bits that it has
  /// alone: the graph has the engine of that of one part.
  FusedGraph* forward(const ops::AttentionSizes& sizes, const AttentionMatrices& matrices, int parts = 1);
  FusedGraph* backward(const ops::AttentionSizes& sizes, const AttentionMatrices& matrices,
                       const AttentionGradients& gradients, int parts = 1);
  void run(FusedGraph& graph, const ops::AttentionSizes& sizes, const AttentionMatrices& matrices,
           void* workspace);
  void run(FusedGraph& graph, const ops::AttentionSizes& sizes, const AttentionMatrices& matrices,
           const AttentionGradients& gradients, void* workspace);

 private:
  struct Key {
    ops::AttentionSizes sizes;
    AttentionStrides strides;
    bool backward;
    int parts;
    std::size_t hash() const;
    bool operator==(const Key&) const = default;
  };
  FusedGraph* graph_for(const Key& key);
  /// Why the graph cannot be used, with this engine unless it is null; empty if it can.
  std::string obstacle_to(FusedGraph& graph, const CudnnEngine* engine);
  void say_workspace(const Key& key, const FusedGraph& graph);

  int device_;
  AttentionSupport support_;
  Owned<cudnnHandle_t, cudnnDestroy> handle_;
  CudnnDescriptor properties_;
  std::size_t max_workspace_bytes_;
  std::size_t said_workspace_bytes_ = 0;
  bool warned_ = false;
  PlanCache<Key, FusedGraph> graphs_;  // null: cuDNN has none
};

}  // namespace lockstep::kernels
