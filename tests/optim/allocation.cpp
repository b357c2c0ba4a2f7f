// In the steady state a step allocates nothing: neither through operator new nor from the backend's pool.
#include <atomic>
#include <boost/test/unit_test.hpp>
#include <cstdlib>
#include <new>

#include "lockstep/optim/adamw.h"
#include "lockstep/optim/schedule.h"
#include "lockstep/optim/sgd.h"
#include "optim/made_up_model.h"

namespace {
std::atomic<long> allocations{0};
}  // namespace

// All throwing and sized forms of the standard library end in these two pairs.
void* operator new(std::size_t bytes) {
  ++allocations;
  if (void* const memory = std::malloc(bytes)) return memory;
  throw std::bad_alloc();
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
void* operator new(std::size_t bytes, std::align_val_t alignment) {
  ++allocations;
  const auto unit = static_cast<std::size_t>(alignment);
  if (void* const memory = std::aligned_alloc(unit, (bytes + unit - 1) / unit * unit)) return memory;
  throw std::bad_alloc();
}
void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { std::free(memory); }

namespace lockstep::optim {

using test::UsualModel;

namespace {

struct WithGradients : UsualModel {
  WithGradients() { model.make_gradients(0); }
};

/// Allocations of the steps after the first.
long allocations_in(test::MadeUpModel& model, Optimizer& optimizer, Ema* ema) {
  const Schedule schedule{.kind = Schedule::Kind::cosine, .warmup_steps = 2};
  long before = 0;
  std::size_t reserved_bytes = 0;
  for (int step = 0; step < 5; ++step) {
    if (step == 1) {
      before = allocations;
      reserved_bytes = model.backend().reserved_bytes();
    }
    optimizer.step({.lr = schedule.at(step, 10), .clip = 1, .measure_norm = true});
    if (ema) ema->update();
  }
  const long made = allocations - before;
  BOOST_TEST(model.backend().reserved_bytes() == reserved_bytes);
  return made;
}

}  // namespace

BOOST_AUTO_TEST_CASE(the_count_sees_allocations) {
  const long before = allocations;
  const std::vector<std::string> texts(3, std::string(100, 'x'));
  BOOST_TEST(allocations - before >= 4 + static_cast<long>(texts.empty()));
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

}  // namespace lockstep::optim
