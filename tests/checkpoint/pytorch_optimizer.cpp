// The state of PyTorch's AdamW: it gets the names of the model's parameters, and what is not such a state is
// refused.
#include <boost/test/unit_test.hpp>
#include <cmath>
#include <limits>

#include "checkpoint/pytorch_pickles.h"
#include "checkpoint/sample.h"
#include "lockstep/base/error.h"
#include "lockstep/checkpoint/convert.h"

namespace lockstep::test {
namespace {
BOOST_AUTO_TEST_SUITE(pytorch_optimizer)

namespace lc = checkpoint;
using namespace std::string_literals;
using namespace pickles;

BOOST_AUTO_TEST_CASE(the_state_of_adam_has_the_names_of_the_model) {
  Layer layer;
  lc::Weights weights;
  BOOST_TEST(lc::add_optimizer(weights, file_of_pytorch("training.pt"), layer.state)
                 .ends_with("training.pt: the state of AdamW after step 1, by the order of 2 parameters"));
  BOOST_TEST(weights.position.step == 1);
  BOOST_TEST_REQUIRE(weights.optimizer.size() == 4U);
  for (const auto& [section, value] : {std::pair{1, 0.1F}, {2, 0.001F}}) {  // of a gradient of 1
    const std::vector<lc::NamedTensor>& tensors =
        weights.optimizer[static_cast<std::size_t>(section)].tensors;
    BOOST_TEST_REQUIRE(tensors.size() == 2U);
    for (std::size_t i = 0; i < 2; ++i) {
      BOOST_TEST(tensors[i].name == layer.state.params[i]->name);
      BOOST_TEST(tensors[i].value.shape() == layer.state.params[i]->value.shape());
      for (std::int64_t e = 0; e < tensors[i].value.numel(); ++e)
        BOOST_TEST(std::abs(tensors[i].value.data<float>()[e] - value) < 1e-7);
    }
  }
  for (const lc::NamedTensor& count : weights.optimizer[3].tensors)
    BOOST_TEST(*count.value.data<std::int64_t>() == 1);
}

BOOST_FIXTURE_TEST_CASE(what_is_not_the_state_of_an_optimizer_is_refused, Files) {
  const std::string moments = text("exp_avg") + tensor(0, {2, 3}, {3, 1}) + text("exp_avg_sq") +
                              tensor(0, {2, 3}, {3, 1}),
                    vectors =
                        text("exp_avg") + tensor(0, {2}, {1}) + text("exp_avg_sq") + tensor(0, {2}, {1}),
                    step = text("step") + number(7), both = "](" + number(0) + number(1) + "e";
  const auto saved = [](const std::string& states, const std::string& groups) {
    return pickle(dict(text("state") + states + text("param_groups") + groups));
  };
  const auto states = [&](const std::string& first) {
    return dict(number(0) + dict(first) + number(1) + dict(vectors + step));
  };
  const auto groups = [](const std::string& params) { return "](" + dict(text("params") + params) + "e"; };
  Layer layer;
  lc::Weights weights;
  write(saved(states(moments + step), groups(both)));
  lc::add_optimizer(weights, path, layer.state);
  BOOST_TEST(weights.position.step == 7);
  const auto cannot = [&](const std::string& pickled, const char* why) {
    write(pickled);
    std::string said;
    try {
      lc::add_optimizer(weights, path, layer.state);
    } catch (const DataError& error) {
      said = error.what();
    }
    BOOST_TEST(said.find(why) != std::string::npos, why << ": " << said);
  };
  cannot(saved(number(1), groups(both)), "no state_dict()");
  cannot(saved(states(moments + step), number(1)), "no state_dict()");
  cannot(saved(states(moments + step), groups(number(2))),
         "holds the state of 1 parameter, but the model has 2");
  cannot(saved(states(moments + step), groups("](" + text("0") + dict("") + "e")), "no state_dict()");
  cannot(saved(states(text("exp_avg") + number(0) + text("exp_avg_sq") + number(1) + step), groups(both)),
         "no state_dict()");
  cannot(saved(states(moments), groups(both)), R"(holds "exp_avg", "exp_avg_sq"; the state of AdamW)");
  cannot(saved(states(moments + step + text("a\nb") + number(1)), groups(both)),
         R"(holds "a\nb", "exp_avg",)");
  cannot(saved(states(moments + text("step") + number(-1)), groups(both)), "-1 is not a number of steps");
  cannot(saved(states(moments + text("step") + tensor(0, {2}, {1})), groups(both)),
         "a step is float32 [2], not floats []");
  cannot(saved(states(moments + text("step") + dict("")), groups(both)), "no state_dict()");
  cannot(saved(states(vectors + step), groups(both)),
         R"(weight is [2, 3] in the model, next in the groups: "0" [2];)");
  cannot(saved(states(moments + step), groups("](" + number(0) + number(0) + "e")),
         R"(bias is [2] in the model)");
  cannot(pickle(std::string(100'000, ']') + "N" + std::string(100'000, 'a')),
         "holds the state of 0 optimizers");
  std::string wide = "N";
  for (char level = 0; level < 7; ++level) {  // a hundred times the level before
    std::string times = "](" + wide + "q" + level;
    for (int time = 1; time < 100; ++time) times += "h"s + level;
    wide = times + "e";
  }
  cannot(pickle(wide), "its pickle holds too much beside tensors");
}

/// The state of Layer, with these entries of its group and these states of weight and bias.
std::string saved_state(const std::string& options, const std::string& weight, const std::string& bias) {
  return pickle(dict(text("state") + dict(weight + bias) + text("param_groups") + "](" +
                     dict(text("params") + "](" + number(0) + number(1) + "e" + options) + "e"));
}
std::string state(std::int64_t param, std::int64_t steps, const std::string& moments) {
  return number(param) +
         dict(text("exp_avg") + moments + text("exp_avg_sq") + moments + text("step") + number(steps));
}
const std::string of_weight = tensor(0, {2, 3}, {3, 1}), of_bias = tensor(6, {2}, {1});

BOOST_FIXTURE_TEST_CASE(moments_that_no_training_has_are_refused, Files) {
  Layer layer;
  lc::Weights weights;
  const auto cannot = [&](const std::vector<float>& values, const char* why) {
    write(saved_state("", state(0, 3, of_weight), state(1, 3, of_bias)), values);
    BOOST_CHECK_EXCEPTION(lc::add_optimizer(weights, path, layer.state), DataError, mentions(why));
  };
  cannot({1, 2, 3, 4, -5, 6, 7, 8}, "exp_avg_sq of weight has negative numbers");
  cannot({1, 2, 3, 4, 5, 6, 7, std::nanf("")},
         "optimizer/exp_avg has numbers that are not finite: bias (1 of 2)");
  cannot({std::numeric_limits<float>::infinity(), 2, 3, 4, 5, 6, 7, 8},
         "optimizer/exp_avg has numbers that are not finite: weight (1 of 6)");
}

BOOST_FIXTURE_TEST_CASE(options_of_another_optimizer_than_adamw_are_refused, Files) {
  const std::string yes = "\x88", no = "\x89";
  Layer layer;
  lc::Weights weights;
  const auto write_with = [&](const std::string& options) {
    write(saved_state(options, state(0, 3, of_weight), state(1, 3, of_bias)));
  };
  for (const auto& [options, why] :
       {std::pair{text("amsgrad") + yes, "amsgrad = True, which Lockstep's AdamW does not do"},
        {text("amsgrad") + no + text("maximize") + yes,
         "maximize = True, which Lockstep's AdamW does not do"},
        {text("foreach") + "N" + text("maximize") + no, "another optimizer (RAdam?)"}}) {
    write_with(options);
    BOOST_CHECK_EXCEPTION(lc::add_optimizer(weights, path, layer.state), DataError, mentions(why));
  }
  write_with(text("foreach") + "N" + text("amsgrad") + no + text("maximize") + no);
  BOOST_TEST(lc::add_optimizer(weights, path, layer.state).ends_with("by the order of 2 parameters"));
}

BOOST_FIXTURE_TEST_CASE(parameters_without_a_state_and_with_fewer_steps_are_said, Files) {
  Layer layer;
  lc::Weights weights;
  write(saved_state("", state(0, 3, of_weight), ""));
  BOOST_TEST(lc::add_optimizer(weights, path, layer.state)
                 .ends_with("2 parameters; without state, so that they begin anew: bias"));
  write(saved_state("", state(0, 3, of_weight), state(1, 2, of_bias)));
  BOOST_TEST(lc::add_optimizer(weights, path, layer.state)
                 .ends_with("2 parameters; the fewest steps of a parameter are 2"));
}

BOOST_AUTO_TEST_SUITE_END()
}  // namespace
}  // namespace lockstep::test
