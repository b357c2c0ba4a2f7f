// Profile snapshots of a run, and averages made of them after training.
#include "lockstep/checkpoint/convert.h"

#include <boost/test/unit_test.hpp>
#include <cmath>
#include <optional>

#include "checkpoint/sample.h"
#include "lockstep/base/error.h"
#include "lockstep/checkpoint/file.h"
#include "lockstep/checkpoint/inspect.h"
#include "lockstep/checkpoint/store.h"
#include "lockstep/optim/ema.h"
#include "support/world.h"

namespace lockstep::test {
namespace {
BOOST_AUTO_TEST_SUITE(reconstruct_ema, *ranks(1, 2, 3, 4))

namespace lc = checkpoint;
using optim::EmaBuffers;
using optim::EmaProfile;

std::vector<float> values(const Tensor& tensor) {
  return {tensor.data<float>(), tensor.data<float>() + tensor.numel()};
}

double distance(const std::vector<float>& a, const std::vector<float>& b) {
  double squares = 0;
  for (std::size_t i = 0; i < a.size(); ++i) squares += std::pow(static_cast<double>(a[i]) - b[i], 2);
  return std::sqrt(squares);
}

/// A matrix that wanders, a frozen vector, a buffer of numbers and a counter.
struct Model {
  Param weight, frozen;
  Buffer mean{"norm.running_mean", Tensor::zeros({12})},
      batches{"norm.num_batches_tracked", Tensor::zeros({}, DType::int64)};
  ModelState state{{&weight, &frozen}, {&mean, &batches}, {}};

  Model() {
    weight.name = "layer.weight";
    weight.value = Tensor::zeros({61, 43});
    frozen.name = "layer.table";
    frozen.value = Tensor::zeros({9});
    frozen.trainable = false;
    for (int i = 0; i < 9; ++i) frozen.value.data<float>()[i] = static_cast<float>(i) / 7;
  }

  /// The same course whoever takes it.
  void step(std::int64_t number) {
    const Random random({.seed = 3, .purpose = 1, .step = static_cast<std::uint64_t>(number)});
    const double rate = 1 / (1 + static_cast<double>(number) / 50);
    for (std::int64_t i = 0; i < weight.value.numel(); ++i) {
      float& value = weight.value.data<float>()[i];
      value += static_cast<float>(0.02 * rate * (1.0 - static_cast<double>(value)) +
                                  0.1 * std::sqrt(rate) * random.normal(static_cast<std::uint64_t>(i)));
    }
    for (int i = 0; i < 12; ++i) mean.value.data<float>()[i] = static_cast<float>(number * (i + 1));
    ++*batches.value.data<std::int64_t>();
  }
};

struct Run {
  comm::HostGroup& world = test::world();
  SharedFolder folder{world};
  std::string run = folder.file("run"), snapshots = run + "/ema", out = folder.file("out.h5");

  /// Trains with snapshots of these widths; returns what averages of the widths `tracked` hold at the end.
  std::map<double, std::vector<float>> train(std::int64_t steps, std::int64_t every,
                                             std::vector<double> widths, std::vector<double> tracked = {},
                                             EmaBuffers buffers = EmaBuffers::copy) {
    std::vector<EmaProfile> kept{0.9}, others;
    for (const double width : widths) kept.push_back(EmaProfile::power(width));
    for (const double width : tracked) others.push_back(EmaProfile::power(width));
    Model model;
    optim::Ema ema(model.state, kept, {.buffers = buffers}),
        directly(model.state, others, {.buffers = buffers});
    lc::Store store(run, world, {.config = "[model]\n", .keep = 1});
    for (std::int64_t step = 0; step < steps;) {
      model.step(step++);
      ema.update();
      directly.update();
      if (step % every == 0) store.save(step, model.state, ema);
    }
    std::map<double, std::vector<float>> at_the_end;
    for (const double width : tracked)
      at_the_end[width] = values(directly.tensor(EmaProfile::power(width).name(), "layer.weight"));
    return at_the_end;
  }

  lc::EmaReconstructionReport reconstruct(double width, std::optional<std::int64_t> step = {}) {
    return lc::reconstruct_ema(run, width, step, out, world);
  }

