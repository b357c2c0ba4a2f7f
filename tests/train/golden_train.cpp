// Whole training trajectories against PyTorch, at any number of ranks: one shard a rank, batch norm over all
// ranks.
#include <fmt/format.h>

#include <boost/test/unit_test.hpp>

#include "lockstep/autograd/functions.h"
#include "lockstep/checkpoint/load.h"
#include "lockstep/data/loader.h"
#include "lockstep/ddp/data_parallel.h"
#include "lockstep/train/workload.h"
#include "support/golden.h"
#include "support/world.h"

namespace lockstep::test {
namespace {

std::string value_text(const nlohmann::json& value) {
  if (value.is_string()) return value.get<std::string>();
  if (!value.is_array()) return value.dump();
  std::string text;
  for (const nlohmann::json& element : value) text += element.dump() + " ";
  return text;
}

/// The case as a configuration file would say it.
train::Config config_of(const nlohmann::json& what, int ranks) {
  std::string text = "[model]\n";
  if (what.at("model").at("name") == "resnet") text += "batch_norm = sync\n";
  for (const auto& [key, value] : what.at("model").items())
    text += fmt::format("{} = {}\n", key, value_text(value));
  text += "[optimizer]\n";
  for (const auto& [key, value] : what.at("optimizer").items()) {
    text += fmt::format("{} = {}\n", key == "optimizer" ? "name" : key, value_text(value));
  }
  if (!what.at("clip").is_null()) text += fmt::format("clip = {}\n", what.at("clip").get<double>());
  text += fmt::format("[ema]\nrates = {}\n", value_text(what.at("ema")));
  text += fmt::format("[train]\nsteps = {}\nglobal_batch = {}\nshards = {}\n", what.at("steps").get<int>(),
                      what.at("batch").get<int>(), ranks);
  return train::parse_config(text, "golden case");
}

/// Step `step` of a [steps, batch, ...] tensor.
Tensor of_step(const Tensor& all, std::int64_t step) {
  const Tensor one = all.rows(step, step + 1);
  return one.reshape(Shape(one.shape().extents().subspan(1)));
}

struct Batch {
  std::int64_t step = 0;
  std::vector<data::Shard> shards;
  auto begin() const { return shards.begin(); }
  auto end() const { return shards.end(); }
};

void expect(const GoldenCase& golden, const std::string& path, const Tensor& found,
            const Tolerance& tolerance) {
  const std::string text = mismatch(golden, path, found, tolerance);
  BOOST_CHECK_MESSAGE(text.empty(), text);
}

/// Names as the case stores its results.
void expect_group(const GoldenCase& golden, const std::string& group,
                  const std::vector<checkpoint::NamedTensor>& found) {
  BOOST_TEST(golden.names(group).size() == found.size(), golden.name() << ": names under " << group);
  for (const checkpoint::NamedTensor& tensor : found) {
    expect(golden, group + "/" + tensor.name, tensor.value, trajectory_tolerance);
  }
}

void train_case(const GoldenCase& golden, const std::string& file) {
  comm::Communicator& ranks = world();
  const train::Config config = config_of(golden.what(), ranks.size());
  const auto backend = kernels::make_cpu_backend();
  const auto model = train::build_model(config);
  const std::string case_name = golden.name().substr(golden.name().find(": ") + 2);
  checkpoint::load_weights(file, *model, ranks, case_name + "/init");

  ddp::DataParallel replicas(*model, ranks, *backend, {.layer_communicator = true});
  const auto optimizer = train::build_optimizer(config, replicas);
  const auto ema = train::build_ema(config, *model, *backend);
  optimizer->attach(*ema);

  const Tensor x = golden.tensor("x"), y = golden.tensor("y"), loss = golden.tensor("loss");
  const std::int64_t samples = config.train.global_batch / ranks.size();
  Tensor losses = Tensor::empty(loss.shape(), DType::float64);
  for (std::int64_t step = 0; step < config.train.steps; ++step) {
    const std::int64_t first = samples * ranks.rank();
    const Batch batch{step,
                      {{ranks.rank(), of_step(x, step).rows(first, first + samples),
                        of_step(y, step).rows(first, first + samples)}}};
    const ddp::StepResult result = replicas.step(batch, [&](Tape& tape, const data::Shard& shard) {
      return cross_entropy(model->forward(tape, shard.x), shard.y);
    });
    losses.data<double>()[step] = result.mean_loss();
    optimizer->step({.lr = {}, .clip = config.optimizer.clip});
  }
  expect(golden, "loss", losses, loss_tolerance);

  std::vector<checkpoint::NamedTensor> final;
  const ModelState state = model->state();
  for (const Param* const param : state.params) final.push_back({param->name, param->value});
  for (const Buffer* const buffer : state.buffers) final.push_back({buffer->name, buffer->value});
  expect_group(golden, "final", final);

  for (const auto& rate : golden.names("ema")) {
    std::vector<checkpoint::NamedTensor> shadows;
    for (const Param* const param : state.params)
      shadows.push_back({param->name, ema->shadow(rate, param->name)});
    expect_group(golden, "ema/" + rate, shadows);
  }
  for (const optim::Slot& slot : optimizer->slots()) {
    if (slot.name == "step") continue;  // a count of updates: PyTorch's state has it, the case does not
    std::vector<checkpoint::NamedTensor> entries;
    for (const optim::Slot::Entry& entry : slot.entries) entries.push_back({entry.name, entry.tensor});
    expect_group(golden, slot.name, entries);
  }

  Tape& tape = replicas.tape();
  tape.begin({.training = false, .record = false});
  expect(golden, "eval_logits", model->forward(tape, of_step(x, 0)).value(), trajectory_tolerance);
}

BOOST_AUTO_TEST_CASE(trajectories_are_those_of_pytorch) {
  for (const auto& file : golden_files("train", ".h5")) {
    for_each_golden_case(file.stem().string(), [&](const GoldenCase& golden) {
      if (golden.name().starts_with(file.filename().string() + ":")) train_case(golden, file.string());
    });
  }
}

}  // namespace
}  // namespace lockstep::test
