// cuDNN's backend API: a graph of operations that cuDNN runs as one kernel. Plans are for a type of GPU,
// which need not be in this node.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "kernels/cuda/libraries.h"
#include "lockstep/ops/convolution.h"

namespace lockstep::kernels {

/// A descriptor of the backend API; destroyed with its last owner.
class CudnnDescriptor {
 public:
  CudnnDescriptor() = default;
  /// Throws FailureError naming `what` if cuDNN refuses.
  CudnnDescriptor(cudnnBackendDescriptorType_t type, const char* what);

  void set(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, std::int64_t count,
           const void* values);
  template <class Value>
  void set(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, const Value& value) {
    set(name, type, 1, &value);
  }
  void set(cudnnBackendAttributeName_t name, const CudnnDescriptor& other);
  void finalize();
  /// Finalizes, and returns cuDNN's status instead of throwing.
  cudnnStatus_t try_finalize();
  cudnnBackendDescriptor_t get() const { return holder_.get(); }
  explicit operator bool() const { return holder_ != nullptr; }

 private:
  std::shared_ptr<void> holder_;
  const char* what_ = "";
};

/// The GPU of the plans: one of this node, or one from cuDNN's description.
CudnnDescriptor device_properties(int index);
CudnnDescriptor device_properties(const std::string& json);

/// An engine of cuDNN and the knobs that select its kernel. Bits depend on nothing else.
struct CudnnEngine {
  std::int64_t number = -1;
  std::vector<std::pair<cudnnBackendKnobType_t, std::int64_t>> knobs;  ///< types and values

  std::string text() const;  ///< "engine 7 (2 = 3)"
  bool operator==(const CudnnEngine&) const = default;
};

/// Which plans FusedGraph::build() may take.
struct PlanRules {
  static constexpr std::array<cudnnBackendNumericalNote_t, 1> repeat{CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC};

  std::span<const cudnnBackendNumericalNote_t> refused_notes = repeat;  ///< of engines
  std::size_t max_workspace_bytes = std::size_t{1} << 62;
  /// Only this engine with these knobs, those of the same graph with other extents; null: cuDNN's choice.
  const CudnnEngine* engine = nullptr;
};

/// Values are 4-D, those of convolutions of volumes 5-D. Describe tensors and operations in the order of
/// execution, then build().
class FusedGraph {
 public:
  using Extents = std::array<std::int64_t, 4>;

  /// A tensor in memory, 16-byte aligned. run() gets its data pointer by `uid`, which is positive.
  CudnnDescriptor tensor(std::int64_t uid, std::span<const std::int64_t> extents,
                         std::span<const std::int64_t> strides, cudnnDataType_t type);
  /// A tensor between operations; row-major without strides.
  CudnnDescriptor between(const Extents& extents, cudnnDataType_t type);
  CudnnDescriptor between(std::span<const std::int64_t> extents, std::span<const std::int64_t> strides,
                          cudnnDataType_t type);
  /// A number on the CPU, a float. run() gets it by `uid`.
  CudnnDescriptor number(std::int64_t uid);

  void matmul(const CudnnDescriptor& a, const CudnnDescriptor& b, const CudnnDescriptor& c);
  /// y = mode(x), mode(x, b), or mode(x, b, t). axis: for CUDNN_POINTWISE_GEN_INDEX.
  void pointwise(cudnnPointwiseMode_t mode, const CudnnDescriptor& x, const CudnnDescriptor& y,
                 const CudnnDescriptor& b = {}, const CudnnDescriptor& t = {},
                 cudnnDataType_t compute = CUDNN_DATA_FLOAT, std::int64_t axis = -1);
  void reduce(cudnnReduceTensorOp_t operation, const CudnnDescriptor& x, const CudnnDescriptor& y);
  void reshape(const CudnnDescriptor& x, const CudnnDescriptor& y);
  /// The pass computes one of x [N, C, H, W], w [O, C / groups, kh, kw] and y [N, O, H', W'] from the others;
  /// volumes: of those with a depth.
  void convolution(ops::ConvolutionPass pass, const ops::ConvolutionGeometry& geometry, bool volumes,
                   const CudnnDescriptor& x, const CudnnDescriptor& w, const CudnnDescriptor& y);

  /// Takes the first plan of cuDNN's list that the rules allow; by default one that gives the same bits every
  /// time. False, with the reason in why(), if there is none.
  bool build(const CudnnDescriptor& device, const PlanRules& rules = {});
  const std::string& why() const { return why_; }
  const CudnnEngine& engine() const { return engine_; }  ///< of the plan
  std::size_t workspace_bytes() const { return static_cast<std::size_t>(workspace_bytes_); }
  /// uids and their data pointers or numbers, in pairs.
  void run(cudnnHandle_t handle, std::span<const std::int64_t> uids, std::span<void* const> data,
           void* workspace);

 private:
  /// Adds an operation with these operands, some of which may be absent.
  void add(cudnnBackendDescriptorType_t type, const char* what,
           std::initializer_list<std::pair<cudnnBackendAttributeName_t, CudnnDescriptor>> operands);
  CudnnDescriptor described(std::int64_t uid, std::span<const std::int64_t> extents,
                            std::span<const std::int64_t> strides, cudnnDataType_t type,
                            bool between_operations, bool by_value);
  /// Takes the plan of an engine's configuration if the rules allow it.
  bool take(const CudnnDescriptor& configuration, const CudnnDescriptor& device, const PlanRules& rules);

  std::vector<CudnnDescriptor> operations_;
  std::int64_t next_between_ = 1 << 20;
  CudnnDescriptor plan_;
  CudnnEngine engine_;
  std::int64_t workspace_bytes_ = 0;
  std::string why_, refused_;  // refused_: a convolution that cuDNN does not take
};

}  // namespace lockstep::kernels
