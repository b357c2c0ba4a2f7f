// In the steady state a step allocates nothing: neither from the system nor from the backend's pool.
#include <boost/test/unit_test.hpp>

#include "lockstep/optim/adamw.h"
#include "lockstep/optim/muon.h"
#include "lockstep/optim/schedule.h"
#include "lockstep/optim/sgd.h"
#include "optim/made_up_model.h"
#include "support/allocations.h"

namespace lockstep::test {
namespace {
BOOST_AUTO_TEST_SUITE(allocation)

using namespace optim;

struct WithGradients : UsualModel {
  WithGradients() { model.make_gradients(0); }
};

/// Allocations of the steps after the first.
long allocations_in(MadeUpModel& model, Optimizer& optimizer, Ema* ema) {
  const Schedule schedule{.kind = Schedule::Kind::cosine, .warmup_steps = 2};
  const auto step = [&](std::uint64_t number) {
    optimizer.step({.lr = schedule.at(number, 10), .clip = 1, .measure_norm = true});
    if (ema) ema->update();
  };
  return steady_allocations(model.backend(), 1, 5, step).own;
}

BOOST_FIXTURE_TEST_CASE(adamw_with_attached_averages, WithGradients) {
  Ema ema(model.state(), model.backend(), {0.9, 0.99, 0.999});
  AdamW adamw(model);
  adamw.attach(ema);
  BOOST_TEST(allocations_in(model, adamw, nullptr) == 0);
}

BOOST_FIXTURE_TEST_CASE(adamw_and_averages_apart, WithGradients) {
  Ema ema(model.state(), model.backend(), {0.9, 0.99}, {.warmup = EmaWarmup{}});
  AdamW adamw(model);
  BOOST_TEST(allocations_in(model, adamw, &ema) == 0);
}

BOOST_FIXTURE_TEST_CASE(sgd_with_momentum_and_without, WithGradients) {
  Sgd momentum(model, {.momentum = 0.9, .nesterov = true}), plain(model);
  BOOST_TEST(allocations_in(model, momentum, nullptr) == 0);
  BOOST_TEST(allocations_in(model, plain, nullptr) == 0);
}

BOOST_FIXTURE_TEST_CASE(muon_with_attached_averages, WithGradients) {
  Ema ema(model.state(), model.backend(), {0.9, 0.99});
  Muon muon(model);
  muon.attach(ema);
  BOOST_TEST(allocations_in(model, muon, nullptr) == 0);
}

BOOST_AUTO_TEST_SUITE_END()
}  // namespace
}  // namespace lockstep::test
