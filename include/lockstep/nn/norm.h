// LayerNorm, RMSNorm and GroupNorm. Weights begin at 1, biases at 0.
#pragma once

#include <limits>

#include "lockstep/autograd/functions.h"
#include "lockstep/nn/module.h"

namespace lockstep::nn {

/// Over the last dimension.
class LayerNorm : public Layer<LayerNorm> {
 public:
  LayerNorm(Module& parent, std::string_view name, std::int64_t width, float eps = 1e-5f);

  Var forward(const Var& x);
  /// Of x + branch, in one go with the addition; an absent branch (Var{}) adds nothing.
  SumAndNorm forward(const Var& x, const Var& branch);

  Parameter weight, bias;

 private:
  float eps_;
};

/// Over the last dimension, without centre and bias. eps: PyTorch's for float32, where none is given.
class RMSNorm : public Layer<RMSNorm> {
 public:
  RMSNorm(Module& parent, std::string_view name, std::int64_t width,
          float eps = std::numeric_limits<float>::epsilon());

  Var forward(const Var& x);

 private:
  float eps_;

 public:
  Parameter weight;
};

/// Over groups of channels and all places of an image.
class GroupNorm : public Layer<GroupNorm> {
 public:
  /// Throws UsageError if the groups do not divide the channels.
  GroupNorm(Module& parent, std::string_view name, int groups, std::int64_t channels, float eps = 1e-5f);

  Var forward(const Var& x);

 private:
  int groups_;
  float eps_;

 public:
  Parameter weight, bias;
};

}  // namespace lockstep::nn
