// The store: names, the newest link, pruning, falling back from broken files, and one error for all ranks.
#include "lockstep/checkpoint/store.h"

#include <stdlib.h>
#include <unistd.h>

#include <boost/test/unit_test.hpp>
#include <cmath>
#include <fstream>

#include "checkpoint/sample.h"
#include "lockstep/autograd/gradient_sink.h"
#include "lockstep/base/error.h"
#include "lockstep/checkpoint/file.h"
#include "lockstep/checkpoint/inspect.h"
#include "lockstep/data/arrays.h"
#include "lockstep/hdf5/file.h"
#include "lockstep/kernels/backend.h"
#include "lockstep/optim/adamw.h"
#include "lockstep/optim/ema.h"
#include "support/environment.h"
#include "support/mentions.h"
#include "support/standard_error.h"
#include "support/temporary_folder.h"
#include "support/world.h"

namespace lockstep::test {
namespace {
BOOST_AUTO_TEST_SUITE(store, *ranks(1, 2, 3, 4))

namespace lc = checkpoint;

/// Two parameters, a counter, their optimizer and averages; steps are made from gradients that depend on the
/// step only.
struct Training {
  std::unique_ptr<kernels::Backend> backend = kernels::make_backend(Device::cpu(), 1);
  Param weight, bias;
  Buffer counter{"layer.counter", Tensor::zeros({}, DType::int64)};
  ModelState state{{&weight, &bias}, {&counter}, {}};
  std::unique_ptr<LocalGradients> gradients;
  std::unique_ptr<optim::AdamW> adamw;
  std::unique_ptr<optim::Ema> ema;

  explicit Training(float initial = 1) {
    weight.name = "layer.weight";
    weight.value = Tensor::zeros({70, 30});
    bias.name = "layer.bias";
    bias.value = Tensor::zeros({30});
    for (int i = 0; i < 2100; ++i) weight.value.data<float>()[i] = initial * static_cast<float>(i % 17);
    gradients = std::make_unique<LocalGradients>(state, *backend);
    adamw = std::make_unique<optim::AdamW>(*gradients, optim::AdamWOptions{.lr = 0.01});
    ema = std::make_unique<optim::Ema>(state, *backend, std::vector<optim::EmaProfile>{0.5, 0.9});
  }

  void step(std::int64_t number) {
    gradients->clear();
    for (Param* param : state.params) {
      const GradientView view = gradients->gradient_view(*param);
      const Random random(
          {.seed = 1, .purpose = purpose_of(param->name), .step = static_cast<std::uint64_t>(number)});
      for (std::int64_t i = 0; i < view.memory.numel(); ++i)
        view.memory.data<float>()[i] = random.uniform(static_cast<std::uint64_t>(i)) - 0.5f;
      gradients->ready(*param);
    }
    gradients->add_count(1);
    adamw->step();
    ++*counter.value.data<std::int64_t>();
    ema->update();
  }

  lc::StateDict state_dict() {
    lc::StateDict all;
    lc::add(all, state);
    lc::add(all, *adamw);
    lc::add(all, *ema);
    return all;
  }
};

struct Run {
  comm::HostGroup& world = test::world();
  SharedFolder folder{world};
  std::string run = folder.file("run");
  std::string checkpoints = run + "/checkpoints";
  bool first = world.rank() == 0;

