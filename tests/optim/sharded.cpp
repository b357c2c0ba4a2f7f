// Optimizers and averages that hold a part each: the same bits, a part of the memory, the same state when
// asked.
#include <algorithm>
#include <array>
#include <boost/test/unit_test.hpp>
#include <functional>
#include <limits>
#include <memory>
#include <numeric>

#include "lockstep/base/error.h"
#include "lockstep/optim/adamw.h"
#include "lockstep/optim/muon.h"
#include "lockstep/optim/sgd.h"
#include "optim/made_up_model.h"
#include "support/world.h"

namespace lockstep::test {
namespace {
BOOST_AUTO_TEST_SUITE(sharded, *ranks(1, 2, 3, 4))

using namespace optim;

/// Several blocks and odd ends, one of many elements, tiny ones, one without elements, a frozen one, and
/// running statistics.
struct Model {
  /// undivided: with more matrices, which have one owner each where it is sharded.
  explicit Model(bool sharded, bool undivided = false) {
    model.add("z.weight", {123, 251});
    model.add("bias", {251});
    model.add("a.weight", {2 * 4096});
    model.add("scalar", {});
    model.add("frozen.weight", {97, 101}, false);
    model.add("nothing", {0, 3});
    model.add("unused", {5000});
    if (undivided) {
      model.add("tall.weight", {70, 67});
      model.add("wide.weight", {5, 69});
    }
    model.add_buffer("running_mean", normal({7}, 1, "mean"));
    for (Param* const param : model.params())
      param->undivided = undivided && param->value.shape().rank() == 2;
    if (sharded) model.shard(world());
  }
  /// Where a rank owns nothing, its gradient is none to be read.
  void make_gradients(std::uint64_t step) {
    model.make_gradients(step);
    if (step % 3 == 1) model["unused"].gradient = {};
    if (const Partition* const partition = model.partition()) {
      for (std::size_t p = 0; p < model.params().size(); ++p) {
        const Tensor& gradient = model.params()[p]->gradient;
        if (!gradient) continue;
        const comm::ElementRange own = partition->mine(p);
        float* const elements = gradient.data<float>();
        std::fill(elements, elements + own.first, std::numeric_limits<float>::quiet_NaN());
        std::fill(elements + own.end(), elements + gradient.numel(), std::numeric_limits<float>::quiet_NaN());
      }
    }
  }
  MadeUpModel model;
};

/// An algorithm, and whether a matrix is to have one owner.
struct Rule {
  std::function<std::unique_ptr<Optimizer>(GradientSource&)> make;
  bool undivided = false;
};

std::unique_ptr<Optimizer> make_adamw(GradientSource& source) {
  return std::make_unique<AdamW>(
      source, AdamWOptions{.weight_decay = 0.1, .groups = {{.pattern = "z.*", .lr_factor = 0.5}}});
}
std::unique_ptr<Optimizer> make_sgd(GradientSource& source) {
  return std::make_unique<Sgd>(source, SgdOptions{.momentum = 0.9, .nesterov = true, .weight_decay = 0.01});
}

std::unique_ptr<Optimizer> make_muon(GradientSource& source) {
  return std::make_unique<Muon>(
      source,
      MuonOptions{.lr = 0.02, .weight_decay = 0.1, .groups = {{.pattern = "wide.*", .lr_factor = 0.5}}});
}

const Rule adamw{make_adamw}, sgd{make_sgd}, adamw_undivided{make_adamw, true}, muon{make_muon, true};
const std::array rules{adamw, sgd, adamw_undivided, muon};

/// A run of a model with two averages, one of them in the optimizer's own pass.
struct Run {
  Run(bool sharded, const Rule& rule, bool attached = true)
      : parts(sharded, rule.undivided),
        optimizer(rule.make(parts.model)),
        ema(parts.model.state(), parts.model.backend(), {0.5, EmaProfile::power(0.1)},
            {.buffers = EmaBuffers::average, .partition = parts.model.partition()}),
        is_attached(attached) {
    if (attached) optimizer->attach(ema);
  }
  double step(std::uint64_t number) {
    parts.make_gradients(number);
    const double norm = optimizer->step({.clip = 0.5}).gradient_norm;
    if (!is_attached) ema.update();
    return norm;
  }
  Model parts;
  std::unique_ptr<Optimizer> optimizer;
  Ema ema;
  bool is_attached;
};

std::vector<float> floats(const Tensor& tensor) {
  return tensor.dtype() == DType::float32
             ? values(tensor)
             : std::vector<float>{static_cast<float>(*tensor.data<std::int64_t>())};
}

void check_same_state(Run& a, Run& b) {
  BOOST_TEST((a.parts.model.all_values() == b.parts.model.all_values()));
  const std::vector<Slot> slots_a = a.optimizer->slots(), slots_b = b.optimizer->slots();
  BOOST_REQUIRE(slots_a.size() == slots_b.size());
  for (std::size_t s = 0; s < slots_a.size(); ++s) {
    BOOST_TEST(slots_a[s].name == slots_b[s].name);
    BOOST_REQUIRE(slots_a[s].entries.size() == slots_b[s].entries.size());
    for (std::size_t e = 0; e < slots_a[s].entries.size(); ++e) {
      const Slot::Entry &left = slots_a[s].entries[e], &right = slots_b[s].entries[e];
      BOOST_TEST(left.name == right.name);
      BOOST_CHECK(left.tensor.shape() == right.tensor.shape());
      BOOST_TEST((floats(left.tensor) == floats(right.tensor)), slots_a[s].name << " of " << left.name);
    }
  }
  const std::vector<EmaTensor> shadows_a = a.ema.tensors(), shadows_b = b.ema.tensors();
  BOOST_REQUIRE(shadows_a.size() == shadows_b.size());
  for (std::size_t i = 0; i < shadows_a.size(); ++i) {
    BOOST_TEST(shadows_a[i].name == shadows_b[i].name);
    BOOST_TEST((values(shadows_a[i].tensor) == values(shadows_b[i].tensor)),
               shadows_a[i].rate << " of " << shadows_a[i].name);
  }
}

BOOST_AUTO_TEST_CASE(parts_give_the_bits_of_the_whole) {
  for (const Rule& rule : rules) {
    for (const bool attached : {true, false}) {
      Run whole(false, rule, attached), parts(true, rule, attached);
      for (std::uint64_t step = 0; step < 5; ++step) BOOST_TEST(whole.step(step) == parts.step(step));
      check_same_state(whole, parts);
    }
  }
}

BOOST_AUTO_TEST_CASE(state_goes_over_from_whole_to_parts_and_back) {
  for (const Rule& rule : rules) {
    Run whole(false, rule), parts(true, rule), again(false, rule);
    Run* const line[] = {&whole, &parts, &again};
    for (std::uint64_t step = 0; step < 2; ++step) whole.step(step);
    for (int i = 0; i < 2; ++i) {  // as loading a checkpoint does
      Run &from = *line[i], &to = *line[i + 1];
      for (std::size_t p = 0; p < from.parts.model.params().size(); ++p)
        copy_elements(from.parts.model.params()[p]->value, to.parts.model.params()[p]->value);
      const auto hand_over = [](const Tensor& all, const auto& held) {
        const auto& part = held.part;
        copy_elements(part ? part->partition->part(part->param, all) : all, held.tensor);
      };
      const std::vector<Slot> stored = from.optimizer->slots(), slots = to.optimizer->held_slots();
      for (std::size_t s = 0; s < slots.size(); ++s) {
        for (std::size_t e = 0; e < slots[s].entries.size(); ++e)
          hand_over(stored[s].entries[e].tensor, slots[s].entries[e]);
      }
      to.optimizer->set_steps(from.optimizer->steps());
      const std::vector<EmaTensor> averages = from.ema.tensors(), shadows = to.ema.held_tensors();
      for (std::size_t e = 0; e < shadows.size(); ++e) hand_over(averages[e].tensor, shadows[e]);
      to.ema.set_updates(from.ema.updates());
    }
    check_same_state(whole, parts);
    for (std::uint64_t step = 2; step < 4; ++step) {
      whole.step(step);
      parts.step(step);
      again.step(step);
    }
    check_same_state(whole, parts);
    check_same_state(whole, again);
  }
}

BOOST_AUTO_TEST_CASE(a_rank_holds_its_part_only) {
  Run whole(false, adamw), parts(true, adamw);
  const StateBytes all = whole.optimizer->state_bytes(), mine = parts.optimizer->state_bytes();
  BOOST_TEST(all.held == all.whole);
  BOOST_TEST(mine.whole == all.whole);
  const auto ranks = static_cast<std::size_t>(world().size());
  const std::size_t block_bytes = Partition::block_elements * sizeof(float);  // two tensors of each parameter
  BOOST_TEST(mine.held <= all.held / ranks + 4 * block_bytes);
  // Every element has one owner; only AdamW's counts (6 trainable parameters) are everywhere.
  std::vector<std::size_t> of_rank(ranks);
  world().all_gather(&mine.held, sizeof mine.held, of_rank.data());
  const std::size_t counts = 6 * sizeof(std::int64_t);
  std::size_t sum = 0;
  for (const std::size_t held : of_rank) sum += held - counts;
  BOOST_TEST(sum == all.held - counts);

  const StateBytes shadows = parts.ema.state_bytes();
  BOOST_TEST(shadows.whole == whole.ema.state_bytes().held);
  BOOST_TEST(shadows.held <= shadows.whole / ranks + 4 * block_bytes);
}

BOOST_AUTO_TEST_CASE(a_matrix_of_muons_is_held_by_one_rank) {
  Run parts(true, muon);
  const auto slots = parts.optimizer->held_slots();
  const auto momentum = std::ranges::find(slots, "momentum_buffer", &Slot::name);
  BOOST_REQUIRE((momentum != slots.end()));
  BOOST_TEST(momentum->entries.size() == 4u);
  for (const Slot::Entry& entry : momentum->entries) {
    const std::int64_t mine = entry.tensor.numel(), all = entry.part->shape.numel();
    BOOST_TEST((mine == 0 || mine == all), entry.name);
    std::vector<std::int64_t> of_rank(static_cast<std::size_t>(world().size()));
    world().all_gather(&mine, sizeof mine, of_rank.data());
    BOOST_TEST(std::accumulate(of_rank.begin(), of_rank.end(), std::int64_t{0}) == all, entry.name);
  }
}

BOOST_AUTO_TEST_CASE(muon_refuses_matrices_that_ranks_have_divided) {
  Model parts(true);
  BOOST_CHECK_EXCEPTION(Muon{parts.model}, UsageError, mentions("'z.weight'", "keep_whole_for_muon"));
}

BOOST_AUTO_TEST_CASE(shadows_swapped_in_are_whole) {
  Run whole(false, sgd), parts(true, sgd);
  for (std::uint64_t step = 0; step < 3; ++step) {
    whole.step(step);
    parts.step(step);
  }
  const auto own = parts.parts.model.all_values();
  {
    const auto in_whole = whole.ema.swap_in("sigma_rel=0.1"), in_parts = parts.ema.swap_in("sigma_rel=0.1");
    BOOST_TEST((whole.parts.model.all_values() == parts.parts.model.all_values()));
    BOOST_TEST((parts.parts.model.all_values() != own));
  }
  BOOST_TEST((parts.parts.model.all_values() == own));
  BOOST_TEST((values(parts.ema.tensor("0.5", "z.weight")) == values(whole.ema.tensor("0.5", "z.weight"))));
  parts.ema.reset();
  BOOST_TEST((values(parts.ema.tensor("0.5", "z.weight")) == values(parts.parts.model["z.weight"].value)));
}

BOOST_AUTO_TEST_CASE(a_gradient_that_is_not_finite_is_the_same_error_on_every_rank) {
  Run parts(true, adamw);
  parts.parts.make_gradients(0);
  parts.parts.model["z.weight"].gradient.data<float>()[3 * 4096 + 5] =
      std::numeric_limits<float>::infinity();  // who does not own it does not read it
  std::string text;
  try {
    parts.optimizer->step({.clip = 1});
  } catch (const TrainingError& error) {
    text = error.what();
  }
  BOOST_TEST(text.find("'z.weight' is not finite (elements 12288 to 16383)") != std::string::npos, text);
  for (const std::string& other : world().all_gather_texts(text)) BOOST_TEST(other == text);
}

BOOST_AUTO_TEST_CASE(an_average_of_another_sharding_is_refused) {
  Model parts(true);
  Ema whole(parts.model.state(), parts.model.backend(), {0.9});
  const auto optimizer = make_adamw(parts.model);
  BOOST_CHECK_THROW(optimizer->attach(whole), UsageError);

  MadeUpModel other;
  other.add("x", {3});
  other.shard(world());
  BOOST_CHECK_THROW(Ema(parts.model.state(), {0.9}, {.partition = other.partition()}), UsageError);
}

BOOST_AUTO_TEST_SUITE_END()
}  // namespace
}  // namespace lockstep::test
