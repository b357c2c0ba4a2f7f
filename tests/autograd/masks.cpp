// Attention with a bias and a key mask, and means over lengths: against float64 on drawn cases, and errors.
#include <boost/test/unit_test.hpp>

#include "autograd/drawn_cases.h"
#include "lockstep/autograd/functions.h"
#include "support/mentions.h"

namespace lockstep::test {
namespace {
BOOST_AUTO_TEST_SUITE(masks)

using Values = std::vector<double>;

/// A tensor of four dimensions in float64; extents of 1 broadcast.
struct Doubles {
  Shape shape;
  Values values;

  explicit Doubles(const Shape& of) : shape(of), values(static_cast<std::size_t>(of.numel())) {}
  explicit Doubles(const Tensor& of) : shape(of.shape()), values(values_of(of)) {}
  double& at(std::int64_t a, std::int64_t b, std::int64_t c, std::int64_t d) {
    const auto in = [&](std::int64_t i, int axis) { return shape[axis] == 1 ? 0 : i; };
    return values[static_cast<std::size_t>(
        ((in(a, 0) * shape[1] + in(b, 1)) * shape[2] + in(c, 2)) * shape[3] + in(d, 3))];
  }
};

struct Attended {
  Doubles y, dq, dk, dv, dbias;
};

/// mask: of [B, Tk], or null; a row that sees no key attends to all of them.
Attended reference(Doubles q, Doubles k, Doubles v, Doubles bias, const std::int64_t* mask, bool causal,
                   Doubles dy) {
  Attended of{dy, q, k, v, bias};
  for (Doubles* const all : {&of.y, &of.dq, &of.dk, &of.dv, &of.dbias})
    std::fill(all->values.begin(), all->values.end(), 0.0);
  const std::int64_t queries = q.shape[2], keys = k.shape[2], width = q.shape[3],
                     group = q.shape[1] / k.shape[1];
  const double scale = 1 / std::sqrt(static_cast<double>(width));
  for (std::int64_t b = 0; b < q.shape[0]; ++b) {
    for (std::int64_t h = 0; h < q.shape[1]; ++h) {
      for (std::int64_t i = 0; i < queries; ++i) {
        const std::int64_t of_keys = h / group, end = causal ? i + 1 : keys;
        Values p(static_cast<std::size_t>(end)), dp(p);
        double most = -1e300, total = 0, along = 0;
        for (std::int64_t j = 0; j < end; ++j) {
          double score = bias.at(b, h, i, j);
          for (std::int64_t w = 0; w < width; ++w) score += scale * q.at(b, h, i, w) * k.at(b, of_keys, j, w);
          if (mask && mask[b * keys + j] == 0) score -= 1e6;
          p[static_cast<std::size_t>(j)] = score;
          most = std::max(most, score);
        }
        for (double& score : p) total += score = std::exp(score - most);
        for (std::int64_t j = 0; j < end; ++j) {
          double& probability = p[static_cast<std::size_t>(j)];
          probability /= total;
          for (std::int64_t w = 0; w < width; ++w) {
            of.y.at(b, h, i, w) += probability * v.at(b, of_keys, j, w);
            of.dv.at(b, of_keys, j, w) += probability * dy.at(b, h, i, w);
            dp[static_cast<std::size_t>(j)] += dy.at(b, h, i, w) * v.at(b, of_keys, j, w);
          }
          along += probability * dp[static_cast<std::size_t>(j)];
        }
        for (std::int64_t j = 0; j < end; ++j) {
          const double ds = p[static_cast<std::size_t>(j)] * (dp[static_cast<std::size_t>(j)] - along);
          of.dbias.at(b, h, i, j) += ds;
          for (std::int64_t w = 0; w < width; ++w) {
            of.dq.at(b, h, i, w) += scale * ds * k.at(b, of_keys, j, w);
            of.dk.at(b, of_keys, j, w) += scale * ds * q.at(b, h, i, w);
          }
        }
      }
    }
  }
  return of;
}

BOOST_AUTO_TEST_CASE(drawn_attentions_with_a_bias_and_a_mask_agree_with_float64_at_any_number_of_threads) {
  for_drawn_cases([](Draws& draws) {
    const bool causal = draws.between(0, 3) == 0, is_long = draws.between(0, 7) == 0;
    const std::int64_t batch = draws.between(0, 3), key_heads = draws.between(1, 2),
                       heads = key_heads * draws.between(1, 2),
                       width = draws.one_of<std::int64_t>({1, 5, 8, 16}),
                       keys = is_long ? draws.between(513, 530) : draws.between(1, 60),
                       queries = causal ? keys : draws.between(1, 55);
    const auto one_or = [&](std::int64_t extent) { return draws.between(0, 1) ? extent : 1; };
    const Tensor q = draws.tensor({batch, heads, queries, width}),
                 k = draws.tensor({batch, key_heads, keys, width}),
                 v = draws.tensor({batch, key_heads, keys, width}),
                 bias = draws.tensor({one_or(batch), one_or(heads), one_or(queries), keys}),
                 dy = draws.tensor(q.shape());
    Tensor mask;
    if (draws.between(0, 1)) {
      mask = Tensor::zeros({batch, keys}, DType::int64);
      for (std::int64_t b = 0; b < batch; ++b)
        for (std::int64_t j = 0; j < keys; ++j)  // causal rows see their first key
          mask.data<std::int64_t>()[b * keys + j] = j == 0 || draws.between(0, 2) ? 1 : 0;
    }
    BOOST_TEST_CONTEXT("q " << to_string(q.shape()) << ", k " << to_string(k.shape()) << ", bias "
                            << to_string(bias.shape()) << (mask ? ", masked" : "")
                            << (causal ? ", causal" : "")) {
      const auto run = [&](Tape&, const std::vector<Var>& in) {
        return attention(in[0], in[1], in[2], causal, {}, {.bias = in[3], .key_mask = mask});
      };
      const Outcome found = same_at_any_threads(run, {q, k, v, bias}, dy);
      const Attended wanted = reference(Doubles(q), Doubles(k), Doubles(v), Doubles(bias),
                                        mask ? mask.data<std::int64_t>() : nullptr, causal, Doubles(dy));
      check_near(values_of(found.y), wanted.y.values, "y");
      const Doubles* const gradients[] = {&wanted.dq, &wanted.dk, &wanted.dv, &wanted.dbias};
      for (std::size_t i = 0; i < 4; ++i)
        check_near(values_of(found.gradients[i]), gradients[i]->values, "gradient " + std::to_string(i));
    }
  });
}

BOOST_AUTO_TEST_CASE(drawn_means_over_lengths_agree_with_float64_at_any_number_of_threads) {
  for_drawn_cases([](Draws& draws) {
    const std::int64_t batch = draws.between(0, 5), steps = draws.between(0, 40), width = draws.between(1, 9);
    const Tensor x = draws.tensor({batch, steps, width}), lengths = Tensor::zeros({batch}, DType::int64),
                 dy = draws.tensor({batch, width});
    Values y(static_cast<std::size_t>(dy.numel())), dx(static_cast<std::size_t>(x.numel()));
    for (std::int64_t n = 0; n < batch; ++n) {
      const std::int64_t length = lengths.data<std::int64_t>()[n] = draws.between(0, steps);
      for (std::int64_t i = length * width; i < steps * width; ++i)  // nothing reads these
        x.data<float>()[n * steps * width + i] = std::numeric_limits<float>::quiet_NaN();
      for (std::int64_t i = 0; i < length * width; ++i) {
        const auto at = static_cast<std::size_t>(n * width + i % width);
        y[at] += x.data<float>()[n * steps * width + i] / static_cast<double>(length);
        dx[static_cast<std::size_t>(n * steps * width + i)] =
            dy.data<float>()[at] / static_cast<double>(length);
      }
    }
    BOOST_TEST_CONTEXT("x " << to_string(x.shape())) {
      const auto mean = [&](Tape&, const std::vector<Var>& in) { return mean_over_lengths(in[0], lengths); };
      const Outcome found = same_at_any_threads(mean, {x}, dy);
      check_near(values_of(found.y), y, "y");
      check_near(values_of(found.gradients[0]), dx, "dx");
    }
  });
}

BOOST_AUTO_TEST_CASE(drawn_last_and_kept_steps_are_those_of_the_lengths) {
  for_drawn_cases([](Draws& draws) {
    const std::int64_t batch = draws.between(0, 5), steps = draws.between(1, 40), width = draws.between(1, 9);
    const Tensor x = draws.tensor({batch, steps, width}), lengths = Tensor::zeros({batch}, DType::int64),
                 dlast = draws.tensor({batch, width}), dkept = draws.tensor({batch, steps, width});
    Values last(static_cast<std::size_t>(dlast.numel())), of_last(static_cast<std::size_t>(x.numel())),
        kept = of_last, of_kept = of_last;
    for (std::int64_t n = 0; n < batch; ++n) {
      const std::int64_t length = lengths.data<std::int64_t>()[n] = draws.between(0, steps);
      for (std::int64_t i = 0; i < steps * width; ++i) {
        const auto at = static_cast<std::size_t>(n * steps * width + i),
                   in_last = static_cast<std::size_t>(n * width + i % width);
        if (i >= length * width) {  // nothing reads these
          x.data<float>()[at] = std::numeric_limits<float>::quiet_NaN();
          continue;
        }
        kept[at] = x.data<float>()[at];
        of_kept[at] = dkept.data<float>()[at];
        if (i / width != length - 1) continue;
        last[in_last] = x.data<float>()[at];
        of_last[at] = dlast.data<float>()[in_last];
      }
    }
    BOOST_TEST_CONTEXT("x " << to_string(x.shape())) {
      const Outcome one = same_at_any_threads(
          [&](Tape&, const std::vector<Var>& in) { return last_of_lengths(in[0], lengths); }, {x}, dlast);
      check_near(values_of(one.y), last, "last");
      check_near(values_of(one.gradients[0]), of_last, "gradient of last");
      const Outcome all = same_at_any_threads(
          [&](Tape&, const std::vector<Var>& in) { return keep_steps(in[0], lengths); }, {x}, dkept);
      check_near(values_of(all.y), kept, "kept");
      check_near(values_of(all.gradients[0]), of_kept, "gradient of kept");
    }
  });
}

struct OnTape {
  std::unique_ptr<kernels::Backend> backend = kernels::make_cpu_backend();
  Tape tape{*backend};

