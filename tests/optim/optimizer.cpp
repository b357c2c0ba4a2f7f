// What AdamW and SGD share: groups, frozen parameters, missing gradients, clipping, state, errors.
#include <boost/test/unit_test.hpp>
#include <cmath>
#include <limits>

#include "lockstep/ops/elementwise.h"
#include "lockstep/optim/adamw.h"
#include "lockstep/optim/sgd.h"
#include "optim/made_up_model.h"

namespace lockstep::test {
namespace {
BOOST_AUTO_TEST_SUITE(optimizer)

using namespace optim;

constexpr AdamWOptions adamw_options() { return {.lr = 1e-2, .betas = {0.9, 0.95}, .weight_decay = 0.1}; }
const SgdOptions momentum_options{.lr = 1e-2, .momentum = 0.9, .weight_decay = 0.01};

void copy_state(const Optimizer& from, Optimizer& to) {
  const std::vector<Slot> stored = from.slots(), slots = to.slots();
  BOOST_REQUIRE(stored.size() == slots.size());
  for (std::size_t s = 0; s < slots.size(); ++s)
    for (std::size_t e = 0; e < slots[s].entries.size(); ++e)
      copy_elements(stored[s].entries[e].tensor, slots[s].entries[e].tensor);
  to.set_steps(from.steps());
}

BOOST_FIXTURE_TEST_CASE(a_first_adamw_step_moves_by_lr_against_the_sign, UsualModel) {
  model.make_gradients(0);
  const auto before = values(model["hidden.bias"].value), gradient = values(model["hidden.bias"].gradient);
  AdamW adamw(model, {.lr = 1e-2});
  adamw.step();
  const auto after = values(model["hidden.bias"].value);
  for (std::size_t i = 0; i < after.size(); ++i)
    BOOST_TEST(std::abs(after[i] - (before[i] - std::copysign(1e-2f, gradient[i]))) < 1e-6f);
}

BOOST_FIXTURE_TEST_CASE(sgd_without_momentum_is_gradient_descent_on_the_mean, UsualModel) {
  model.make_gradients(0);
  model.set_count(4);
  const auto before = values(model["out.weight"].value), gradient = values(model["out.weight"].gradient);
  Sgd sgd(model, {.lr = 0.5});
  sgd.step();
  const auto after = values(model["out.weight"].value);
  for (std::size_t i = 0; i < after.size(); ++i)
    BOOST_TEST(std::abs(after[i] - (before[i] - 0.125f * gradient[i])) < 1e-6f);
}

BOOST_FIXTURE_TEST_CASE(count_divides_gradients_exactly, UsualModel) {
  UsualModel other;
  AdamW plain(model), weighted(other.model);
  other.model.set_count(64);  // a power of two: scaling by it rounds nothing
  for (std::uint64_t step = 0; step < 3; ++step) {
    model.make_gradients(step);
    other.model.make_gradients(step);
    for (Param* const param : other.model.params())
      if (param->gradient) other.model.backend().run(ops::scale(param->gradient, 64, param->gradient));
    plain.step({.clip = 1});
    weighted.step({.clip = 1});
  }
  BOOST_TEST((model.all_values() == other.model.all_values()));
}

BOOST_FIXTURE_TEST_CASE(matrices_decay_and_vectors_do_not_by_adamw_default, UsualModel) {
  UsualModel other;
  AdamW with(model, {.lr = 0.1, .weight_decay = 0.5}), without(other.model, {.lr = 0.1, .weight_decay = 0});
  model.make_gradients(0);
  other.model.make_gradients(0);
  with.step();
  without.step();
  BOOST_TEST(values(model["hidden.bias"].value) == values(other.model["hidden.bias"].value));
  const auto start = values(UsualModel().model["out.weight"].value);
  const auto a = values(model["out.weight"].value), b = values(other.model["out.weight"].value);
  for (std::size_t i = 0; i < a.size(); ++i) BOOST_TEST(std::abs(b[i] - a[i] - 0.05f * start[i]) < 1e-6f);
}

BOOST_FIXTURE_TEST_CASE(groups_scale_lr_and_decay, UsualModel) {
  UsualModel other;
  Sgd grouped(model, {.lr = 0.1, .weight_decay = 0.2, .groups = {{"hidden.*", 0.5, 2}, {"out.*", 1, 0}}});
  model.make_gradients(0);
  grouped.step();
  const auto expect = [&](const std::string& name, float lr, float decay) {
    const auto start = values(other.model[name].value), gradient = values(model[name].gradient);
    const auto after = values(model[name].value);
    for (std::size_t i = 0; i < after.size(); ++i)
      BOOST_TEST(std::abs(after[i] - (start[i] - lr * (gradient[i] + decay * start[i]))) < 1e-6f);
  };
  expect("hidden.weight", 0.05f, 0.4f);
  expect("hidden.bias", 0.05f, 0.4f);
  expect("out.weight", 0.1f, 0);
  expect("norm.scale", 0.1f, 0.2f);
}

BOOST_FIXTURE_TEST_CASE(frozen_parameters_have_no_slots_and_stay, UsualModel) {
  const auto before = values(model["embedding.weight"].value);
  AdamW adamw(model, adamw_options());
  Sgd sgd(model, momentum_options);
  for (const Slot& slot : adamw.slots()) {
    BOOST_TEST(slot.entries.size() == 4u);
    for (const Slot::Entry& entry : slot.entries) BOOST_TEST(entry.name != "embedding.weight");
  }
  BOOST_TEST(sgd.slots().at(0).entries.size() == 4u);
  model.make_gradients(0);
  adamw.step();
  sgd.step();
  BOOST_TEST(values(model["embedding.weight"].value) == before);
}

BOOST_FIXTURE_TEST_CASE(slots_carry_pytorchs_names_and_the_parameters_shapes, UsualModel) {
  const std::vector<Slot> adamw = AdamW(model).slots(), sgd = Sgd(model, momentum_options).slots();
  BOOST_REQUIRE(adamw.size() == 3u);
  BOOST_TEST(adamw[0].name == "exp_avg");
  BOOST_TEST(adamw[1].name == "exp_avg_sq");
  BOOST_TEST(adamw[2].name == "step");
  for (const std::size_t s : {0, 1})
    for (const Slot::Entry& entry : adamw[s].entries) {
      BOOST_CHECK(entry.tensor.shape() == model[entry.name].value.shape());
      BOOST_TEST(values(entry.tensor) == std::vector<float>(static_cast<std::size_t>(entry.tensor.numel())));
    }
  for (const Slot::Entry& entry : adamw[2].entries) {
    BOOST_CHECK(entry.tensor.shape() == Shape());
    BOOST_TEST(*entry.tensor.data<std::int64_t>() == 0);
  }
  BOOST_REQUIRE(sgd.size() == 1u);
  BOOST_TEST(sgd[0].name == "momentum_buffer");
  BOOST_TEST(Sgd(model).slots().empty());
}

BOOST_FIXTURE_TEST_CASE(a_parameter_without_gradient_is_left_alone_with_its_state, UsualModel) {
  AdamW adamw(model, adamw_options());
  model.make_gradients(0);
  adamw.step();
  const auto value = values(model["hidden.weight"].value);
  const auto average = values(adamw.slots()[0].entries[1].tensor);
  BOOST_TEST(adamw.slots()[0].entries[1].name == "hidden.weight");
  model.make_gradients(1);
  model["hidden.weight"].gradient = {};
  adamw.step();
  BOOST_TEST(values(model["hidden.weight"].value) == value);
  BOOST_TEST(values(adamw.slots()[0].entries[1].tensor) == average);
  BOOST_TEST(*adamw.slots()[2].entries[1].tensor.data<std::int64_t>() == 1);
  BOOST_TEST(*adamw.slots()[2].entries[0].tensor.data<std::int64_t>() == 2);
  BOOST_TEST(adamw.steps() == 2);
}

BOOST_FIXTURE_TEST_CASE(a_parameter_that_joins_late_starts_like_any_other, UsualModel) {
  UsualModel other;
  AdamW late(model, adamw_options()), early(other.model, adamw_options());
  for (std::uint64_t step = 0; step < 5; ++step) {
    model.make_gradients(step);
    if (step < 3) model["hidden.bias"].gradient = {};
    late.step();
  }
  for (std::uint64_t step = 3; step < 5; ++step) {
    other.model.make_gradients(step);
    early.step();
  }
  BOOST_TEST(values(model["hidden.bias"].value) == values(other.model["hidden.bias"].value));
}

BOOST_FIXTURE_TEST_CASE(clipping_scales_the_gradient_by_the_norm_of_all, UsualModel) {
  UsualModel other;
  Sgd clipped(model, {.lr = 1}), plain(other.model, {.lr = 1});
  model.make_gradients(0);
  other.model.make_gradients(0);
  const double norm = gradient_norm(model);
  const UpdateResult result = clipped.step({.clip = 0.5});
  BOOST_TEST(result.gradient_norm == norm);
  BOOST_TEST(result.clip_factor == 0.5 / (norm + 1e-6));
  plain.step({.lr = result.clip_factor});
  for (const Param* const param : model.params()) {
    const auto a = values(param->value), b = values(other.model[param->name].value);
    for (std::size_t i = 0; i < a.size(); ++i) BOOST_TEST(std::abs(a[i] - b[i]) < 1e-6f);
  }
}

BOOST_FIXTURE_TEST_CASE(a_norm_within_the_limit_changes_no_bit, UsualModel) {
  UsualModel other;
  AdamW clipped(model), plain(other.model);
  model.make_gradients(0);
  other.model.make_gradients(0);
  clipped.step({.clip = 1e6});
  const UpdateResult unmeasured = plain.step();
  BOOST_TEST(std::isnan(unmeasured.gradient_norm));
  BOOST_TEST((model.all_values() == other.model.all_values()));
  BOOST_TEST(plain.step({.measure_norm = true}).gradient_norm == gradient_norm(other.model));
}

BOOST_FIXTURE_TEST_CASE(a_step_takes_the_rate_it_is_given, UsualModel) {
  UsualModel other;
  Sgd given(model, {.lr = 7}), set(other.model, {.lr = 7});
  model.make_gradients(0);
  other.model.make_gradients(0);
  given.step({.lr = 0.25});
  set.set_lr(0.25);
  set.step();
  BOOST_TEST(given.lr() == 7);
  BOOST_TEST((model.all_values() == other.model.all_values()));
}

BOOST_AUTO_TEST_CASE(state_carried_over_continues_bit_for_bit) {
  const auto run = [](auto make, int interrupt_at) {
    auto host = std::make_unique<UsualModel>();
    auto optimizer = make(host->model);
    for (int step = 0; step < 6; ++step) {
      if (step == interrupt_at) {
        auto fresh = std::make_unique<UsualModel>(99);
        auto resumed = make(fresh->model);
        for (Param* const param : fresh->model.params())
          copy_elements(host->model[param->name].value, param->value);
        copy_state(*optimizer, *resumed);
        optimizer = std::move(resumed);
        host = std::move(fresh);
      }
      UsualModel gradients;
      gradients.model.make_gradients(static_cast<std::uint64_t>(step));
      for (Param* const param : host->model.params()) param->gradient = gradients.model[param->name].gradient;
      if (step < 2) host->model["norm.scale"].gradient = {};
      optimizer->step({.clip = 1});
    }
    BOOST_TEST(optimizer->steps() == 6);
    return host->model.all_values();
  };
  const auto adamw = [](GradientSource& source) -> std::unique_ptr<Optimizer> {
    return std::make_unique<AdamW>(source, adamw_options());
  };
  const auto sgd = [](GradientSource& source) -> std::unique_ptr<Optimizer> {
    return std::make_unique<Sgd>(source, momentum_options);
  };
  for (const int at : {1, 4}) {
    BOOST_TEST((run(adamw, -1) == run(adamw, at)));
    BOOST_TEST((run(sgd, -1) == run(sgd, at)));
  }
}

BOOST_FIXTURE_TEST_CASE(a_refused_step_changes_nothing, UsualModel) {
  AdamW adamw(model, adamw_options());
  const auto before = model.all_values();
  BOOST_CHECK_EXCEPTION(adamw.step(), UsageError, mentions("step 1: no parameter has a gradient"));
  model.make_gradients(0);
  model.set_count(0);
  BOOST_CHECK_EXCEPTION(adamw.step(), TrainingError, mentions("step 1: nothing in the global batch counts"));
  model.set_count(1);
  model["out.weight"].gradient.data<float>()[0] = std::numeric_limits<float>::quiet_NaN();
  BOOST_CHECK_EXCEPTION(adamw.step({.clip = 1}), TrainingError, mentions("'out.weight'"));
  BOOST_CHECK_THROW(adamw.step({.lr = -1}), UsageError);
  model.make_gradients(0);
  model["embedding.weight"].gradient = normal({7, 5}, 1, "thawed");
  BOOST_CHECK_EXCEPTION(adamw.step(), UsageError, mentions("'embedding.weight'", "frozen"));
  BOOST_TEST((model.all_values() == before));
  BOOST_TEST(adamw.steps() == 0);
}

BOOST_FIXTURE_TEST_CASE(bad_options_are_errors, UsualModel) {
  BOOST_CHECK_THROW(AdamW(model, {.lr = -1}), UsageError);
  BOOST_CHECK_THROW(AdamW(model, {.betas = {0.9, 1}}), UsageError);
  BOOST_CHECK_THROW(AdamW(model, {.eps = -1e-8}), UsageError);
  BOOST_CHECK_THROW(AdamW(model, {.weight_decay = std::nan("")}), UsageError);
  BOOST_CHECK_THROW(AdamW(model, {.groups = {{"nobody"}}}), UsageError);
  BOOST_CHECK_THROW(Sgd(model, {.momentum = 1}), UsageError);
  BOOST_CHECK_THROW(Sgd(model, {.nesterov = true}), UsageError);
  BOOST_CHECK_THROW(AdamW(model).set_steps(-1), UsageError);
}

BOOST_AUTO_TEST_SUITE_END()
}  // namespace
}  // namespace lockstep::test
