// mlp: linear layers with ReLU between.
#pragma once

#include <memory>
#include <vector>

#include "lockstep/models/registry.h"
#include "lockstep/nn/layers.h"

namespace lockstep::models {

/// Parameters net.0.weight, net.0.bias, net.2.weight ..., as in PyTorch's Sequential(Linear, ReLU, Linear
/// ...). Dropout follows each ReLU. Inputs of any shape are flattened.
class Mlp final : public Model {
 public:
  Mlp(const ModelConfig& config, std::uint64_t seed);

  Kind kind() const override { return Kind::classifier; }
  std::int64_t classes() const override { return sizes_.back(); }
  void check_input(const Shape& x) const override;
  Var forward(Tape& tape, const Tensor& x) override;

 private:
  std::vector<std::int64_t> sizes_;
  std::vector<std::unique_ptr<nn::Linear>> layers_;
  std::vector<std::unique_ptr<nn::Dropout>> dropouts_;  // one fewer
};

}  // namespace lockstep::models