  OnTape() { tape.begin({}); }
  Var input(Shape shape) { return tape.input(normal_tensor(shape, 1)); }
  static Tensor integers(std::initializer_list<std::int64_t> values) {
    const Tensor tensor = Tensor::empty({static_cast<std::int64_t>(values.size())}, DType::int64);
    std::copy(values.begin(), values.end(), tensor.data<std::int64_t>());
    return tensor;
  }
};

BOOST_FIXTURE_TEST_CASE(a_mask_of_lengths_is_that_of_the_first_keys, OnTape) {
  const Var q = input({2, 1, 3, 4}), k = input({2, 1, 5, 4}), v = input({2, 1, 5, 4});
  const Tensor y = attention(q, k, v, false, {}, {.key_mask = length_mask(tape, integers({3, 3}), 5)})
                       .value(),
               first = attention(q, narrow(k, 2, 0, 3), narrow(v, 2, 0, 3), false).value();
  check_near(values_of(y), values_of(first), "y");
}

BOOST_FIXTURE_TEST_CASE(a_row_without_keys_attends_to_all, OnTape) {
  const Var k = input({1, 1, 4, 2});
  const Tensor y = attention(k, k, k, false, {}, {.key_mask = length_mask(tape, integers({0}), 4)}).value(),
               wanted = attention(k, k, k, false).value();
  for (std::int64_t i = 0; i < y.numel(); ++i)
    BOOST_CHECK_SMALL(y.data<float>()[i] - wanted.data<float>()[i], 1e-2f);
}

BOOST_FIXTURE_TEST_CASE(what_does_not_fit_is_told_by_name, OnTape) {
  const Var x = input({2, 3, 5, 4});
  BOOST_CHECK_EXCEPTION(attention(x, x, x, false, {}, {.bias = input({2, 5, 5})}), UsageError,
                        mentions("attention: a bias of shape [1, 2, 5, 5]", "[2, 3, 5, 5]"));
  BOOST_CHECK_EXCEPTION(attention(x, x, x, false, {}, {.key_mask = Tensor::zeros({2, 4}, DType::int64)}),
                        UsageError, mentions("attention: the key mask has shape [2, 4], not [2, 5]"));
  const Var series = input({2, 6, 4});
  BOOST_CHECK_EXCEPTION(mean_over_lengths(series, integers({6, 7})), DataError,
                        mentions("mean_over_lengths: index 7 (number 1) is outside [0, 7)"));
  BOOST_CHECK_EXCEPTION(length_mask(tape, integers({-1, 0}), 6), DataError,
                        mentions("length_mask: index -1 (number 0)"));
  BOOST_CHECK_EXCEPTION(mean_over_lengths(series, integers({6, 7, 1})), UsageError,
                        mentions("mean_over_lengths", "[2, 6, 4]"));
}

BOOST_AUTO_TEST_SUITE_END()
}  // namespace
}  // namespace lockstep::test
