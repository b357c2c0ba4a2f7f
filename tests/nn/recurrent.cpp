// GRU and LSTM cells against their formulas in float64, over two steps, with the gradients of every
// parameter.
#include "lockstep/nn/recurrent.h"

#include <boost/test/unit_test.hpp>
#include <cmath>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/base/random.h"
#include "support/mentions.h"

namespace lockstep::test {
namespace {
BOOST_AUTO_TEST_SUITE(recurrent)

constexpr std::size_t in = 3, hidden = 4, batch = 2;
using Values = std::vector<double>;

Tensor drawn(const Shape& shape, std::uint64_t seed) {
  const Random random({.seed = seed, .purpose = purpose_of("recurrent")});
  const Tensor x = Tensor::empty(shape);
  for (std::int64_t i = 0; i < x.numel(); ++i)
    x.data<float>()[i] = random.normal(static_cast<std::uint64_t>(i));
  return x;
}

Values in_double(const Tensor& x) { return {x.data<float>(), x.data<float>() + x.numel()}; }

double sigmoid_of(double x) { return 1 / (1 + std::exp(-x)); }

/// What a cell is made of, in PyTorch's order: weight_ih, weight_hh, bias_ih, bias_hh.
using Weights = std::vector<Values>;

/// x W' + b for one row.
Values affine(const double* x, std::size_t width, const Values& weight, const Values& bias) {
  Values y = bias;
  for (std::size_t i = 0; i < y.size(); ++i)
    for (std::size_t j = 0; j < width; ++j) y[i] += weight[i * width + j] * x[j];
  return y;
}

/// One row's h and c; c only of an LSTM.
struct Row {
  Values h = Values(hidden), c = Values(hidden);
};

Row gru_row(const double* x, const Row& before, const Weights& w) {
  const Values gi = affine(x, in, w[0], w[2]), gh = affine(before.h.data(), hidden, w[1], w[3]);
  Row after;
  for (std::size_t k = 0; k < hidden; ++k) {
    const double r = sigmoid_of(gi[k] + gh[k]), z = sigmoid_of(gi[hidden + k] + gh[hidden + k]);
    const double n = std::tanh(gi[2 * hidden + k] + r * gh[2 * hidden + k]);
    after.h[k] = (1 - z) * n + z * before.h[k];
  }
  return after;
}

Row lstm_row(const double* x, const Row& before, const Weights& w) {
  const Values gi = affine(x, in, w[0], w[2]), gh = affine(before.h.data(), hidden, w[1], w[3]);
  const auto gate = [&](std::size_t number, std::size_t k) {
    return gi[number * hidden + k] + gh[number * hidden + k];
  };
  Row after;
  for (std::size_t k = 0; k < hidden; ++k) {
    after.c[k] = sigmoid_of(gate(1, k)) * before.c[k] + sigmoid_of(gate(0, k)) * std::tanh(gate(2, k));
    after.h[k] = sigmoid_of(gate(3, k)) * std::tanh(after.c[k]);
  }
  return after;
}

struct Fixture {
  nn::Module root{3};
  std::unique_ptr<kernels::Backend> backend = kernels::make_cpu_backend();
  Tape tape{*backend};
  std::vector<Tensor> x = {drawn({batch, in}, 1), drawn({batch, in}, 2)};  // two steps
  Tensor dh = drawn({batch, hidden}, 3);

