// Linear, Embedding and Dropout.
#pragma once

#include <optional>

#include "lockstep/autograd/functions.h"
#include "lockstep/base/random.h"
#include "lockstep/nn/module.h"

namespace lockstep::nn {

/// y = x weight' + bias over the last dimension. weight: [out, in], bias: [out], both U(+-1 / sqrt(in)) at
/// first.
class Linear : public Layer<Linear> {
 public:
  Linear(Module& parent, std::string_view name, std::int64_t in, std::int64_t out, bool with_bias = true);

  /// This layer makes the model's output: its parameters say so.
  void be_head();

  Var forward(const Var& x);
  /// activation(linear(x)), in one go.
  Var forward(const Var& x, ops::Activation activation);

  Parameter weight;
  std::optional<Parameter> bias;
};

/// out(activation(in(x))), in one go.
Var feed_forward(const Var& x, Linear& in, ops::Activation activation, Linear& out);

/// weight: [rows, width], N(0, 1) at first; its role is that of an embedding.
class Embedding : public Layer<Embedding> {
 public:
  Embedding(Module& parent, std::string_view name, std::int64_t rows, std::int64_t width)
      : Layer(parent, name), weight(*this, "weight", {rows, width}, Init::normal(1)) {
    weight.role = Param::Role::embedding;
  }

  /// indices: int64, any shape; result [indices..., width].
  Var forward(Tape& tape, const Tensor& indices) { return embedding(indices, tape.parameter(weight)); }

  Parameter weight;
};

/// Zeroes elements with probability p and scales the rest by 1 / (1 - p). Draws are keyed by the pass and by
/// this module's path: use one Dropout per place in the model.
class Dropout : public Layer<Dropout> {
 public:
  /// Throws UsageError unless 0 <= p < 1.
  Dropout(Module& parent, std::string_view name, float p)
      : Layer(parent, name), p_(p), purpose_(purpose_of("dropout:" + path())) {
    if (!(p >= 0 && p < 1)) throw UsageError("{}: a dropout probability of {} is not in [0, 1)", path(), p);
  }

  Var forward(const Var& x) { return dropout(x, p_, purpose_); }

 private:
  float p_;
  std::uint64_t purpose_;
};

}  // namespace lockstep::nn
