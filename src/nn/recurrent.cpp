#include "lockstep/nn/recurrent.h"

#include <fmt/format.h>

namespace lockstep::nn {
namespace {

/// The state, or zeros. A state of another batch size is an error, as it would be broadcast.
Var state_for(const Var& x, const Var& state, const GateParameters& of) {
  const Shape shape{x.shape().rank() == 2 ? x.shape()[0] : 0, of.weight_hh.value.size(1)};
  if (x.shape().rank() != 2 || (state.value() && state.shape() != shape))
    throw UsageError("a cell of {} hidden units takes an input [N, {}] and a state [N, {}], not {} and {}",
                     shape[1], of.weight_ih.value.size(1), shape[1], to_string(x.shape()),
                     state.value() ? to_string(state.shape()) : "none");
  if (state.value()) return state;
  Tape& tape = x.tape();
  const Tensor zeros = tape.backend().empty(shape, x.value().dtype());
  tape.backend().fill(zeros, 0);
  return tape.constant(zeros);
}

Var gates_of(const Var& x, Parameter& weight, std::optional<Parameter>& bias) {
  Tape& tape = x.tape();
  return linear(x, tape.weight(weight), bias ? tape.bias(*bias) : Var{});
}

}  // namespace

GateParameters::GateParameters(Module& owner, std::int64_t in, std::int64_t hidden, int gates, bool with_bias,
                               std::string_view suffix)
    : weight_ih(owner, fmt::format("weight_ih{}", suffix), {gates * hidden, in}, fan_in_uniform(hidden)),
      weight_hh(owner, fmt::format("weight_hh{}", suffix), {gates * hidden, hidden}, fan_in_uniform(hidden)) {
  if (!with_bias) return;
  bias_ih.emplace(owner, fmt::format("bias_ih{}", suffix), Shape{gates * hidden}, fan_in_uniform(hidden));
  bias_hh.emplace(owner, fmt::format("bias_hh{}", suffix), Shape{gates * hidden}, fan_in_uniform(hidden));
}

GRUCell::GRUCell(Module& parent, std::string_view name, std::int64_t in, std::int64_t hidden, bool with_bias)
    : Layer(parent, name), GateParameters(*this, in, hidden, 3, with_bias) {}

Var GRUCell::forward(const Var& x, const Var& h_state) {
  const Var h = state_for(x, h_state, *this);
  const auto [x_r, x_z, x_n] = chunk<3>(gates_of(x, weight_ih, bias_ih), -1);
  const auto [h_r, h_z, h_n] = chunk<3>(gates_of(h, weight_hh, bias_hh), -1);
  const Var r = sigmoid(x_r + h_r), z = sigmoid(x_z + h_z), n = tanh(x_n + r * h_n);
  return n + z * (h - n);
}

LSTMCell::LSTMCell(Module& parent, std::string_view name, std::int64_t in, std::int64_t hidden,
                   bool with_bias)
    : Layer(parent, name), GateParameters(*this, in, hidden, 4, with_bias) {}

LSTMState LSTMCell::forward(const Var& x, const LSTMState& state) {
  const Var h = state_for(x, state.h, *this), c = state_for(x, state.c, *this);
  const Var of_x = gates_of(x, weight_ih, bias_ih), of_h = gates_of(h, weight_hh, bias_hh);
  const auto [i, f, g, o] = chunk<4>(of_x + of_h, -1);
  const Var c_new = sigmoid(f) * c + sigmoid(i) * tanh(g);
  return {sigmoid(o) * tanh(c_new), c_new};
}

Recurrent::Recurrent(Module& parent, std::string_view name, Cell cell, std::int64_t in, std::int64_t hidden,
                     std::int64_t layers, float dropout)
    : Layer(parent, name) {
  for (std::int64_t i = 0; i < layers; ++i) {
    layers_.emplace_back(*this, i == 0 ? in : hidden, hidden, cell == Cell::gru ? 3 : 4, true,
                         fmt::format("_l{}", i));
    if (i + 1 < layers) dropouts_.emplace_back(*this, fmt::format("dropout_l{}", i), dropout);
  }
}

Var Recurrent::forward(const Var& x) {
  const std::int64_t shards = x.tape().pass().shards;
  if (x.shape().rank() != 3)
    throw UsageError("recurrent layers take [N, T, in], not {}", to_string(x.shape()));
  const std::int64_t samples = x.shape()[0] / shards, steps = x.shape()[1];
  // The two dimensions of samples and steps of each shard change places.
  const auto swapped = [&](const Var& y, std::int64_t first, std::int64_t second) {
    const std::int64_t width = y.shape()[2];
    return reshape(permute(reshape(y, {shards, first, second, width}), {0, 2, 1, 3}),
                   {shards * second, first, width});
  };
  Var h = swapped(x, samples, steps);
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    GateParameters& layer = layers_[i];
    Tape& tape = x.tape();
    h = recurrent(gates_of(i == 0 ? h : dropouts_[i - 1](h), layer.weight_ih, layer.bias_ih),
                  tape.weight(layer.weight_hh), tape.bias(*layer.bias_hh));
  }
  return swapped(h, steps, samples);
}

}  // namespace lockstep::nn
