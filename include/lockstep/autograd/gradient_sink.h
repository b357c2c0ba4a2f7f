// Where a backward pass puts gradients and statistics.
#pragma once

#include <span>
#include <vector>

#include "lockstep/autograd/gradient_source.h"
#include "lockstep/autograd/param.h"
#include "lockstep/tensor/tensor.h"

namespace lockstep {

/// Memory for one leaf's contribution. With `accumulate` the first write of the pass adds to what it holds.
struct GradientSlot {
  Tensor memory;
  bool accumulate = false;
};

/// Told by the Tape, on its thread. A sink may start communication in ready().
class GradientSink {
 public:
  virtual ~GradientSink() = default;
  /// Where this pass's gradient of `param` goes: float32 of its shape. Asked once per pass, before the first
  /// write.
  virtual GradientSlot slot(Param& param) = 0;
  /// The last contribution of this pass to `param` has been written.
  virtual void ready(Param& param) = 0;
  /// float64 [elements]; asked once per contribution. The contribution is written when contributed() is
  /// called.
  virtual GradientSlot slot(Statistic& statistic) = 0;
  virtual void contributed(Statistic& statistic) = 0;
  /// Called between any two operations, for communication to make progress.
  virtual void progress() {}
};

/// The sink of a program of one process without a data-parallel wrapper: gradients accumulate in local
/// tensors until clear(); statistics are applied at once.
class LocalGradients final : public GradientSink, public GradientSource {
 public:
  LocalGradients(const ModelState& state, kernels::Backend& backend);

  GradientSlot slot(Param& param) override;
  void ready(Param&) override {}
  GradientSlot slot(Statistic& statistic) override;
  void contributed(Statistic& statistic) override;

  std::span<Param* const> params() const override { return params_; }
  double weight() const override { return weight_; }
  kernels::Backend& backend() const override { return backend_; }
  void add_weight(double weight) { weight_ += weight; }
  /// Forgets all gradients and the weight.
  void clear();

 private:
  kernels::Backend& backend_;
  std::vector<Param*> params_;
  Tensor statistic_;  // Space for the largest
  double weight_ = 0;
};

}  // namespace lockstep
