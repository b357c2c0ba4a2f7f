// Averages: their formula, names, buffers, exchange with the model, and that training never sees them.
#include "lockstep/optim/ema.h"

#include <boost/test/unit_test.hpp>
#include <cmath>
#include <stdexcept>

#include "lockstep/ops/elementwise.h"
#include "lockstep/optim/adamw.h"
#include "lockstep/optim/sgd.h"
#include "optim/made_up_model.h"

namespace lockstep::test {
namespace {
BOOST_AUTO_TEST_SUITE(ema)

using namespace optim;

Tensor whole_numbers(std::int64_t number) {
  Tensor tensor = Tensor::empty({}, DType::int64);
  *tensor.data<std::int64_t>() = number;
  return tensor;
}

std::vector<std::vector<float>> all_shadows(const Ema& ema) {
  std::vector<std::vector<float>> all;
  for (const EmaTensor& shadow : ema.tensors()) all.push_back(values(shadow.tensor));
  return all;
}

/// Training steps with EMA weights attached to the optimizer, updated apart from it, or absent.
enum class How { fused, apart, none };
template <class Optimizer, class Options>
void train(MadeUpModel& model, Ema* ema, const Options& options, How how) {
  Optimizer optimizer(model, options);
  if (how == How::fused) optimizer.attach(*ema);
  for (std::uint64_t step = 0; step < 6; ++step) {
    model.make_gradients(step);
    if (step % 2 == 1) model["hidden.bias"].gradient = {};
    optimizer.step({.clip = 1});
    if (how == How::apart) ema->update();
  }
}

BOOST_FIXTURE_TEST_CASE(shadows_start_as_copies, UsualModel) {
  const Ema ema(model.state(), model.backend(), {0.9, 0.5});
  for (const EmaTensor& shadow : ema.tensors()) {
    BOOST_TEST(values(shadow.tensor) == values(model[shadow.name].value));
    BOOST_CHECK(!shadow.tensor.shares_memory_with(model[shadow.name].value));
  }
}

BOOST_FIXTURE_TEST_CASE(every_rate_follows_the_direct_formula, UsualModel) {
  Ema ema(model.state(), model.backend(), {0.5, 0.99, 0.999, 0.0});
  Param& param = model["hidden.weight"];
  const auto n = static_cast<std::size_t>(param.value.numel());
  std::vector<std::vector<float>> history = {values(param.value)};
  for (std::uint64_t step = 0; step < 20; ++step) {
    copy_elements(normal(param.value.shape(), 5, "next", step), param.value);
    history.push_back(values(param.value));
    ema.update();
  }
  BOOST_TEST(ema.updates() == 20);
  for (const EmaProfile& profile : ema.profiles()) {
    const double rate = profile.parameter();
    std::vector<double> expected(n);
    for (std::size_t k = 0; k < history.size(); ++k) {
      const double share =
          k == 0 ? std::pow(rate, 20) : (1 - rate) * std::pow(rate, 20 - static_cast<double>(k));
      for (std::size_t i = 0; i < n; ++i) expected[i] += share * static_cast<double>(history[k][i]);
    }
    const auto shadow = values(ema.tensor(profile.name(), "hidden.weight"));
    double worst = 0;
    for (std::size_t i = 0; i < n; ++i) worst = std::max(worst, std::abs(shadow[i] - expected[i]));
    BOOST_TEST(worst < 3e-6, "rate " << profile.name() << " is off by " << worst);
  }
}

BOOST_FIXTURE_TEST_CASE(frozen_parameters_have_shadows, UsualModel) {
  Ema ema(model.state(), model.backend(), {0.9});
  model.make_gradients(0);
  AdamW adamw(model);
  adamw.attach(ema);
  adamw.step();
  const auto shadow = values(ema.tensor("0.9", "embedding.weight")),
             own = values(model["embedding.weight"].value);
  for (std::size_t i = 0; i < own.size(); ++i) BOOST_TEST(std::abs(shadow[i] - own[i]) < 1e-6f);
}

BOOST_AUTO_TEST_CASE(fused_and_separate_updates_give_the_same_bits) {
  const SgdOptions sgd{.lr = 0.1, .momentum = 0.9, .nesterov = true};
  UsualModel a, b, c, d;
  Ema fused_adamw(a.model.state(), a.model.backend(), {0.9, 0.999}),
      apart_adamw(b.model.state(), {0.9, 0.999});
  Ema fused_sgd(c.model.state(), c.model.backend(), {0.9, 0.999}), apart_sgd(d.model.state(), {0.9, 0.999});
  train<AdamW>(a.model, &fused_adamw, AdamWOptions{}, How::fused);
  train<AdamW>(b.model, &apart_adamw, AdamWOptions{}, How::apart);
  train<Sgd>(c.model, &fused_sgd, sgd, How::fused);
  train<Sgd>(d.model, &apart_sgd, sgd, How::apart);
  BOOST_TEST((all_shadows(fused_adamw) == all_shadows(apart_adamw)));
  BOOST_TEST((all_shadows(fused_sgd) == all_shadows(apart_sgd)));
  BOOST_TEST(fused_adamw.updates() == 6);
  BOOST_TEST((all_shadows(fused_adamw) != all_shadows(fused_sgd)));
}

BOOST_AUTO_TEST_CASE(training_never_sees_its_averages) {
  UsualModel with, apart, without;
  Ema fused(with.model.state(), with.model.backend(), {0.9, 0.99}), separate(apart.model.state(), {0.5});
  train<AdamW>(with.model, &fused, AdamWOptions{.lr = 0.01}, How::fused);
  train<AdamW>(apart.model, &separate, AdamWOptions{.lr = 0.01}, How::apart);
  train<AdamW>(without.model, nullptr, AdamWOptions{.lr = 0.01}, How::none);
  BOOST_TEST((with.model.all_values() == without.model.all_values()));
  BOOST_TEST((apart.model.all_values() == without.model.all_values()));
}

BOOST_AUTO_TEST_CASE(names_are_canonical_and_shortest) {
  BOOST_TEST(EmaProfile(0.99).name() == "0.99");
  BOOST_TEST(EmaProfile(0.990).name() == "0.99");
  BOOST_TEST(EmaProfile(0.9999).name() == "0.9999");
  BOOST_TEST(EmaProfile(0.5).name() == "0.5");
  BOOST_TEST(EmaProfile::power(0.05).name() == "sigma_rel=0.05");
}

BOOST_AUTO_TEST_CASE(a_name_is_known_however_its_number_is_written) {
  for (const char* const name : {"0.99", "0.990", "9.9e-1"})
    BOOST_TEST(EmaProfile::named(name).name() == "0.99");
  for (const char* const name : {"sigma_rel=0.1", "sigma_rel=0.10", "sigma_rel=1e-1"}) {
    BOOST_TEST(EmaProfile::named(name).name() == "sigma_rel=0.1");
    BOOST_TEST(EmaProfile::named(name).is_power());
  }
  for (const char* const name : {"", "best", "0.99x", "1.5", "sigma_rel=", "sigma_rel=0.5", "sigma_rel=nan"})
    BOOST_CHECK_THROW(EmaProfile::named(name), UsageError);
}

BOOST_AUTO_TEST_CASE(warm_up_follows_its_formula_and_ends_at_the_rate) {
  const EmaProfile profile = 0.9;
  const EmaWarmup simple{.inv_gamma = 1, .power = 1, .update_after = 3};
  for (const int n : {1, 2, 3, 4}) BOOST_TEST(profile.decay(n, simple) == 0);
  BOOST_TEST(std::abs(profile.decay(5, simple) - 0.5) < 1e-12);  // 1 - 1 / (1 + s): a plain mean
  BOOST_TEST(std::abs(profile.decay(6, simple) - 2.0 / 3) < 1e-12);
  BOOST_TEST(profile.decay(1000, simple) == 0.9);
  const EmaWarmup slow{.inv_gamma = 1, .power = 2.0 / 3};
  const EmaProfile high = 0.99999;  // 0.999 at 31.6 thousand updates, 0.9999 at a million
  BOOST_TEST(std::abs(high.decay(31623, slow) - 0.999) < 1e-6);
  BOOST_TEST(std::abs(high.decay(1000001, slow) - 0.9999) < 1e-7);
  BOOST_TEST(profile.decay(1) == 0.9);
}

BOOST_FIXTURE_TEST_CASE(warm_up_of_power_one_is_the_plain_mean, UsualModel) {
  Ema ema(model.state(), model.backend(), {0.9999},
          {.warmup = EmaWarmup{.inv_gamma = 1, .power = 1, .update_after = 0}});
  Param& param = model["norm.scale"];
  std::vector<double> sum(5);
  for (std::uint64_t step = 0; step < 10; ++step) {
    copy_elements(normal({5}, 3, "next", step), param.value);
    for (std::size_t i = 0; i < 5; ++i) sum[i] += static_cast<double>(values(param.value)[i]);
    ema.update();
  }
  const auto shadow = values(ema.tensor("0.9999", "norm.scale"));
  for (std::size_t i = 0; i < 5; ++i) BOOST_TEST(std::abs(shadow[i] - sum[i] / 10) < 1e-6);
}

BOOST_AUTO_TEST_CASE(power_profiles_have_the_published_exponents) {
  const auto gamma = [](double sigma_rel) {
    const EmaProfile profile = EmaProfile::power(sigma_rel);
    BOOST_TEST(profile.decay(2) == std::pow(0.5, profile.gamma() + 1));
    return profile.gamma();
  };
  BOOST_TEST(std::abs(gamma(0.05) - 16.9722) < 1e-4);
  BOOST_TEST(std::abs(gamma(0.10) - 6.93720) < 1e-5);
  BOOST_TEST(std::abs(gamma(0.15) - 3.55787) < 1e-5);
  BOOST_TEST(std::abs(gamma(0.20) - 1.82621) < 1e-5);
  BOOST_TEST(EmaProfile::power(0.1).decay(1) == 0);  // no trace of the initial values
}

BOOST_AUTO_TEST_CASE(buffers_follow_the_rule) {
  for (const EmaBuffers rule : {EmaBuffers::copy, EmaBuffers::average, EmaBuffers::leave}) {
    MadeUpModel model;
    model.add("weight", {3, 3});
    Buffer& mean = model.add_buffer("running_mean", Tensor::zeros({4}));
    Buffer& count = model.add_buffer("batches", whole_numbers(0));
    Ema ema(model.state(), model.backend(), {0.75}, {.buffers = rule});
    BOOST_TEST(ema.tensors().size() == (rule == EmaBuffers::leave ? 1u : 3u));
    model.backend().fill(mean.value, 8);
    *count.value.data<std::int64_t>() = 6;
    ema.update();
    if (rule != EmaBuffers::leave) {
      BOOST_TEST(values(ema.tensor("0.75", "running_mean"))[3] == (rule == EmaBuffers::copy ? 8.0f : 2.0f));
      BOOST_TEST(*ema.tensor("0.75", "batches").data<std::int64_t>() == 6);
    }
    model.backend().fill(mean.value, 100);
    {
      const auto evaluation = ema.swap_in("0.75");
      const float expected = rule == EmaBuffers::copy ? 8.0f : rule == EmaBuffers::average ? 2.0f : 100.0f;
      BOOST_TEST(values(mean.value)[0] == expected);
    }
    BOOST_TEST(values(mean.value)[0] == 100.0f);
  }
}

BOOST_FIXTURE_TEST_CASE(swap_in_exchanges_handles_and_puts_them_back, UsualModel) {
  Ema ema(model.state(), model.backend(), {0.5, 0.9});
  const auto trained = [&] {
    for (Param* const param : model.params()) model.backend().run(ops::scale(param->value, 2, param->value));
    ema.update();
    return model.all_values();
  }();
  const Tensor before = model["out.weight"].value;
  for (const std::string rate : {"0.9", "0.5"}) {
    const auto evaluation = ema.swap_in(rate);
    for (Param* const param : model.params()) {
      BOOST_CHECK(param->value.shares_memory_with(ema.tensor(rate, param->name)));
      BOOST_TEST(values(param->value) != values(before));
    }
  }
  BOOST_CHECK(model["out.weight"].value.shares_memory_with(before));
  BOOST_TEST((model.all_values() == trained));
}

BOOST_FIXTURE_TEST_CASE(an_exception_puts_the_model_back_too, UsualModel) {
  Ema ema(model.state(), model.backend(), {0.5});
  model.backend().fill(model["out.weight"].value, 3);
  const auto own = model.all_values();
  const auto evaluate = [&] {
    const auto evaluation = ema.swap_in("0.5");
    BOOST_TEST((model.all_values() != own));
    throw std::runtime_error("evaluation failed");
  };
  BOOST_CHECK_THROW(evaluate(), std::runtime_error);
  BOOST_TEST((model.all_values() == own));
  ema.update();  // and nothing is left of the exchange
}

BOOST_FIXTURE_TEST_CASE(nothing_updates_while_shadows_are_swapped_in, UsualModel) {
  Ema ema(model.state(), model.backend(), {0.5, 0.9});
  AdamW adamw(model);
  adamw.attach(ema);
  model.make_gradients(0);
  const auto shadows = all_shadows(ema);
  {
    const auto evaluation = ema.swap_in("0.5");
    BOOST_CHECK_THROW(adamw.step(), UsageError);
    BOOST_CHECK_THROW(ema.reset(), UsageError);
    BOOST_CHECK_THROW(static_cast<void>(ema.swap_in("0.9")), UsageError);
    BOOST_TEST((all_shadows(ema) == shadows));
  }
  adamw.step();
  BOOST_TEST(adamw.steps() == 1);
}

BOOST_FIXTURE_TEST_CASE(an_attached_ema_is_updated_by_its_optimizer_alone, UsualModel) {
  Ema ema(model.state(), model.backend(), {0.5}), other(model.state(), model.backend(), {0.5});
  AdamW adamw(model), second(model);
  adamw.attach(ema);
  BOOST_CHECK_THROW(ema.update(), UsageError);
  BOOST_CHECK_THROW(adamw.attach(other), UsageError);
  BOOST_CHECK_THROW(second.attach(ema), UsageError);
  adamw.detach();
  ema.update();
  UsualModel stranger;
  Ema foreign(stranger.model.state(), {0.5});
  BOOST_CHECK_THROW(adamw.attach(foreign), UsageError);
}

BOOST_FIXTURE_TEST_CASE(an_attachment_ends_with_either_side, UsualModel) {
  Ema ema(model.state(), model.backend(), {0.5});
  {
    AdamW first(model);
    first.attach(ema);
  }
  AdamW second(model);
  {
    Ema short_lived(model.state(), model.backend(), {0.9});
    second.attach(short_lived);
  }
  model.make_gradients(0);
  second.step();
  BOOST_TEST(ema.updates() == 0);
  second.attach(ema);
  second.step();
  BOOST_TEST(ema.updates() == 1);
}

BOOST_FIXTURE_TEST_CASE(reset_starts_again_from_the_model, UsualModel) {
  Ema ema(model.state(), model.backend(), {0.99});
  ema.update();
  model.backend().fill(model["norm.scale"].value, 4);
  ema.reset();
  BOOST_TEST(ema.updates() == 0);
  BOOST_TEST(values(ema.tensor("0.99", "norm.scale")) == std::vector<float>(5, 4.0f));
}

BOOST_FIXTURE_TEST_CASE(reset_of_one_rate_leaves_the_others, UsualModel) {
  Ema ema(model.state(), model.backend(), {0.99, 0.9});
  ema.update();
  const std::vector<float> before = values(ema.tensor("0.9", "norm.scale"));
  model.backend().fill(model["norm.scale"].value, 4);
  ema.reset("0.99");
  BOOST_TEST(ema.updates() == 1);
  BOOST_TEST(values(ema.tensor("0.99", "norm.scale")) == std::vector<float>(5, 4.0f));
  BOOST_TEST(values(ema.tensor("0.9", "norm.scale")) == before);
  BOOST_CHECK_EXCEPTION(ema.reset("0.5"), UsageError, mentions("0.5", "0.99, 0.9"));
}

BOOST_FIXTURE_TEST_CASE(bad_rates_and_names_are_errors, UsualModel) {
  BOOST_CHECK_THROW(EmaProfile(1.0), UsageError);
  BOOST_CHECK_THROW(EmaProfile(-0.1), UsageError);
  BOOST_CHECK_THROW(EmaProfile(std::nan("")), UsageError);
  BOOST_CHECK_THROW(EmaProfile::power(0.3), UsageError);
  BOOST_CHECK_THROW(Ema(model.state(), {0.9, 0.90}), UsageError);
  BOOST_CHECK_THROW(Ema(model.state(), {0.9}, {.warmup = EmaWarmup{.inv_gamma = 0}}), UsageError);
  Ema ema(model.state(), {0.9, 0.99});
  BOOST_CHECK_EXCEPTION(static_cast<void>(ema.swap_in("0.999")), UsageError, mentions("0.999", "0.9, 0.99"));
  BOOST_CHECK_EXCEPTION(ema.tensor("0.9", "nobody"), UsageError, mentions("nobody"));
  BOOST_CHECK_THROW(ema.set_updates(-1), UsageError);
  BOOST_CHECK_THROW(option::named<EmaBuffers>("copies"), UsageError);
}

BOOST_AUTO_TEST_SUITE_END()
}  // namespace
}  // namespace lockstep::test
