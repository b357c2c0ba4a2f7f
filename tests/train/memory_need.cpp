// What a run needs at least is known from shapes alone, before anything is made.
#include "train/components.h"

#include <fmt/format.h>

#include <boost/test/unit_test.hpp>

#include "lockstep/base/error.h"
#include "support/mentions.h"
#include "support/pairs.h"
#include "support/world.h"

namespace lockstep::test {
namespace {
BOOST_AUTO_TEST_SUITE(memory_need, *ranks(1, 2))

/// Samples of 5 floats and a label.
class Shapes final : public Pairs {
 public:
  Shapes() : Pairs("shapes", 100, {5, 1, 1}, 2) {}

 private:
  void read_pairs(std::span<const std::int64_t>, const Tensor&, const Tensor&) const override {}
};

train::Config config(const std::vector<std::string>& settings = {}) {
  return train::parse_config(
      "[model]\nname = mlp\nsizes = 5 7 2\n[train]\nsteps = 1\nglobal_batch = 8\nfrozen = net.0.bias\n",
      "a.ini", settings);
}

BOOST_AUTO_TEST_CASE(parameters_gradients_optimizer_ema_and_a_batch_are_counted) {
  const Shapes data;
  const auto of = [&](const train::Config& wanted, int ranks) {
    return train::memory_need(wanted, train::build_meta_model(wanted)->state(), data, ranks, Device::cpu());
  };
  constexpr double parameters = 4 * (5 * 7 + 7 + 7 * 2 + 2), trained = parameters - 4 * 7;
  const train::MemoryNeed plain = of(config(), 1);
  BOOST_TEST(plain.parameters == parameters);
  BOOST_TEST(plain.gradients == trained);
  BOOST_TEST(plain.optimizer == 2 * trained);
  BOOST_TEST(plain.ema == 0);
  BOOST_TEST(plain.inputs == 3 * 8 * (5 * 4 + 8));
  const train::MemoryNeed shared = of(config({"ddp.sharded_optimizer=true", "ema.rates=0.9 0.99",
                                              "optimizer.name=sgd", "optimizer.momentum=0.9"}),
                                      4);
  BOOST_TEST(shared.gradients == trained);
  BOOST_TEST(shared.optimizer == trained / 4);
  BOOST_TEST(shared.ema == 2 * parameters / 4);
  BOOST_TEST(shared.inputs == 3 * 2 * (5 * 4 + 8));
  const train::MemoryNeed muon = of(config({"optimizer.name=muon", "optimizer.muon=net.2.weight"}), 1);
  BOOST_TEST(muon.optimizer == 2 * trained - 4 * 7 * 2);
}

BOOST_AUTO_TEST_CASE(gradients_are_counted_once_for_each_accumulation_buffer_of_a_rank) {
  const Shapes data;
  const auto gradients = [&](int shards, int ranks) {
    const train::Config wanted = config({fmt::format("train.shards={}", shards)});
    const auto model = train::build_meta_model(wanted);
    return train::memory_need(wanted, model->state(), data, ranks, Device::cpu()).gradients;
  };
  constexpr double trained = 4 * (5 * 7 + 7 * 2 + 2);
  BOOST_TEST(gradients(8, 8) == trained);
  BOOST_TEST(gradients(8, 2) == 3 * trained);
  BOOST_TEST(gradients(8, 1) == 4 * trained);
}

BOOST_AUTO_TEST_CASE(what_the_machine_does_not_have_is_refused_on_every_rank_with_both_figures) {
  BOOST_CHECK_NO_THROW(train::check_memory({.parameters = 1}, world()));
  try {
    train::check_memory({.parameters = 0x1p60, .inputs = 0x1p30}, world());
    BOOST_TEST(false, "not refused");
  } catch (const UsageError& error) {
    const std::string text = error.what();
    BOOST_TEST(contains(text, "parameters 1073741824.0 GiB, gradients 0.0 MiB"), text);
    BOOST_TEST(contains(text, "batches of inputs 1024.0 MiB"), text);
    BOOST_TEST(contains(text, " left; make"), text);
  }
}

BOOST_AUTO_TEST_CASE(a_model_that_no_machine_holds_is_refused_before_it_is_made) {
  BOOST_CHECK_THROW(train::build_model(config({"model.sizes=5 2147483647 2147483647 2"})), UsageError);
  BOOST_CHECK_EXCEPTION(train::build_model(config({"model.sizes=2147483647 100000 2"})), UsageError,
                        mentions("GiB, and this node has ", "iB left; make the model smaller"));
}

BOOST_AUTO_TEST_SUITE_END()
}  // namespace
}  // namespace lockstep::test