  /// `cell_after` runs the cell over both steps and returns the last h, `row` is its formula.
  void check(const std::function<Var(const Var&, const Var&)>& cell_after,
             const std::function<Row(const double*, const Row&, const Weights&)>& row) {
    LocalGradients gradients(root, *backend);
    tape.begin({.sink = &gradients});
    const Var h = cell_after(tape.constant(x[0]), tape.constant(x[1]));
    const Values found = in_double(h.value());
    tape.backward(h, dh);
    tape.finish_backward();

    Weights weights;
    const ModelState state = root;
    for (const Param* const param : state.params) weights.push_back(in_double(param->value));
    const auto after = [&](std::size_t n) {
      Row now;
      for (const Tensor& step : x) now = row(in_double(step).data() + n * in, now, weights);
      return now.h;
    };
    const Values dy = in_double(dh);
    const auto loss = [&] {
      double sum = 0;
      for (std::size_t n = 0; n < batch; ++n) {
        const Values last = after(n);
        for (std::size_t k = 0; k < hidden; ++k) sum += dy[n * hidden + k] * last[k];
      }
      return sum;
    };
    for (std::size_t n = 0; n < batch; ++n)
      for (std::size_t k = 0; k < hidden; ++k)
        BOOST_TEST(std::abs(found[n * hidden + k] - after(n)[k]) < 2e-6);
    for (std::size_t p = 0; p < weights.size(); ++p) {
      const Values gradient = in_double(state.params[p]->gradient);
      for (std::size_t i = 0; i < gradient.size(); ++i) {
        constexpr double step = 1e-5;
        double& value = weights[p][i];
        value += step;
        const double above = loss();
        value -= 2 * step;
        const double below = loss();
        value += step;
        BOOST_TEST(std::abs(gradient[i] - (above - below) / (2 * step)) < 1e-5,
                   state.params[p]->name << " " << i);
      }
    }
  }
};

BOOST_FIXTURE_TEST_CASE(a_gru_cell_follows_pytorchs_formulas, Fixture) {
  nn::GRUCell cell(root, "cell", in, hidden);
  check([&](const Var& first, const Var& second) { return cell(second, cell(first)); }, gru_row);
}

BOOST_FIXTURE_TEST_CASE(an_lstm_cell_follows_pytorchs_formulas, Fixture) {
  nn::LSTMCell cell(root, "cell", in, hidden);
  check([&](const Var& first, const Var& second) { return cell(second, cell(first)).h; }, lstm_row);
}

/// Layers over all steps of x [N, T, in], and the same by cells with the same weights.
template <class CellLayer, class Step>
void check_layers(Fixture& f, nn::Cell cell, const Step& step) {
  constexpr std::int64_t time = 5;
  const auto as_signed = [](std::size_t size) { return static_cast<std::int64_t>(size); };
  const Tensor series = drawn({as_signed(batch), time, as_signed(in)}, 4),
               dy = drawn({as_signed(batch), time, as_signed(hidden)}, 5);
  const auto learned = [&](bool whole) {
    nn::Module root(7);
    std::optional<nn::Recurrent> layers;
    std::optional<CellLayer> first, second;
    if (whole) {
      layers.emplace(root, "rnn", cell, in, hidden, 2);
    } else {
      first.emplace(root, "first", in, hidden);
      second.emplace(root, "second", hidden, hidden);
    }
    const ModelState state = root;
    std::uint64_t seed = 20;
    for (Param* const param : state.params) param->value = drawn(param->value.shape(), seed++);
    LocalGradients gradients(root, *f.backend);
    f.tape.begin({.sink = &gradients});
    const Var x = f.tape.constant(series);
    Var y;
    if (whole) {
      y = (*layers)(x);
    } else {
      std::vector<Var> outputs;
      nn::LSTMState a, b;
      for (std::int64_t t = 0; t < time; ++t) {
        a = step(*first, reshape(narrow(x, 1, t, 1), {as_signed(batch), as_signed(in)}), a);
        b = step(*second, a.h, b);
        outputs.push_back(b.h);
      }
      y = stack(outputs, 1);
    }
    std::vector<Values> found{in_double(y.value())};
    f.tape.backward(y, dy);
    f.tape.finish_backward();
    for (const Param* const param : state.params) found.push_back(in_double(param->gradient));
    return found;
  };
  const std::vector<Values> found = learned(true), wanted = learned(false);
  BOOST_REQUIRE(found.size() == wanted.size());
  for (std::size_t i = 0; i < found.size(); ++i)
    for (std::size_t k = 0; k < found[i].size(); ++k) BOOST_TEST(std::abs(found[i][k] - wanted[i][k]) < 2e-5);
}

BOOST_FIXTURE_TEST_CASE(layers_are_cells_one_step_after_another, Fixture) {
  check_layers<nn::GRUCell>(*this, nn::Cell::gru,
                            [](nn::GRUCell& of, const Var& now, const nn::LSTMState& state) {
                              return nn::LSTMState{of(now, state.h), {}};
                            });
  check_layers<nn::LSTMCell>(
      *this, nn::Cell::lstm,
      [](nn::LSTMCell& of, const Var& now, const nn::LSTMState& state) { return of(now, state); });
}

BOOST_FIXTURE_TEST_CASE(layers_take_a_batch_of_none_and_one_step, Fixture) {
  nn::Recurrent layers(root, "rnn", nn::Cell::lstm, in, hidden, 2);
  for (const std::int64_t samples : {0, 2}) {
    LocalGradients gradients(root, *backend);
    tape.begin({.sink = &gradients});
    const Var y = layers(tape.constant(Tensor::zeros({samples, 1, in})));
    BOOST_TEST((y.shape() == Shape{samples, 1, hidden}));
    tape.backward(y, Tensor::zeros(y.shape()));
    tape.finish_backward();
  }
  BOOST_CHECK_EXCEPTION(layers(tape.constant(Tensor::zeros({2, in}))), UsageError,
                        mentions("rnn: ", "[2, 3]"));
}

BOOST_FIXTURE_TEST_CASE(in_bf16_cells_stay_near, Fixture) {
  nn::GRUCell gru(root, "gru", in, hidden);
  nn::LSTMCell lstm(root, "lstm", in, hidden);
  const auto both = [&](DType compute) {
    tape.begin({.record = false, .compute = compute});
    const Var first = tape.batch(x[0]), second = tape.batch(x[1]);
    const Tensor y = backend->empty({2, batch, hidden});
    backend->copy(gru(second, gru(first)).value(), y.rows(0, 1).reshape({batch, hidden}));
    backend->copy(lstm(second, lstm(first)).h.value(), y.rows(1, 2).reshape({batch, hidden}));
    return in_double(y);
  };
  const Values exact = both(DType::float32), rounded = both(DType::bfloat16);
  for (std::size_t i = 0; i < exact.size(); ++i) BOOST_TEST(std::abs(exact[i] - rounded[i]) < 2e-2);
}

BOOST_FIXTURE_TEST_CASE(cells_have_pytorchs_names, Fixture) {
  nn::LSTMCell lstm(root, "lstm", in, hidden);
  nn::GRUCell gru(root, "gru", in, hidden, false);
  std::vector<std::string> names;
  for (const Param* const param : root.state().params) names.push_back(param->name);
  BOOST_TEST(names == (std::vector<std::string>{"lstm.weight_ih", "lstm.weight_hh", "lstm.bias_ih",
                                                "lstm.bias_hh", "gru.weight_ih", "gru.weight_hh"}),
             boost::test_tools::per_element());
  BOOST_TEST((lstm.bias_hh->value.shape() == Shape{4 * hidden}));
  BOOST_TEST((gru.weight_hh.value.shape() == Shape{3 * hidden, hidden}));
}

BOOST_FIXTURE_TEST_CASE(cells_take_a_batch_of_none, Fixture) {
  nn::LSTMCell lstm(root, "lstm", in, hidden);
  nn::GRUCell gru(root, "gru", in, hidden);
  tape.begin({.record = false});
  const Var none = tape.constant(Tensor::zeros({0, in}));
  BOOST_TEST((lstm(none).c.shape() == Shape{0, hidden}));
  BOOST_TEST((gru(none).shape() == Shape{0, hidden}));
}

BOOST_FIXTURE_TEST_CASE(cells_refuse_a_state_of_another_batch, Fixture) {
  nn::GRUCell gru(root, "gru", in, hidden);
  tape.begin({.record = false});
  BOOST_CHECK_EXCEPTION(gru(tape.constant(x[0]), tape.constant(Tensor::zeros({1, hidden}))), UsageError,
                        mentions("gru: ", "[1, 4]"));
}

BOOST_AUTO_TEST_SUITE_END()
}  // namespace
}  // namespace lockstep::test
