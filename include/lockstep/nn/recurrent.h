// GRUCell, LSTMCell and Recurrent: a step of a recurrent network, and one or more layers over all steps, with
// PyTorch's names, order of gates and formulas.
#pragma once

#include <deque>
#include <optional>

#include "lockstep/autograd/functions.h"
#include "lockstep/nn/layers.h"
#include "lockstep/nn/module.h"

namespace lockstep::nn {

/// The weights of a cell. weight_ih: [gates * hidden, in], weight_hh: [gates * hidden, hidden], biases:
/// [gates * hidden], all U(+-1 / sqrt(hidden)) at first.
struct GateParameters {
  /// Registers the weights of `gates` gates with the owner; the suffix ends their names.
  GateParameters(Module& owner, std::int64_t in, std::int64_t hidden, int gates, bool with_bias,
                 std::string_view suffix = "");

  Parameter weight_ih, weight_hh;
  std::optional<Parameter> bias_ih, bias_hh;
};

/// Cho et al. 2014. Gates r, z, n: r = sigmoid(x W_r + b_r + h U_r + c_r), z likewise,
/// n = tanh(x W_n + b_n + r (h U_n + c_n)), and the new h is (1 - z) n + z h.
class GRUCell : public Layer<GRUCell>, public GateParameters {
 public:
  GRUCell(Module& parent, std::string_view name, std::int64_t in, std::int64_t hidden, bool with_bias = true);

  /// x: [N, in]; h: [N, hidden], or absent (Var{}): zeros. Result [N, hidden].
  Var forward(const Var& x, const Var& h = {});
};

/// The state, each [N, hidden]; absent (Var{}): zeros.
struct LSTMState {
  Var h, c;  ///< [N, hidden]: the output; the cell
};

/// Hochreiter, Schmidhuber 1997, with a forget gate. Gates i, f, g, o: the new c is
/// sigmoid(f) c + sigmoid(i) tanh(g), the new h sigmoid(o) tanh(c).
class LSTMCell : public Layer<LSTMCell>, public GateParameters {
 public:
  LSTMCell(Module& parent, std::string_view name, std::int64_t in, std::int64_t hidden,
           bool with_bias = true);

  /// x: [N, in].
  LSTMState forward(const Var& x, const LSTMState& state = {});
};

/// The cells of a Recurrent.
enum class Cell : std::uint8_t { gru, lstm };
constexpr auto words(Cell) { return std::array{"gru", "lstm"}; }  ///< of a configuration

/// PyTorch's GRU and LSTM with batch_first, from states of zeros. Parameters weight_ih_l0, weight_hh_l0,
/// bias_ih_l0, bias_hh_l0, weight_ih_l1 .... The products of the inputs of a layer are one for all steps.
class Recurrent : public Layer<Recurrent> {
 public:
  /// dropout: after each layer but the last.
  Recurrent(Module& parent, std::string_view name, Cell cell, std::int64_t in, std::int64_t hidden,
            std::int64_t layers, float dropout = 0);

  /// x: [N, T, in]; result [N, T, hidden], the outputs of the last layer.
  Var forward(const Var& x);

 private:
  std::deque<GateParameters> layers_;
  std::deque<Dropout> dropouts_;  // one fewer than layers
};

}  // namespace lockstep::nn
