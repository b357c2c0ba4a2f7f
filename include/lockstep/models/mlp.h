// mlp: linear layers with ReLU between.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "lockstep/models/model.h"
#include "lockstep/nn/layers.h"

namespace lockstep::models {

/// Parameters net.0.weight, net.0.bias, net.2.weight ..., as in PyTorch's Sequential(Linear, ReLU, Linear
/// ...). Dropout follows each ReLU. Inputs of any shape are flattened.
class Mlp final : public Model {
 public:
  static constexpr const char* task = "classification";
  struct Options {
    std::vector<std::int64_t> sizes{};  ///< widths, from the elements of a sample to the classes
    double dropout = 0;                 ///< probability of zeroing an activation

    static std::vector<Option<Options>> options();
  };
  Mlp(const Options& options, std::uint64_t seed);  ///< seed: of the initial parameters

  std::vector<std::string> reads() const override { return {"x"}; }
  std::int64_t classes() const override { return sizes_.back(); }
  Shape sample_shape(std::int64_t) const override { return {sizes_.front()}; }
  void check_input(const Shape& x) const override;
  Var forward(Tape& tape, const Batch& batch) override;
  std::optional<Var> features(Tape& tape, const Batch& batch) override;

 private:
  std::vector<std::int64_t> sizes_;
  std::vector<std::unique_ptr<nn::Linear>> layers_;
  std::vector<std::unique_ptr<nn::Dropout>> dropouts_;  // one fewer than layers
};

}  // namespace lockstep::models
