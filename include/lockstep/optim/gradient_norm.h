// The global gradient norm, and the factor that clips by it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "lockstep/autograd/gradient_sink.h"
#include "lockstep/ops/update.h"

namespace lockstep::optim {

/// The L2 norm of the mean gradient (sum / count) over all parameters that have one.
/// It adds float64 sums of squares over fixed blocks of 4096 elements, one after another: tensors in the
/// order of their names, blocks in the order of their elements. So the bits depend on the gradients alone.
/// With a Partition each rank fills the blocks that it owns, they are gathered, and every rank adds all of
/// them.
class GradientNorm final : public Measurement {
 public:
  /// Elements of a block.
  static constexpr std::int64_t block_elements = Partition::block_elements;

  /// `source` must outlive this. With a Partition, construction and destruction are collective.
  explicit GradientNorm(GradientSource& source);

  /// The norm. Throws TrainingError if it is not finite, naming the first such parameter; the same on every
  /// rank. Allocates nothing. With a Partition it is collective, and it reads from the device; neither if the
  /// source's step has made this measurement.
  double measure();
  kernels::Transfer launch() override;

  /// The parts of measure(). Sums of squares of all gradients (each process fills the blocks that it owns,
  /// and all gather them), or of elements [begin, end) of one:
  /// `param` indexes source.params(), `begin` is a multiple of block_elements, `end` too or the tensor's end
  /// (UsageError otherwise). A parameter without a gradient counts as zeros.
  void fill_blocks();
  /// Computes the sums of elements [begin, end) of a parameter.
  void fill_blocks(std::size_t param, std::int64_t begin, std::int64_t end);
  /// One sum per block, float64 on the source's device; tensors in name order. Frozen parameters have no
  /// blocks.
  const Tensor& blocks() const noexcept { return blocks_; }
  /// Where blocks of a parameter (index in source.params()) begin in blocks(), and how many there are.
  std::size_t first_block(std::size_t param) const { return ranges_.at(param).first; }
  std::size_t block_count(std::size_t param) const { return ranges_.at(param).count; }  ///< of a parameter
  /// The norm from the sums in blocks(), which it reads. Throws like measure(). A parameter without a
  /// gradient counts as zeros, whatever its blocks hold.
  double combine();

 private:
  struct Range {
    std::size_t first = 0, count = 0;
  };
  void share_blocks(const Partition& partition, std::int64_t total);
  /// Adds to parts_, or writes zeros at once if there is no gradient.
  void add_part(std::size_t param, std::int64_t begin, std::int64_t end);
  void gather_blocks();
  kernels::Transfer to_read();
  double norm_of_read() const;
  [[noreturn]] void throw_not_finite() const;

  GradientSource& source_;
  std::vector<Range> ranges_;       // by index in source.params()
  std::vector<std::size_t> order_;  // indices of trainable parameters, by name
  Tensor blocks_;
  std::vector<ops::BlockSumsOfSquares::Part> parts_;  // of a call of fill_blocks()
  std::vector<double> read_;                          // blocks_ on the CPU
  std::uint64_t launch_step_ = 0;                     // GradientSource::steps_begun() at launch()
  // With a Partition the blocks are in a flat buffer, so that gathering allocates nothing.
  std::unique_ptr<comm::FlatBuffer> flat_buffer_;
  comm::Slices slices_;
};

/// GradientNorm(source).measure(), for a single use.
double gradient_norm(GradientSource& source);

/// The factor that limits the norm of gradients to `clip` (PyTorch's clip_grad_norm_): min(1, clip / (norm +
/// 1e-6)). `clip` = 0: no clipping, 1.
double clip_factor(double norm, double clip);

}  // namespace lockstep::optim
