// A graph of operations over tensors of four dimensions, or five in convolutions of volumes, as cuDNN's
// descriptors describe it.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "emulated_gpu/cudnn_convolution.h"
#include "emulated_gpu/cudnn_status.h"

namespace lockstep::emulated_gpu {

constexpr std::size_t max_rank = 5;
using Extents = std::array<std::int64_t, max_rank>;

struct GraphTensor {
  std::int64_t uid = 0;
  Extents extents{}, strides{};  ///< the last is 1 of a tensor of four dimensions
  std::size_t rank = 4;
  Element type = Element::float32;
  std::int64_t alignment = 1;
  bool between = false;   ///< between operations, not in memory
  bool by_value = false;  ///< a number on the CPU

  bool operator==(const GraphTensor&) const = default;
  std::size_t place(const Extents& at) const {
    std::int64_t place = 0;
    for (std::size_t d = 0; d < max_rank; ++d) place += at[d] * strides[d];
    return static_cast<std::size_t>(place);
  }
  /// Elements of memory from the first to the last.
  std::size_t span() const {
    Extents last = extents;
    for (std::int64_t& at : last) --at;
    return place(last) + 1;
  }
  /// Whether two elements may be in one place.
  bool overlaps() const {
    std::array<std::size_t, max_rank> order{0, 1, 2, 3, 4};
    std::sort(order.begin(), order.end(),
              [&](std::size_t a, std::size_t b) { return strides[a] < strides[b]; });
    std::int64_t last = 0;  // place of the last element so far
    for (const std::size_t d : order) {
      if (extents[d] == 1) continue;
      if (strides[d] <= last) return true;
      last += (extents[d] - 1) * strides[d];
    }
    return false;
  }
  std::int64_t count() const { return extents[0] * extents[1] * extents[2] * extents[3] * extents[4]; }
};

struct GraphOperation {
  enum class Kind { matmul, pointwise, reduction, reshape, convolution };
  Kind kind = Kind::matmul;
  /// Of a product, y = x b. Of a convolution y is what the pass makes, and x and b are the other two of its
  /// x, w and y, in this order.
  GraphTensor x, y;
  std::optional<GraphTensor> b, t;  ///< as far as the operation has them
  cudnnPointwiseMode_t mode{};
  std::int64_t axis = -1;
  cudnnReduceTensorOp_t reduction{};
  Pass pass = Pass::forward;  ///< of a convolution, as what follows
  ConvolutionGeometry geometry;

  const GraphTensor& images() const { return pass == Pass::backward_data ? y : x; }
  const GraphTensor& weights() const {
    return pass == Pass::forward ? *b : pass == Pass::backward_data ? x : y;
  }
  const GraphTensor& results() const { return pass == Pass::forward ? y : *b; }
  std::vector<GraphTensor> inputs() const {
    std::vector<GraphTensor> inputs{x};
    if (b) inputs.push_back(*b);
    if (t) inputs.push_back(*t);
    return inputs;
  }
};

struct OperationGraph {
  std::vector<GraphOperation> operations;  ///< in an order in which they can be done
  std::vector<GraphTensor> tensors;        ///< all, once

  const GraphOperation* convolution() const {
    for (const GraphOperation& operation : operations) {
      if (operation.kind == GraphOperation::Kind::convolution) return &operation;
    }
    return nullptr;
  }
  /// Of what is in memory.
  std::size_t operand_bytes() const {
    std::size_t bytes = 0;
    for (const GraphTensor& tensor : tensors) {
      if (!tensor.between && !tensor.by_value)
        bytes += static_cast<std::size_t>(tensor.count()) * bytes_of(tensor.type);
    }
    return bytes;
  }
};

/// How many operands a pointwise function has, x among them; none of functions that are not emulated.
std::optional<int> operands_of(cudnnPointwiseMode_t mode);

/// As a convolution's images or weights; none if they are neither NCHW nor NHWC without gaps.
std::optional<Images> images_of(const GraphTensor& tensor);

/// The convolutions' knob, which selects an order of additions.
inline constexpr cudnnBackendKnobType_t order_knob = CUDNN_KNOB_TYPE_TILE_SIZE;
inline constexpr std::int64_t orders = 2;
/// The number of the only engine of convolutions that can run.
inline constexpr std::int64_t good_engine = 7;

/// What every graph needs, which no pointer of null or smaller room may stand for.
inline constexpr std::int64_t graph_workspace_bytes = 4096;

}  // namespace lockstep::emulated_gpu