  std::string snapshot(std::int64_t step) const { return fmt::format("{}/step-{:09d}.h5", snapshots, step); }
};

std::vector<std::string> groups_of(const lc::FileIndex& index) {
  std::vector<std::string> groups;
  for (const lc::GroupEntry& group : index.groups) groups.push_back(group.path);
  return groups;
}

std::vector<std::string> tensors_of(const lc::FileIndex& index) {
  std::vector<std::string> paths;
  for (const lc::TensorEntry& tensor : index.tensors) paths.push_back(tensor.path());
  std::sort(paths.begin(), paths.end());
  return paths;
}

using Names = std::vector<std::string>;

BOOST_FIXTURE_TEST_CASE(every_save_leaves_a_small_snapshot_that_outlives_its_checkpoint, Run) {
  train(40, 10, {0.05, 0.1});
  BOOST_TEST(names_in(run + "/checkpoints") == (Names{"latest", "step-000000040.h5"}),
             boost::test_tools::per_element());
  BOOST_TEST(names_in(snapshots) ==
                 (Names{"step-000000010.h5", "step-000000020.h5", "step-000000030.h5", "step-000000040.h5"}),
             boost::test_tools::per_element());
  for (const int step : {10, 20, 30, 40}) BOOST_TEST(lc::verify(snapshot(step), world).whole());
  const lc::FileIndex index = lc::read_index(snapshot(20));
  BOOST_TEST(
      tensors_of(index) == (Names{"/ema/sigma_rel=0.05/layer.table", "/ema/sigma_rel=0.05/layer.weight",
                                  "/ema/sigma_rel=0.1/layer.table", "/ema/sigma_rel=0.1/layer.weight",
                                  "/model/norm.num_batches_tracked", "/model/norm.running_mean"}),
      boost::test_tools::per_element());
  BOOST_TEST(index.position.step == 20);
  BOOST_TEST(index.config == "[model]\n");
  const auto& attributes = index.group("ema/sigma_rel=0.05")->attributes;
  BOOST_TEST(std::get<double>(attributes[0].second) == 0.05);
  BOOST_TEST(std::get<std::int64_t>(attributes[1].second) == 20);

  Model model;  // a snapshot is a file of weights
  lc::load_weights(snapshot(40), model.state, world, "ema/sigma_rel=0.1");
  BOOST_TEST(model.mean.value.data<float>()[2] == 39.0f * 3);
  BOOST_TEST(model.weight.value.data<float>()[0] != 0.0f);
}

BOOST_FIXTURE_TEST_CASE(plain_rates_leave_none, Run) {
  train(20, 10, {});
  world.barrier();
  BOOST_TEST(!std::filesystem::exists(snapshots));
  BOOST_CHECK_EXCEPTION(reconstruct(0.1), UsageError,
                        mentions(snapshots, "no profile snapshots", "ema.sigma_rel"));
}

BOOST_FIXTURE_TEST_CASE(snapshots_get_rarer_as_time_passes, Run) {
  Model model;
  optim::Ema ema(model.state, {EmaProfile::power(0.1)});
  lc::Store store(run, world, {.keep = 1});
  ema.update();
  for (std::int64_t step = 300; step <= 340; step += 4) store.save(step, ema);
  world.barrier();
  // Every twelve steps, as 300 / 32 is 9.4; and the newest is always there.
  BOOST_TEST(names_in(snapshots) == (Names{"step-000000300.h5", "step-000000312.h5", "step-000000324.h5",
                                           "step-000000336.h5", "step-000000340.h5"}),
             boost::test_tools::per_element());
}

BOOST_FIXTURE_TEST_CASE(a_resume_from_an_older_checkpoint_drops_later_snapshots, Run) {
  train(40, 10, {0.05, 0.1});
  Model model;
  std::vector<EmaProfile> profiles{EmaProfile::power(0.05), EmaProfile::power(0.1)};
  optim::Ema ema(model.state, profiles);
  {
    lc::Store store(run, world, {.keep = 0});
    BOOST_TEST(store.resume(model.state, ema) == 40);
    for (const int step : {50, 60}) {
      for (int i = 0; i < 10; ++i) ema.update();
      store.save(step, model.state, ema);
    }
  }
  world.barrier();
  if (world.rank() == 0) {
    write_bytes(run + "/checkpoints/step-000000060.h5", "cut off");
    write_bytes(snapshots + "/.step-000000070.h5.0123456789abcdef.tmp", "");
  }
  world.barrier();
  lc::Store store(run, world);
  BOOST_TEST(store.resume(model.state, ema) == 50);
  world.barrier();
  BOOST_TEST(names_in(snapshots) == (Names{"step-000000010.h5", "step-000000020.h5", "step-000000030.h5",
                                           "step-000000040.h5", "step-000000050.h5"}),
             boost::test_tools::per_element());
}

BOOST_FIXTURE_TEST_CASE(a_reconstructed_average_is_the_one_tracked_directly, Run) {
  const std::vector<double> widths{0.04, 0.07, 0.15, 0.2};
  const auto tracked = train(640, 40, {0.05, 0.1}, widths);
  for (const double width : widths) {
    const lc::EmaReconstructionReport report = reconstruct(width);
    BOOST_TEST(report.group == "ema/" + EmaProfile::power(width).name());
    BOOST_TEST(report.step == 640);
    BOOST_TEST(report.snapshots == 16);
    BOOST_TEST(report.first_step == 40);
    BOOST_TEST(report.sources == (Names{"ema/sigma_rel=0.05", "ema/sigma_rel=0.1"}),
               boost::test_tools::per_element());
    BOOST_TEST(lc::verify(out, world).whole());
    Model model;
    BOOST_TEST(lc::load_weights(out, model.state, world, report.group).warnings.empty());
    const double relative = distance(values(model.weight.value), tracked.at(width)) /
                            distance(tracked.at(width), std::vector<float>(tracked.at(width).size()));
    BOOST_TEST_MESSAGE("sigma_rel " << width << ": relative error " << relative << ", of the profile "
                                    << report.error);
    BOOST_TEST(relative < 2e-3);
    BOOST_TEST(distance(values(model.frozen.value), values(Model().frozen.value)) < 1e-5);
    BOOST_TEST(model.mean.value.data<float>()[0] == 639.0f);  // copied buffers are those of the step
    BOOST_TEST(*model.batches.value.data<std::int64_t>() == 640);
  }
  const lc::FileIndex index = lc::read_index(out);
  BOOST_TEST(index.position.step == 640);
  BOOST_TEST(index.config == "[model]\n");
  BOOST_TEST(groups_of(index) == (Names{"ema/sigma_rel=0.2"}), boost::test_tools::per_element());
  BOOST_TEST(index.provenance.at("parent_checkpoint") == snapshot(640));
  BOOST_TEST(
      index.provenance.at("ema_sources").find("of 16 snapshots in " + snapshots + ", steps 40 to 640") !=
      std::string::npos);
}

BOOST_FIXTURE_TEST_CASE(a_stored_average_comes_back_bit_by_bit, Run) {
  const auto tracked = train(40, 10, {0.05, 0.1}, {0.1});
  const lc::EmaReconstructionReport report = reconstruct(0.1);
  BOOST_TEST(report.error == 0);
  Model model;
  lc::load_weights(out, model.state, world, report.group);
  BOOST_TEST((values(model.weight.value) == tracked.at(0.1)));
}

BOOST_FIXTURE_TEST_CASE(an_earlier_step_is_what_the_run_would_have_had_then, Run) {
  train(320, 40, {0.05, 0.1});
  BOOST_TEST(reconstruct(0.15, 240).step == 240);
  Run other;
  other.train(240, 40, {0.05, 0.1});
  other.reconstruct(0.15);
  world.barrier();
  BOOST_TEST(lc::diff(out, other.out).same());
}

BOOST_FIXTURE_TEST_CASE(the_bits_are_the_same_at_any_number_of_ranks, Run) {
  train(160, 20, {0.05, 0.1});
  reconstruct(0.12);
  const auto alone = comm::make_self_communicator();
  const std::string own = folder.file(fmt::format("alone-{}.h5", world.rank()));
  lc::reconstruct_ema(run, 0.12, {}, own, *alone);
  BOOST_TEST(lc::diff(out, own).same());
}

BOOST_FIXTURE_TEST_CASE(averaged_buffers_are_mixed_and_left_ones_are_the_models, Run) {
  train(320, 40, {0.05, 0.1}, {}, EmaBuffers::average);
  reconstruct(0.07);
  Model model;
  lc::load_weights(out, model.state, world, "ema/sigma_rel=0.07");
  // Of values that grow evenly, an average of exponent gamma is (gamma + 1) / (gamma + 2) of the way, and
  // half a step on.
  const double gamma = EmaProfile::power(0.07).gamma(), expected = 320 * (gamma + 1) / (gamma + 2) - 0.5;
  BOOST_TEST(std::abs(static_cast<double>(model.mean.value.data<float>()[0]) / expected - 1) < 2e-3);
  BOOST_TEST(*model.batches.value.data<std::int64_t>() == 320);

  Run left;
  left.train(80, 10, {0.05, 0.1}, {}, EmaBuffers::leave);
  left.reconstruct(0.07);
  lc::load_weights(left.out, model.state, world, "ema/sigma_rel=0.07");
  BOOST_TEST(model.mean.value.data<float>()[0] == 79.0f);
}

BOOST_FIXTURE_TEST_CASE(what_cannot_be_had_is_refused_with_what_can, Run) {
  train(80, 10, {0.05, 0.1});
  BOOST_CHECK_EXCEPTION(reconstruct(0.5), UsageError, mentions("0.5", "between 0 and 0.28"));
  BOOST_CHECK_EXCEPTION(reconstruct(0.07, 35), UsageError,
                        mentions("no snapshot of step 35", "nearest: 30 and 40", "of 8, steps 10 to 80"));
  BOOST_CHECK_EXCEPTION(reconstruct(0.07, 5), UsageError, mentions("nearest: 10 ("));
  BOOST_CHECK_EXCEPTION(reconstruct(0.07, 90), UsageError, mentions("nearest: 80 ("));
  BOOST_CHECK_EXCEPTION(reconstruct(0.01), UsageError,
                        mentions("sigma_rel = 0.01 is impossible", "mixture of 16 stored averages is",
                                 "possible widths: 0.04 to 0.21"));
  BOOST_TEST(!std::filesystem::exists(out));
}

BOOST_FIXTURE_TEST_CASE(what_is_no_run_directory_is_refused_by_what_it_is, Run) {
  train(20, 10, {0.1});
  const auto refusal = [&](const std::string& directory, const char* text) {
    BOOST_CHECK_EXCEPTION(lc::reconstruct_ema(directory, 0.1, {}, out, world), UsageError,
                          mentions(directory, text));
  };
  refusal(run + "-gone", "there is no such run directory");
  refusal(snapshots + "/step-000000020.h5", "is a file; give the run directory");
  refusal(snapshots, "is within a run directory; give the run directory: ");
  refusal(folder.path(), "is not a run directory: it has no ema, checkpoints or config.ini");
}

BOOST_FIXTURE_TEST_CASE(damaged_or_foreign_snapshots_are_refused_by_name, Run) {
  train(80, 10, {0.05, 0.1});
  const std::string whole = read_bytes(snapshot(30));
  world.barrier();
  if (world.rank() == 0) {
    std::string bytes = whole;
    for (const lc::TensorEntry& tensor : lc::read_index(snapshot(30)).tensors) {
      char& byte = bytes[tensor.offset];
      byte = static_cast<char>(byte ^ 1);
    }
    write_bytes(snapshot(30), bytes);
  }
  world.barrier();
  BOOST_CHECK_EXCEPTION(reconstruct(0.07), DataError, mentions(snapshot(30), "is damaged"));
  BOOST_CHECK_EXCEPTION(reconstruct(0.07, 50), DataError, mentions(snapshot(30), "is damaged"));
  reconstruct(0.07, 20);  // does not need it
  world.barrier();
  if (world.rank() == 0) write_bytes(snapshot(30), whole.substr(0, whole.size() / 2));
  world.barrier();
  BOOST_CHECK_EXCEPTION(reconstruct(0.07), DataError, mentions(snapshot(30)));
  world.barrier();
  if (world.rank() == 0) {
    write_bytes(snapshot(30), whole);
    std::filesystem::copy(snapshot(30), snapshot(20), std::filesystem::copy_options::overwrite_existing);
  }
  world.barrier();
  reconstruct(0.07);  // twice the same is no harm

  Model model;  // averages that begin in the middle of a run
  optim::Ema ema(model.state, {EmaProfile::power(0.1)});
  {
    lc::Store store(run, world);
    ema.update();
    store.save(100, model.state, ema);
  }
  BOOST_CHECK_EXCEPTION(reconstruct(0.1), DataError, mentions("began after step 0", "after step 99"));
}

BOOST_AUTO_TEST_SUITE_END()
}  // namespace
}  // namespace lockstep::test
