// Models of series: what lengths say, names of parameters, errors. tests/train/golden_regression.cpp compares
// them with PyTorch.
#include "lockstep/models/series.h"

#include <boost/test/unit_test.hpp>
#include <cmath>
#include <cstring>
#include <limits>

#include "lockstep/autograd/functions.h"
#include "lockstep/autograd/gradient_sink.h"
#include "lockstep/base/random.h"
#include "support/backend_under_test.h"
#include "support/mentions.h"
#include "support/model_maker.h"

namespace lockstep::test {
namespace {

using models::Encoder;
using models::Pooling;
using models::Rnn;
using models::SeriesOptions;
using Names = std::vector<std::string>;

constexpr std::int64_t samples = 5, steps = 8, features = 3, outputs = 4;

ModelMaker encoder(const SeriesOptions& series, bool causal = false, bool recompute = false) {
  return ModelMaker::of<Encoder>(recompute ? "encoder, recomputed"
                                 : causal  ? "causal encoder"
                                           : "encoder",
                                 {.series = series,
                                  .context = 32,
                                  .layers = 2,
                                  .heads = 2,
                                  .channels = 16,
                                  .mlp_channels = 24,
                                  .causal = causal,
                                  .recompute = recompute});
}
ModelMaker rnn(const SeriesOptions& series, nn::Cell cell) {
  return ModelMaker::of<Rnn>(cell == nn::Cell::gru ? "gru" : "lstm",
                             {.series = series, .cell = cell, .layers = 2, .hidden = 12});
}
std::vector<ModelMaker> all_of(const SeriesOptions& series) {
  return {encoder(series), encoder(series, true), encoder(series, false, true), rnn(series, nn::Cell::gru),
          rnn(series, nn::Cell::lstm)};
}

Tensor normals(const Shape& shape, std::uint64_t seed) {
  const Tensor tensor = Tensor::empty(shape);
  const Random random({.seed = seed, .purpose = purpose_of("series")});
  for (std::int64_t i = 0; i < tensor.numel(); ++i)
    tensor.data<float>()[i] = random.normal(static_cast<std::uint64_t>(i));
  return tensor;
}

Tensor integers(std::initializer_list<std::int64_t> values) {
  const Tensor tensor = Tensor::empty({static_cast<std::int64_t>(values.size())}, DType::int64);
  std::copy(values.begin(), values.end(), tensor.data<std::int64_t>());
  return tensor;
}

/// The first steps of x [N, T, ...], and `value` in the others, `more` of which are appended.
Tensor padded(const Tensor& x, const Tensor& lengths, float value, std::int64_t more = 0) {
  const std::int64_t width = x.numel() / (x.size(0) * x.size(1)), extent = x.size(1) + more;
  const Tensor to = Tensor::empty(x.shape().with(1, extent));
  for (std::int64_t n = 0; n < x.size(0); ++n)
    for (std::int64_t i = 0; i < extent * width; ++i)
      to.data<float>()[n * extent * width + i] =
          i < lengths.data<std::int64_t>()[n] * width ? x.data<float>()[n * x.size(1) * width + i] : value;
  return to;
}

/// The squared error over the steps that exist, and the gradients of all parameters, one after another.
struct Learned {
  ops::CountedSum loss;
  std::vector<float> gradients;
};
Learned learn(const ModelMaker& maker, const Batch& batch, DType compute = DType::float32) {
  const auto backend = make_backend_under_test();
  const auto model = maker.make(3);
  LocalGradients gradients(*model, *backend);
  Tape tape(*backend);
  tape.begin({.sink = &gradients, .compute = compute});
  PerSample of;
  if (const std::string lengths = model->output_lengths(); batch.has(lengths)) of.lengths = batch[lengths];
  const Loss loss = mse(model->forward(tape, batch), batch["y"], of);
  Learned found{.loss = loss.read(), .gradients = {}};
  backward(loss);
  tape.finish_backward();
  for (const Param* const param : gradients.params())
    found.gradients.insert(found.gradients.end(), param->gradient.data<float>(),
                           param->gradient.data<float>() + param->gradient.numel());
  return found;
}

void check_same_bits(const Learned& a, const Learned& b) {
  BOOST_TEST(a.loss.sum == b.loss.sum);
  BOOST_TEST(a.loss.count == b.loss.count);
  BOOST_REQUIRE(a.gradients.size() == b.gradients.size());
  BOOST_TEST(std::memcmp(a.gradients.data(), b.gradients.data(), a.gradients.size() * sizeof(float)) == 0);
  BOOST_TEST(std::isfinite(a.loss.sum));
}

void check_near(const Learned& a, const Learned& b, double within) {
  BOOST_TEST(std::abs(a.loss.sum - b.loss.sum) <= within * std::abs(b.loss.sum));
  BOOST_TEST(a.loss.count == b.loss.count);
  BOOST_REQUIRE(a.gradients.size() == b.gradients.size());
  double largest = 0, off = 0;
  for (std::size_t i = 0; i < a.gradients.size(); ++i) {
    largest = std::max(largest, std::abs(static_cast<double>(b.gradients[i])));
    off = std::max(off, std::abs(static_cast<double>(a.gradients[i]) - b.gradients[i]));
  }
  BOOST_TEST(off <= within * largest);
}

/// What the models of each kind of output learn from, with lengths of x.
struct Work {
  SeriesOptions series;
  Tensor y;
};
std::vector<Work> all_work() {
  const SeriesOptions series{.features = features, .outputs = outputs};
  std::vector<Work> all(4, {series, normals({samples, outputs}, 2)});
  all[1].series.pooling = Pooling::last;
  all[2] = {series, normals({samples, steps, outputs}, 2)};
  all[2].series.pooling = Pooling::none;
  all[3] = {series, normals({samples, 6, outputs}, 2)};
  all[3].series.horizon = 6;
  return all;
}

BOOST_AUTO_TEST_SUITE(series)

BOOST_AUTO_TEST_CASE(what_the_padding_holds_changes_no_bit) {
  const Tensor lengths = integers({8, 3, 1, 0, 5}), y_lengths = integers({6, 0, 2, 6, 1}),
               x = normals({samples, steps, features}, 1);
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const Work& work : all_work()) {
    const bool by_step = work.series.pooling == Pooling::none, forecast = work.series.horizon > 0;
    for (const ModelMaker& maker : all_of(work.series)) {
      BOOST_TEST_CONTEXT(maker.name << ", pooling " << static_cast<int>(work.series.pooling)) {
        const auto learned = [&](float padding, DType compute) {
          const Tensor y = by_step    ? padded(work.y, lengths, padding)
                           : forecast ? padded(work.y, y_lengths, padding)
                                      : work.y;
          Batch batch(0, {{"x", padded(x, lengths, padding)}, {"lengths", lengths}, {"y", y}});
          if (forecast) batch.add("y_lengths", y_lengths);
          return learn(maker, batch, compute);
        };
        for (const DType compute : {DType::float32, DType::bfloat16}) {
          const Learned found = learned(0, compute);
          check_same_bits(learned(nan, compute), found);
          check_same_bits(learned(1e30f, compute), found);
        }
        const double all = by_step ? 17 : forecast ? 15 : samples;
        BOOST_TEST(learned(0, DType::float32).loss.count == all * outputs);
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(more_padding_changes_nothing) {
  const Tensor lengths = integers({8, 3, 1, 0, 5}), x = normals({samples, steps, features}, 1);
  for (const Work& work : all_work()) {
    if (work.series.horizon > 0) continue;
    for (const ModelMaker& maker : all_of(work.series)) {
      BOOST_TEST_CONTEXT(maker.name << ", pooling " << static_cast<int>(work.series.pooling)) {
        const auto learned = [&](std::int64_t more) {
          const Tensor y = work.series.pooling == Pooling::none ? padded(work.y, lengths, 0, more) : work.y;
          return learn(maker, Batch(0, {{"x", padded(x, lengths, 0, more)}, {"lengths", lengths}, {"y", y}}));
        };
        check_near(learned(11), learned(0), 1e-6);
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(full_lengths_are_those_of_a_batch_without_lengths) {
  const Tensor lengths = integers({8, 8, 8, 8, 8}), x = normals({samples, steps, features}, 1);
  for (const Work& work : all_work())
    for (const ModelMaker& maker : all_of(work.series)) BOOST_TEST_CONTEXT(maker.name)
  check_near(learn(maker, Batch(0, {{"x", x}, {"lengths", lengths}, {"y", work.y}})),
             learn(maker, Batch(0, {{"x", x}, {"y", work.y}})), 1e-6);
}

BOOST_AUTO_TEST_CASE(a_series_without_steps_has_the_bias_of_the_head_as_output) {
  const auto backend = make_backend_under_test();
  for (const Pooling pooling : {Pooling::mean, Pooling::last}) {
    for (const ModelMaker& maker : all_of({.features = features, .outputs = outputs, .pooling = pooling})) {
      const auto model = maker.make(3);
      Tape tape(*backend);
      tape.begin({.training = false, .record = false});
      const Tensor y =
          model
              ->forward(tape,
                        Batch(0, {{"x", normals({2, steps, features}, 1)}, {"lengths", integers({0, 4})}}))
              .value();
      const Param* const bias = model->state().params.back();
      BOOST_TEST(bias->name == "head.bias");
      for (std::int64_t k = 0; k < outputs; ++k)
        BOOST_TEST(y.data<float>()[k] == bias->value.data<float>()[k], maker.name);
    }
  }
}

BOOST_AUTO_TEST_CASE(recomputation_has_the_same_bits) {
  const Batch batch(0, {{"x", normals({samples, steps, features}, 1)},
                        {"lengths", integers({8, 3, 1, 0, 5})},
                        {"y", normals({samples, outputs}, 2)}});
  const SeriesOptions series{.features = features, .outputs = outputs};
  check_near(learn(encoder(series, false, true), batch), learn(encoder(series), batch), 1e-6);
}

BOOST_AUTO_TEST_CASE(parameters_have_pytorchs_names_and_order) {
  const auto names = [](const ModelMaker& maker) {
    const auto model = maker.make(1);
    Names found;
    for (const Param* const param : model->state().params) found.push_back(param->name);
    return found;
  };
  const SeriesOptions series{.features = features, .outputs = outputs};
  Names wanted{"input.weight", "input.bias", "positions.weight"};
  for (const char* const layer : {"encoder.layers.0.", "encoder.layers.1."})
    for (const char* const name :
         {"self_attn.in_proj_weight", "self_attn.in_proj_bias", "self_attn.out_proj.weight",
          "self_attn.out_proj.bias", "linear1.weight", "linear1.bias", "linear2.weight", "linear2.bias",
          "norm1.weight", "norm1.bias", "norm2.weight", "norm2.bias"})
      wanted.push_back(std::string(layer) + name);
  for (const char* const name : {"encoder.norm.weight", "encoder.norm.bias", "head.weight", "head.bias"})
    wanted.emplace_back(name);
  BOOST_TEST(names(encoder(series)) == wanted, boost::test_tools::per_element());
  BOOST_TEST(names(rnn(series, nn::Cell::lstm)) ==
                 (Names{"rnn.weight_ih_l0", "rnn.weight_hh_l0", "rnn.bias_ih_l0", "rnn.bias_hh_l0",
                        "rnn.weight_ih_l1", "rnn.weight_hh_l1", "rnn.bias_ih_l1", "rnn.bias_hh_l1",
                        "head.weight", "head.bias"}),
             boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(errors_name_the_key_to_change) {
  const SeriesOptions series{.features = features, .outputs = outputs};
  const auto model = encoder(series).make(1);
  const auto refused = [&](const models::Model& of, const Shape& x, const Names& words) {
    BOOST_CHECK_EXCEPTION(of.check_input(x), DataError, mentions(words));
  };
  refused(*model, {2, 8, 5}, {"[2, 8, 5]", "encoder", "model.features"});
  refused(*model, {2, 33, 3}, {"[2, 33, 3]", "time <= 32", "model.context"});
  refused(*model, {2, 8}, {"[2, 8]", "x[:, :, None]"});
  refused(*rnn(series, nn::Cell::gru).make(1), {2, 8, 5}, {"rnn", "[batch, time, 3]", "model.features"});
  const auto target = [&](const SeriesOptions& of, const Shape& y, bool labels, const Names& words) {
    BOOST_CHECK_EXCEPTION(encoder(of).make(1)->check_target(y, labels), DataError, mentions(words));
  };
  SeriesOptions forecast = series, by_step = series;
  forecast.horizon = 6;
  by_step.pooling = Pooling::none;
  target(series, {2, 5}, false, {"[2, 5]", "[batch, 4]", "model.outputs"});
  target(forecast, {2, 7, 4}, false, {"[2, 7, 4]", "[batch, 6, 4]", "model.horizon"});
  target(by_step, {2}, true, {"[2]", "[batch, time]", "model.pooling"});
  target(series, {2, 8}, true, {"[2, 8]", "[batch]", "model.pooling"});
  by_step.horizon = 3;
  BOOST_CHECK_EXCEPTION(encoder(by_step).make(1), UsageError, mentions("model.pooling", "horizon"));
}

BOOST_AUTO_TEST_CASE(lengths_beyond_the_steps_are_an_error_in_the_data) {
  for (const ModelMaker& maker : all_of({.features = features, .outputs = outputs}))
    for (const std::int64_t wrong : {std::int64_t{9}, std::int64_t{-1}})
      BOOST_CHECK_EXCEPTION(learn(maker, Batch(0, {{"x", normals({2, steps, features}, 1)},
                                                   {"lengths", integers({2, wrong})},
                                                   {"y", normals({2, outputs}, 1)}})),
                            DataError, mentions(std::to_string(wrong), "(number 1)", "[0, 9)"));
}

BOOST_AUTO_TEST_SUITE_END()
}  // namespace
}  // namespace lockstep::test
