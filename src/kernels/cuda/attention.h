// Flash attention in bf16 as graphs of cuDNN, forward and backward.
#pragma once

#include <cstdint>
#include <memory>
#include <unordered_map>

#include "kernels/cuda/fused_graph.h"
#include "kernels/cuda/kernels.h"

namespace lockstep::kernels {

/// What a plan depends on besides the sizes.
struct AttentionStrides {
  ops::HeadStrides q, k, v, y, dy = {}, dq = {}, dk = {}, dv = {};  ///< the last four: of the backward
  bool operator==(const AttentionStrides&) const = default;
};

/// The graphs of one problem, with as many key heads as query heads.
FusedGraph attention_graph(const ops::AttentionSizes& sizes, const AttentionStrides& strides);
FusedGraph attention_backward_graph(const ops::AttentionSizes& sizes, const AttentionStrides& strides);

/// Graphs by problem; where cuDNN has none, and once, it is said that own, slower kernels serve.
class FlashAttention {
 public:
  FlashAttention(int device, cudaStream_t stream);
  ~FlashAttention();
  FlashAttention(const FlashAttention&) = delete;
  FlashAttention& operator=(const FlashAttention&) = delete;

  /// The graph for these arguments, or none.
  FusedGraph* forward(const ops::AttentionSizes& sizes, const AttentionMatrices& matrices);
  FusedGraph* backward(const ops::AttentionSizes& sizes, const AttentionMatrices& matrices,
                       const AttentionGradients& gradients);
  void run(FusedGraph& graph, const ops::AttentionSizes& sizes, const AttentionMatrices& matrices,
           void* workspace);
  void run(FusedGraph& graph, const ops::AttentionSizes& sizes, const AttentionMatrices& matrices,
           const AttentionGradients& gradients, void* workspace);

 private:
  struct Key {
    ops::AttentionSizes sizes;
    AttentionStrides strides;
    bool backward;
    bool operator==(const Key&) const = default;
  };
  struct Hash {
    std::size_t operator()(const Key& key) const noexcept;
  };
  FusedGraph* graph_for(const Key& key);

  int device_;
  cudnnHandle_t handle_ = nullptr;
  CudnnDescriptor properties_;
  bool said_ = false;
  std::unordered_map<Key, std::unique_ptr<FusedGraph>, Hash> graphs_;  // null: cuDNN has none
};

}  // namespace lockstep::kernels