  void flip_last_byte(const std::string& path) {
    if (first) {
      const lc::FileIndex index = lc::read_index(path);
      std::string bytes = read_bytes(path);
      char& byte = bytes[index.tensors[0].offset];
      byte = static_cast<char>(byte ^ 1);
      write_bytes(path, bytes);
    }
    world.barrier();
  }
};

using Names = std::vector<std::string>;

BOOST_FIXTURE_TEST_CASE(a_resumed_run_takes_the_same_steps_bit_by_bit, Run) {
  Training straight;
  for (int step = 0; step < 6; ++step) straight.step(step);
  {
    lc::Store store(run, world);
    Training begun;
    BOOST_TEST(store.resume(begun.state, *begun.adamw, *begun.ema) == 0);
    for (int step = 0; step < 3; ++step) begun.step(step);
    store.save(3, begun.state, *begun.adamw, *begun.ema);
  }
  lc::Store store(run, world);
  Training resumed(9);
  auto step = store.resume(*resumed.ema, resumed.state, *resumed.adamw);
  BOOST_TEST(step == 3);
  BOOST_TEST(resumed.adamw->steps() == 3);
  BOOST_TEST(resumed.ema->updates() == 3);
  for (; step < 6; ++step) resumed.step(step);
  BOOST_TEST(same_bytes(straight.state_dict(), resumed.state_dict()));
}

BOOST_FIXTURE_TEST_CASE(averages_are_paired_by_name, Run) {
  Training begun, resumed(9);
  lc::Store store(run, world);
  begun.step(0);
  store.save(1, begun.state, *begun.ema);
  std::swap(resumed.state.params[0], resumed.state.params[1]);
  optim::Ema averages(resumed.state, *resumed.backend, std::vector<optim::EmaProfile>{0.9, 0.5});
  BOOST_TEST(store.resume(resumed.state, averages) == 1);
  for (const char* const rate : {"0.5", "0.9"}) {
    for (const char* const name : {"layer.weight", "layer.bias", "layer.counter"}) {
      const Tensor then = begun.ema->tensor(rate, name), now = averages.tensor(rate, name);
      BOOST_TEST(then.shape() == now.shape());
      BOOST_TEST(std::memcmp(then.raw(), now.raw(), then.bytes()) == 0, rate << " " << name);
    }
  }
}

BOOST_FIXTURE_TEST_CASE(a_step_below_zero_is_refused_before_anything_is_written, Run) {
  lc::Store store(run, world);
  Training training;
  BOOST_CHECK_EXCEPTION(store.save(-1, training.state), UsageError,
                        mentions("a checkpoint cannot have step -1"));
  world.barrier();
  BOOST_TEST(names_in(checkpoints).empty());
  world.barrier();  // the store removes the directory
}

BOOST_FIXTURE_TEST_CASE(the_newest_are_kept_and_latest_points_to_the_last, Run) {
  lc::Store store(run, world, {.keep = 2});
  Training training;
  for (const int step : {100, 200, 300}) {
    BOOST_TEST(store.save(step, training.state) ==
               checkpoints + "/step-000000" + std::to_string(step) + ".h5");
  }
  world.barrier();
  BOOST_TEST(names_in(checkpoints) == (Names{"latest", "step-000000200.h5", "step-000000300.h5"}),
             boost::test_tools::per_element());
  BOOST_TEST(std::filesystem::read_symlink(checkpoints + "/latest") == "step-000000300.h5");
  BOOST_TEST(lc::verify(checkpoints + "/latest", world).step == 300);
}

BOOST_FIXTURE_TEST_CASE(going_back_never_prunes_what_was_just_written, Run) {
  lc::Store store(run, world, {.keep = 1});
  Training training;
  store.save(600, training.state);
  store.save(450, training.state);
  store.save(500, training.state);
  world.barrier();
  BOOST_TEST(names_in(checkpoints) == (Names{"latest", "step-000000500.h5", "step-000000600.h5"}),
             boost::test_tools::per_element());
}

BOOST_FIXTURE_TEST_CASE(the_normalisation_of_arrays_is_kept_and_comes_back, Run) {
  const std::string path = fmt::format("{}-{}.h5", run, world.rank());
  hdf5::File file = hdf5::File::create(path);
  file.create_dataset("x", DType::float32, {2}).write(std::span<const float>(std::vector<float>{1, 7}));
  file.create_dataset("y", DType::float32, {2}).write(std::span<const float>(std::vector<float>{1, 7}));
  file.close();
  const auto first_of = [](const data::Arrays& arrays, std::size_t field) {
    const std::int64_t sample = 0;
    const std::vector<Tensor> row{Tensor::empty({1}), Tensor::empty({1})};
    arrays.read({&sample, 1}, row);
    return row[field].data<float>()[0];
  };
  Training training;
  data::Arrays before(path), after(path);
  before.normalize("x", data::Normalization{.mean = {5}, .deviation = {2}});
  after.normalize("x", data::Normalization{.mean = {0}, .deviation = {1}});
  {
    lc::Store store(run, world, {});
    store.save(1, training.state, before);
  }
  lc::Store store(run, world, {});
  BOOST_TEST(store.resume(training.state, after) == 1);
  BOOST_TEST(first_of(after, 0) == -2);
  BOOST_TEST(first_of(after, 1) == 1);
  world.barrier();
}

BOOST_AUTO_TEST_CASE(a_program_records_the_instruction_set_that_train_records) {
  BOOST_TEST(lc::provenance_of(test::world()).at("instruction_set") ==
             kernels::make_cpu_backend(1)->instruction_set());
}

BOOST_FIXTURE_TEST_CASE(a_resume_with_another_math_library_is_a_warning, Run) {
  Training training;
  {
    lc::Store store(run, world, {.provenance = {{"math_library", "oneDNN 1.0.0"}}});
    store.save(1, training.state);
  }
  const std::string here = lc::provenance_of(world).at("math_library");
  BOOST_TEST(here.starts_with("oneDNN "));
  const std::string said = said_by([&] {
    lc::Store store(run, world, {});
    BOOST_TEST(store.resume(training.state) == 1);
    store.save(2, training.state);
  });
  BOOST_TEST(contains(said, "was written with math_library oneDNN 1.0.0, this run has " + here) ==
             (world.rank() == 0));
  world.barrier();
  for (const std::int64_t step : {2, 3}) {  // by the same library, by one that is not named
    const std::string then = said_by([&] {
      lc::Store store(run, world, {.provenance = {{"math_library", ""}}});
      BOOST_TEST(store.resume(training.state) == step);
      store.save(step + 1, training.state);
    });
    BOOST_TEST(!contains(then, "math_library"));
    world.barrier();
  }
  world.barrier();
}

BOOST_FIXTURE_TEST_CASE(the_position_follows_from_the_step_and_another_stream_is_refused, Run) {
  const lc::DataSchedule stream{.seed = 9, .shards = 4, .samples_per_step = 64, .samples_per_epoch = 1000};
  Training training;
  {
    lc::Store store(run, world,
                    {.schedule = stream, .config = "[train]\n", .provenance = {{"threads", "1"}}});
    store.save(40, training.state);
    const lc::FileIndex index = store.newest().value();
    BOOST_TEST((index.position == lc::Position{40, 2, 2560, 4, 9}));
    BOOST_TEST(index.config == "[train]\n");
    BOOST_TEST(index.provenance.at("threads") == "1");
    BOOST_TEST(index.provenance.contains("git"));
  }
  const auto refused = [&](lc::DataSchedule other, const char* text) {
    lc::Store store(run, world, {.schedule = other});
    BOOST_CHECK_EXCEPTION(store.resume(training.state), UsageError, mentions("step-000000040.h5", text));
  };
  refused({.seed = 9, .shards = 5, .samples_per_step = 64}, "shards 4, this run has 5");
  refused({.seed = 8, .shards = 4, .samples_per_step = 64}, "seed 9, this run has 8");
  refused({.seed = 9, .shards = 4, .samples_per_step = 32}, "global batch of 64, this run has 32");
}

BOOST_FIXTURE_TEST_CASE(a_broken_checkpoint_is_passed_over_for_the_one_before, Run) {
  Training training;
  lc::Store store(run, world, {.keep = 0});
  for (int step = 1; step <= 4; ++step) {
    training.step(step);
    store.save(step, training.state, *training.adamw, *training.ema);
  }
  flip_last_byte(checkpoints + "/step-000000004.h5");
  if (first) write_bytes(checkpoints + "/step-000000003.h5", "");
  world.barrier();
  Training resumed;
  BOOST_TEST(store.resume(resumed.state, *resumed.adamw, *resumed.ema) == 2);
  BOOST_TEST(resumed.ema->updates() == 2);
  BOOST_TEST(names_in(checkpoints) == (Names{"latest", "starts", "step-000000001.h5", "step-000000002.h5",
                                             "step-000000003.h5.bad", "step-000000004.h5.bad"}),
             boost::test_tools::per_element());
  BOOST_TEST(std::filesystem::read_symlink(checkpoints + "/latest") == "step-000000002.h5");
  world.barrier();
  flip_last_byte(checkpoints + "/step-000000002.h5");
  flip_last_byte(checkpoints + "/step-000000001.h5");
  BOOST_CHECK_EXCEPTION(store.resume(resumed.state), DataError,
                        mentions("no checkpoint is complete", "step-000000002.h5", "step-000000001.h5"));
  world.barrier();
  // Where none is complete they keep their names: the next start must not take the run for a new one.
  BOOST_TEST(lc::read_index(checkpoints + "/step-000000002.h5").position.step == 2);
}

BOOST_FIXTURE_TEST_CASE(state_that_only_a_broken_checkpoint_held_does_not_linger, Run) {
  Training training;
  lc::Store store(run, world, {.keep = 0});
  training.step(0);
  store.save(1, training.state);
  training.step(1);
  store.save(2, *training.adamw, training.state);
  if (first) {  // the last tensor of the file, so that all before it have been read when it turns out damaged
    const std::string path = checkpoints + "/step-000000002.h5";
    const lc::FileIndex index = lc::read_index(path);
    std::string bytes = read_bytes(path);
    char& byte = bytes[index.tensors.back().offset];
    byte = static_cast<char>(byte ^ 1);
    write_bytes(path, bytes);
  }
  world.barrier();
  Training resumed;
  BOOST_TEST(store.resume(*resumed.adamw, resumed.state) == 1);
  const auto slots = resumed.adamw->slots();
  for (const auto& slot : slots) {
    const std::string bytes(static_cast<const char*>(slot.entries[0].tensor.raw()),
                            slot.entries[0].tensor.bytes());
    BOOST_TEST(bytes.find_first_not_of('\0') == std::string::npos);
  }
}

BOOST_FIXTURE_TEST_CASE(a_checkpoint_of_another_model_is_an_error_and_no_reason_to_take_an_older_one, Run) {
  Training training;
  lc::Store store(run, world);
  store.save(1, training.state);
  training.bias.name = "layer.offset";
  BOOST_CHECK_EXCEPTION(
      store.resume(training.state), DataError,
      mentions("step-000000001.h5", "missing: model/layer.offset", "unexpected: model/layer.bias"));
}

BOOST_FIXTURE_TEST_CASE(what_a_killed_save_left_is_removed_at_the_next_start_and_nothing_else, Run) {
  if (first) {
    std::filesystem::create_directories(checkpoints);
    for (const char* name : {".step-000000500.h5.tmp", ".step-000000600.h5.0123456789abcdef.tmp",
                             ".latest.tmp", ".a.b.tmp", ".mine.tmp", "step-000000100.h5.tmp", "notes.txt"}) {
      write_bytes(checkpoints + "/" + name, "x");
    }
  }
  world.barrier();
  const lc::Store store(run, world);
  BOOST_TEST(names_in(checkpoints) == (Names{".a.b.tmp", ".mine.tmp", "notes.txt", "step-000000100.h5.tmp"}),
             boost::test_tools::per_element());
}

BOOST_FIXTURE_TEST_CASE(a_run_directory_held_by_another_store_is_refused_on_all_ranks, Run) {
  lc::RunDirectory directory(run, world, 0);
  lc::Store store(directory, world);
  BOOST_CHECK_EXCEPTION(lc::RunDirectory(run, world, 0), UsageError, mentions("run/lock", "pid"));
  directory.write_config("[model]\nname = mlp\n");
  BOOST_TEST(directory.stored_config().value() == "[model]\nname = mlp\n");
}

BOOST_FIXTURE_TEST_CASE(
    a_run_that_was_taken_over_while_it_hung_saves_nothing_and_leaves_what_the_new_one_writes, Run) {
  Environment environment;
  environment.set("SLURM_JOB_ID", "4242");
  environment.set("SLURM_RESTART_COUNT", "0");
  Training training;
  lc::RunDirectory hung(run, world, 0);
  lc::Store old_store(hung, world, {.keep = 1});
  old_store.save(1, training.state);
  environment.set("SLURM_RESTART_COUNT", "1");
  lc::RunDirectory next(run, world, 0);
  lc::Store store(next, world);
  environment.unset("SLURM_JOB_ID");
  environment.unset("SLURM_RESTART_COUNT");
  if (first) {  // the new run is in the middle of a save
    write_bytes(checkpoints + "/.step-000000002.h5." + next.mark() + ".tmp", "half");
  }
  world.barrier();
  BOOST_CHECK_EXCEPTION(old_store.save(2, training.state), FailureError,
                        mentions("run/lock", "taken over by", "restart 1"));
  world.barrier();
  BOOST_TEST(names_in(checkpoints) ==
                 (Names{".step-000000002.h5." + next.mark() + ".tmp", "latest", "step-000000001.h5"}),
             boost::test_tools::per_element());
  world.barrier();
  store.save(2, training.state);
  BOOST_TEST(lc::verify(checkpoints + "/step-000000002.h5", world).whole());
}

/// Taken over between laying the file out and giving it its name.
BOOST_FIXTURE_TEST_CASE(a_writer_that_may_no_longer_write_is_asked_again_before_the_file_gets_its_name, Run) {
  lc::StateDict state_dict = awkward_state_dict();
  int asked = 0;
  const auto once = [&] {
    if (++asked > 1) throw FailureError("{}/lock: taken over", run);
  };
  BOOST_CHECK_EXCEPTION(
      lc::save_file(folder.file("a.h5"), state_dict, world, {.mark = "m", .check_may_write = once}),
      FailureError, mentions("run/lock: taken over"));
  BOOST_TEST(asked == (first ? 2 : 0));
  world.barrier();
  BOOST_TEST(names_in(folder.path()).empty());
}

BOOST_FIXTURE_TEST_CASE(
    a_write_that_fails_on_one_rank_is_the_same_error_on_all_and_leaves_earlier_checkpoints, Run) {
  lc::StateDict state_dict = awkward_state_dict();
  lc::Store store(run, world);
  store.save_state_dict(1, state_dict);
  const std::string before = read_bytes(checkpoints + "/step-000000001.h5");

  const int failing = world.size() - 1;
  std::optional<ShortFiles> full;
  if (world.rank() == failing) full.emplace(3 << 20);
  const std::string prefix = world.size() > 1 ? "rank " + std::to_string(failing) + ": " : "";
  BOOST_CHECK_EXCEPTION(store.save_state_dict(2, state_dict), DataError,
                        mentions(prefix, ".step-000000002.h5.", ".tmp", "File too large"));
  full.reset();

  world.barrier();
  BOOST_TEST(names_in(checkpoints) == (Names{"latest", "step-000000001.h5"}),
             boost::test_tools::per_element());
  BOOST_TEST((read_bytes(checkpoints + "/step-000000001.h5") == before));
  BOOST_TEST(store.resume_state_dict(state_dict) == 1);
  store.save_state_dict(2, state_dict);  // the run may continue
  BOOST_TEST(lc::verify(checkpoints + "/step-000000002.h5", world).whole());
}

BOOST_FIXTURE_TEST_CASE(a_save_or_a_load_while_ema_weights_are_swapped_in_is_refused_by_all_ranks, Run) {
  Training training;
  training.step(0);
  lc::Store store(run, world);
  store.save(1, training.state, *training.ema);
  const lc::StateDict before = with_own_memory(training.state_dict());
  {
    std::unique_ptr<optim::Ema::SwappedIn> evaluation;
    if (first) evaluation.reset(new optim::Ema::SwappedIn(training.ema->swap_in("0.9")));
    const auto refused = mentions("EMA weights are swapped in", checkpoints);
    BOOST_CHECK_EXCEPTION(store.save(2, training.state, *training.ema), UsageError, refused);
    BOOST_CHECK_EXCEPTION(store.resume(training.state, *training.ema), UsageError, refused);
    const std::string path = checkpoints + "/step-000000001.h5";
    BOOST_CHECK_EXCEPTION(lc::load_weights(path, training.state, world), UsageError, refused);
    BOOST_CHECK_EXCEPTION(lc::load_file(path, training.state_dict(), world), UsageError, refused);
    BOOST_CHECK_EXCEPTION(store.fork_state_dict(lc::read_index(path), training.state_dict()), UsageError,
                          refused);
  }
  BOOST_TEST(same_bytes(before, training.state_dict()));
  world.barrier();
  BOOST_TEST(names_in(checkpoints) == (Names{"latest", "step-000000001.h5"}),
             boost::test_tools::per_element());
  store.save(2, training.state, *training.ema);
}

BOOST_FIXTURE_TEST_CASE(the_first_save_names_what_the_ranks_hold_differently, Run) {
  if (world.size() == 1) return;
  const int other = world.size() - 1;
  const auto flip = [&](const Tensor& tensor) {
    if (world.rank() == other) *static_cast<unsigned char*>(tensor.raw()) ^= 1;
  };
  Training training;
  training.step(0);
  const Tensor parts[] = {training.weight.value, training.counter.value,
                          training.ema->tensor("0.9", "layer.bias"),
                          training.adamw->held_slots()[0].entries[1].tensor};
  const char* const names[] = {"model/layer.weight", "model/layer.counter", "ema/0.9/layer.bias",
                               "optimizer/exp_avg/layer.bias"};
  for (const bool async : {false, true}) {
    for (std::size_t part = 0; part < std::size(parts); ++part) {
      lc::Store store(run, world, {.async = async});
      flip(parts[part]);
      BOOST_CHECK_EXCEPTION(
          store.save(1, training.state, *training.adamw, *training.ema), TrainingError,
          mentions(std::string(names[part]) + " on rank " + std::to_string(other), checkpoints));
      flip(parts[part]);
      if (first) BOOST_TEST(names_in(checkpoints).empty());
      world.barrier();
    }
  }
  lc::Store store(run, world);
  store.save(1, training.state, *training.adamw, *training.ema);
}

BOOST_FIXTURE_TEST_CASE(a_checkpoint_that_two_starts_got_no_further_from_is_passed_over, Run) {
  Training training;
  {
    lc::Store store(run, world, {.keep = 0});
    for (const int step : {10, 20}) store.save(step, training.state);
  }
  const auto start = [&](bool dies, int saves = 0) {
    std::int64_t from = -1;
    try {
      lc::Store store(run, world, {.keep = 0});
      from = store.resume(training.state);
      if (saves > 0) store.save(saves, training.state);
      if (dies) throw std::runtime_error("killed");
    } catch (const std::runtime_error&) {
    }
    world.barrier();
    return from;
  };
  for (int i = 0; i < 3; ++i) BOOST_TEST(start(false) == 20);  // ends in order are no attempts
  BOOST_TEST(start(true) == 20);
  BOOST_TEST(start(false) == 20);
  BOOST_TEST(start(true) == 20);
  BOOST_TEST(start(true) == 10);
  BOOST_TEST(start(true) == 10);
  BOOST_TEST(start(true) == 20);      // all have had their starts: the newest again
  BOOST_TEST(start(true, 15) == 20);  // does not get further either
  BOOST_TEST(start(true) == 15);
  BOOST_TEST(start(false, 20) == 15);  // the old course's file is replaced, and counts as new
  BOOST_TEST(start(true) == 20);
  BOOST_TEST(start(true, 30) == 20);
  BOOST_TEST(start(false) == 30);
  BOOST_TEST(!std::filesystem::exists(checkpoints + "/starts"));
}

BOOST_FIXTURE_TEST_CASE(the_best_is_chosen_when_an_evaluation_ends_from_a_record_beside_the_checkpoints,
                        Run) {
  Training training;
  const lc::StoreOptions options{.keep = 1, .keep_best = "eval_loss"};
  {
    lc::Store store(run, world, options);
    store.save(100, training.state);
    store.note_metrics(100, {{"eval_loss", 0.5}, {"eval_accuracy", 0.75}});
    BOOST_TEST(store.knows_metric(100, "eval_accuracy"));
    store.save(200, training.state);
    BOOST_TEST(!store.knows_metric(200, "eval_loss"));
    store.note_metrics(200, {{"eval_loss", 0.75}});
  }
  world.barrier();
  BOOST_TEST(std::filesystem::read_symlink(checkpoints + "/best") == "step-000000100.h5");
  lc::Store store(run, world, options);
  BOOST_TEST(store.knows_metric(100, "eval_loss"));
  store.save(300, training.state);
  store.note_metrics(300, {{"eval_loss", 0.25}});
  BOOST_TEST(std::filesystem::read_symlink(checkpoints + "/best") == "step-000000300.h5");
  BOOST_TEST(names_in(checkpoints) == (Names{"best", "evaluations.json", "latest", "step-000000300.h5"}),
             boost::test_tools::per_element());
  store.save(300, training.state);  // another file, which nobody has judged
  BOOST_TEST(!store.knows_metric(300, "eval_loss"));
}

BOOST_FIXTURE_TEST_CASE(what_would_be_the_best_is_better_than_all_earlier_ones_on_every_rank, Run) {
  Training training;
  for (const bool async : {false, true}) {
    lc::Store store(run + (async ? "-async" : ""), world,
                    {.keep = 2, .keep_best = "eval_accuracy", .async = async});
    const auto best = [&](std::int64_t step, double accuracy) {
      // What only this rank has computed does not matter.
      return store.would_be_best(step, {{"eval_accuracy", first ? accuracy : -accuracy}, {"eval_loss", 0}});
    };
    const auto save = [&](std::int64_t step, double accuracy) {
      lc::StateDict state_dict = training.state_dict();
      state_dict.metrics["eval_accuracy"] = accuracy;
      store.save_state_dict(step, state_dict);
    };
    BOOST_TEST(!store.would_be_best(100, {{"eval_loss", 0}}));
    BOOST_TEST(!best(100, NAN));
    BOOST_TEST(best(100, 0.5));
    save(100, 0.5);
    BOOST_TEST(!best(200, 0.5));  // of equals the earliest
    BOOST_TEST(best(200, 0.75));
    save(200, 0.75);
    BOOST_TEST(!best(300, INFINITY));
    BOOST_TEST(best(150, 0.625));  // step 200 belongs to what the run repeats
    store.finish();
  }
}

BOOST_FIXTURE_TEST_CASE(a_record_of_evaluations_that_is_none_is_said_and_made_again, Run) {
  Training training;
  lc::Store(run, world).save(100, training.state);
  for (const char* const text : {"", "{", "[1]", "{\"x\": {}}", "{\"100\": 3}", "null"}) {
    if (first) std::ofstream(checkpoints + "/evaluations.json") << text;
    world.barrier();
    lc::Store store(run, world, {.keep_best = "eval_loss"});
    BOOST_TEST(!store.knows_metric(100, "eval_loss"), text);
    store.note_metrics(100, {{"eval_loss", 0.5}});
    BOOST_TEST(store.knows_metric(100, "eval_loss"), text);
  }
}

BOOST_FIXTURE_TEST_CASE(a_metric_that_is_not_finite_is_known_and_takes_nothing_from_the_others, Run) {
  Training training;
  const lc::StoreOptions options{.keep = 1, .keep_best = "eval_accuracy"};
  {
    lc::Store store(run, world, options);
    store.save(100, training.state);
    store.note_metrics(100, {{"eval_loss", NAN}, {"eval_accuracy", 0.75}});
    store.save(200, training.state);
    store.note_metrics(200, {{"eval_loss", INFINITY}, {"eval_accuracy", NAN}});
  }
  world.barrier();
  lc::Store store(run, world, options);
  BOOST_TEST(store.knows_metric(200, "eval_loss"));
  store.save(300, training.state);
  store.note_metrics(300, {{"eval_accuracy", 0.5}});
  BOOST_TEST(std::filesystem::read_symlink(checkpoints + "/best") == "step-000000100.h5");
}

BOOST_FIXTURE_TEST_CASE(the_best_by_a_metric_is_kept_and_linked_and_known_to_the_next_start, Run) {
  Training training;
  const auto save = [&](lc::Store& store, int step, double accuracy) {
    lc::StateDict state_dict = training.state_dict();
    if (accuracy > 0) state_dict.metrics["eval_accuracy"] = accuracy;
    store.save_state_dict(step, state_dict);
  };
  const lc::StoreOptions options{.keep = 1, .keep_best = "eval_accuracy"};
  {
    lc::Store store(run, world, options);
    save(store, 100, 0.5);
    save(store, 200, 0.9);
    save(store, 300, 0.7);
  }
  world.barrier();
  BOOST_TEST(names_in(checkpoints) == (Names{"best", "latest", "step-000000200.h5", "step-000000300.h5"}),
             boost::test_tools::per_element());
  BOOST_TEST(std::filesystem::read_symlink(checkpoints + "/best") == "step-000000200.h5");
  world.barrier();
  lc::Store store(run, world, options);
  save(store, 400, 0.8);
  save(store, 500, 0);
  world.barrier();
  BOOST_TEST(names_in(checkpoints) == (Names{"best", "latest", "step-000000200.h5", "step-000000500.h5"}),
             boost::test_tools::per_element());
  world.barrier();
  save(store, 600, 0.95);
  world.barrier();
  BOOST_TEST(std::filesystem::read_symlink(checkpoints + "/best") == "step-000000600.h5");
  BOOST_TEST(names_in(checkpoints) == (Names{"best", "latest", "step-000000600.h5"}),
             boost::test_tools::per_element());
}

BOOST_AUTO_TEST_SUITE_END()
}  // namespace
}  // namespace lockstep::test
