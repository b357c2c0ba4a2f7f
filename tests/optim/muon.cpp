// Muon: which parameters it takes, and what becomes of the others. Its numbers are golden_optim.cpp's.
#include "lockstep/optim/muon.h"

#include <boost/test/unit_test.hpp>
#include <string>
#include <vector>

#include "lockstep/base/error.h"
#include "optim/made_up_model.h"

namespace lockstep::test {
namespace {
BOOST_AUTO_TEST_SUITE(muon)

using namespace optim;

struct Small {
  Small() {
    model.add("table.weight", {7, 5}).role = Param::Role::embedding;
    model.add("hidden.weight", {11, 3});
    model.add("hidden.bias", {11});
    model.add("frozen.weight", {4, 4}, false);
    model.add("kernel.weight", {2, 3, 3, 3});
    model.add("out.weight", {6, 11}).role = Param::Role::head;
  }
  std::vector<std::string> taken(const std::vector<std::string>& patterns = {}) const {
    const std::vector<bool> taken = taken_by_muon(model.params(), patterns);
    std::vector<std::string> names;
    for (std::size_t i = 0; i < taken.size(); ++i)
      if (taken[i]) names.push_back(model.params()[i]->name);
    return names;
  }
  MadeUpModel model;
};

using Names = std::vector<std::string>;

BOOST_FIXTURE_TEST_CASE(it_takes_trained_matrices_that_are_neither_embeddings_nor_heads, Small) {
  BOOST_TEST((taken() == Names{"hidden.weight"}));
}

BOOST_FIXTURE_TEST_CASE(patterns_say_what_it_takes_whatever_its_role, Small) {
  BOOST_TEST((taken({"out.*", "t?ble.weight"}) == Names{"table.weight", "out.weight"}));
  BOOST_TEST((taken({"*n.weight", "out.weight"}) == Names{"hidden.weight", "out.weight"}));
}

BOOST_FIXTURE_TEST_CASE(a_pattern_that_takes_nothing_or_no_matrix_is_refused, Small) {
  BOOST_CHECK_EXCEPTION(taken({"hiden.weight"}), UsageError,
                        mentions("'hiden.weight' matches no parameter", "did you mean 'hidden.weight'?"));
  BOOST_CHECK_EXCEPTION(taken({"hidden.*"}), UsageError, mentions("'hidden.*'", "'hidden.bias'", "[11]"));
  BOOST_CHECK_EXCEPTION(taken({"kernel.weight"}), UsageError, mentions("[2, 3, 3, 3]", "two dimensions"));
  BOOST_CHECK_EXCEPTION(taken({"frozen.weight"}), UsageError, mentions("frozen parameters only"));
}

BOOST_AUTO_TEST_CASE(a_model_without_such_matrices_is_refused) {
  MadeUpModel model;
  model.add("table.weight", {7, 5}).role = Param::Role::embedding;
  model.add("bias", {5});
  BOOST_CHECK_EXCEPTION(Muon{model}, UsageError,
                        mentions("neither an embedding nor an output head", "AdamW"));
}

BOOST_FIXTURE_TEST_CASE(each_parameter_has_the_state_of_its_own_rule, Small) {
  const Muon muon(model);
  const Names others{"table.weight", "hidden.bias", "kernel.weight", "out.weight"};
  std::vector<std::string> slots;
  for (const Slot& slot : muon.slots()) {
    slots.push_back(slot.name);
    Names names;
    for (const Slot::Entry& entry : slot.entries) names.push_back(entry.name);
    BOOST_TEST((names == (slot.name == "momentum_buffer" ? Names{"hidden.weight"} : others)), slot.name);
  }
  BOOST_TEST((slots == Names{"exp_avg", "exp_avg_sq", "step", "momentum_buffer"}));
  const std::size_t elements = 2 * (7 * 5 + 11 + 2 * 3 * 3 * 3 + 6 * 11) + 11 * 3;
  BOOST_TEST(muon.state_bytes().held == elements * sizeof(float) + 4 * sizeof(std::int64_t));
  BOOST_TEST(muon.state_bytes().whole == muon.state_bytes().held);
}

BOOST_AUTO_TEST_CASE(what_it_does_not_take_has_the_bits_of_adamw) {
  Small with_muon, with_adamw;
  Muon muon(with_muon.model, {.lr = 0.01, .weight_decay = 0.1});
  AdamW adamw(with_adamw.model, {.lr = 0.01, .weight_decay = 0.1});
  for (std::uint64_t step = 0; step < 3; ++step) {
    with_muon.model.make_gradients(step);
    with_adamw.model.make_gradients(step);
    muon.step({.clip = 1});
    adamw.step({.clip = 1});
  }
  for (const Param* const param : with_muon.model.params()) {
    const bool same = values(param->value) == values(with_adamw.model[param->name].value);
    BOOST_TEST(same == (param->name != "hidden.weight"), param->name);
  }
}

BOOST_AUTO_TEST_CASE(its_step_does_not_depend_on_the_scale_of_the_gradients) {
  Small small, large;
  large.model.set_count(1.0 / 64);  // gradients are divided by it
  Muon of_small(small.model), of_large(large.model);
  for (std::uint64_t step = 0; step < 3; ++step) {
    small.model.make_gradients(step);
    large.model.make_gradients(step);
    of_small.step();
    of_large.step();
  }
  BOOST_TEST((values(small.model["hidden.weight"].value) == values(large.model["hidden.weight"].value)));
}

BOOST_FIXTURE_TEST_CASE(a_gradient_of_zeros_leaves_a_matrix_to_its_decay, Small) {
  const std::vector<float> before = values(model["hidden.weight"].value);
  Muon muon(model, {.lr = 0.5, .weight_decay = 0.5});
  model["hidden.weight"].gradient = Tensor::zeros({11, 3});
  muon.step();
  const std::vector<float> after = values(model["hidden.weight"].value);
  for (std::size_t i = 0; i < before.size(); ++i) BOOST_TEST(after[i] == 0.75f * before[i]);
}

BOOST_FIXTURE_TEST_CASE(a_matrix_without_gradient_keeps_value_and_momentum, Small) {
  Muon muon(model);
  model.make_gradients(0);
  muon.step();
  const auto momentum = [&] { return values(muon.slots().back().entries[0].tensor); };
  const std::vector<float> value = values(model["hidden.weight"].value), buffer = momentum();
  model["hidden.weight"].gradient = {};
  muon.step();
  BOOST_TEST((values(model["hidden.weight"].value) == value));
  BOOST_TEST((momentum() == buffer));
}

BOOST_FIXTURE_TEST_CASE(a_bad_momentum_is_refused, Small) {
  for (const double momentum : {-0.1, 1.0})
    BOOST_CHECK_EXCEPTION(Muon(model, {.momentum = momentum}), UsageError, mentions("momentum", "[0, 1)"));
}

BOOST_AUTO_TEST_SUITE_END()
}  // namespace
}  // namespace lockstep::test
