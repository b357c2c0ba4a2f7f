// Whole training trajectories against PyTorch, at any number of ranks and on any device: one shard a rank,
// batch norm over all ranks.
#pragma once

#include <fmt/format.h>

#include <boost/test/unit_test.hpp>
#include <cmath>
#include <string>
#include <vector>

#include "lockstep/autograd/functions.h"
#include "lockstep/checkpoint/file.h"
#include "lockstep/data/loader.h"
#include "lockstep/ddp/data_parallel.h"
#include "lockstep/kernels/backend.h"
#include "support/golden.h"
#include "train/components.h"

namespace lockstep::test {

inline std::string value_text(const nlohmann::json& value) {
  if (value.is_string()) return value.get<std::string>();
  if (!value.is_array()) return value.dump();
  std::string text;
  for (const nlohmann::json& element : value) text += element.dump() + " ";
  return text;
}

/// The case as a configuration file would say it.
inline train::Config config_of(const nlohmann::json& what, int ranks,
                               const Registries& registries = built_in_registries()) {
  std::string text = "[model]\n";
  if (what.at("model").at("name") == "resnet") text += "batch_norm = sync\n";
  for (const auto& [key, value] : what.at("model").items())
    text += fmt::format("{} = {}\n", key, value_text(value));
  if (what.contains("task")) {
    text += "[task]\n";
    for (const auto& [key, value] : what.at("task").items())
      text += fmt::format("{} = {}\n", key, value_text(value));
  }
  text += "[optimizer]\n";
  for (const auto& [key, value] : what.at("optimizer").items()) {
    text += fmt::format("{} = {}\n", key == "optimizer" ? "name" : key, value_text(value));
  }
  if (!what.at("clip").is_null()) text += fmt::format("clip = {}\n", what.at("clip").get<double>());
  text += fmt::format("[ema]\nrates = {}\n", value_text(what.at("ema")));
  text += fmt::format("[train]\nsteps = {}\nglobal_batch = {}\nshards = {}\n", what.at("steps").get<int>(),
                      what.at("batch").get<int>(), ranks);
  return train::parse_config(text, "golden case", {}, registries);
}

/// Step `step` of a [steps, batch, ...] tensor.
inline Tensor of_step(const Tensor& all, std::int64_t step) {
  const Tensor one = all.rows(step, step + 1);
  return one.reshape(Shape(one.shape().extents().subspan(1)));
}

struct GoldenBatch {
  std::int64_t step = 0;
  std::vector<Batch> shards;
  auto begin() const { return shards.begin(); }
  auto end() const { return shards.end(); }
};

inline void expect(const GoldenCase& golden, const std::string& path, const Tensor& found,
                   const Tolerance& tolerance) {
  const std::string text = mismatch(golden, path, found, tolerance);
  BOOST_CHECK_MESSAGE(text.empty(), text);
}

/// Names as the case stores its results.
inline void expect_group(const GoldenCase& golden, const std::string& group,
                         const std::vector<checkpoint::NamedTensor>& found) {
  BOOST_TEST(golden.names(group).size() == found.size(), golden.name() << ": names under " << group);
  for (const checkpoint::NamedTensor& tensor : found) {
    expect(golden, group + "/" + tensor.name, tensor.value, trajectory_tolerance);
  }
}

/// Whether a case in bf16 stays near the float32 references: losses and logits within 2e-2, and all
/// parameters, as one vector, within 2e-2 of its length. (One by one the smallest of them, biases that began
/// at 0, are mostly what Adam makes of noise.)
inline void expect_near(const GoldenCase& golden, const Tensor& losses, const Tensor& logits,
                        const std::vector<checkpoint::NamedTensor>& final) {
  // Small batches through batch norm at a high rate: in float32, too, this run ends 3 to 11 % away when its
  // weights begin 1e-3 away. Its first steps are near.
  const bool diverges = golden.name().ends_with("resnet_prefixed");
  const std::int64_t steps = diverges ? 2 : losses.numel();
  const std::string text = mismatch(golden, "loss", losses.rows(0, steps),
                                    golden.tensor("loss").rows(0, steps), bf16_loss_tolerance);
  BOOST_CHECK_MESSAGE(text.empty(), text);
  if (diverges) return;
  expect(golden, "eval_logits", logits, bf16_tolerance);
  double off = 0, length = 0;
  for (const checkpoint::NamedTensor& found : final) {
    if (found.value.dtype() != DType::float32) continue;
    const Tensor wanted = golden.tensor("final/" + found.name);
    for (std::int64_t i = 0; i < wanted.numel(); ++i) {
      const double a = found.value.data<float>()[i], b = wanted.data<float>()[i];
      off += (a - b) * (a - b);
      length += b * b;
    }
  }
  BOOST_TEST(std::sqrt(off) < 2e-2 * std::sqrt(length), golden.name());
}

/// transport: its memory is on the backend's device.
inline void train_case(const GoldenCase& golden, const std::string& file, comm::GradientTransport& transport,
                       kernels::Backend& backend, DType compute) {
  comm::HostGroup& ranks = transport.group();
  const auto here = [&](const Tensor& tensor) { return kernels::on_cpu(tensor, &backend); };
  const auto there = [&](const Tensor& tensor) { return kernels::on_device(tensor, backend); };
  const train::Config config = config_of(golden.what(), ranks.size());
  const auto model = train::build_model(config);
  model->to(backend);
  const std::string case_name = golden.name().substr(golden.name().find(": ") + 2);
  checkpoint::load_weights(file, *model, ranks, case_name + "/init");

  ddp::DataParallel replicas(*model, transport, backend, {.compute = compute});
  const auto optimizer = config.optimizer.make(replicas);
  const auto ema = train::build_ema(config, *model, backend);
  optimizer->attach(*ema);

  const Tensor x = golden.tensor("x"), y = golden.tensor("y"), loss = golden.tensor("loss");
  const std::int64_t samples = config.train.global_batch / ranks.size();
  Tensor losses = Tensor::empty(loss.shape(), DType::float64);
  for (std::int64_t step = 0; step < config.train.steps; ++step) {
    const std::int64_t first = samples * ranks.rank();
    const GoldenBatch batch{
        step,
        {Batch(ranks.rank(), {{"x", there(of_step(x, step).rows(first, first + samples))},
                              {"y", there(of_step(y, step).rows(first, first + samples))}})}};
    const ddp::StepResult result = replicas.step(batch, [&](Tape& tape, const Batch& shard) {
      return cross_entropy(model->forward(tape, shard), shard["y"]);
    });
    losses.data<double>()[step] = result.mean_loss();
    optimizer->step({.lr = {}, .clip = config.optimizer.clip});
  }
  std::vector<checkpoint::NamedTensor> final;
  const ModelState state = model->state();
  for (const Param* const param : state.params) final.push_back({param->name, here(param->value)});
  for (const Buffer* const buffer : state.buffers) final.push_back({buffer->name, here(buffer->value)});
  Tape& tape = replicas.tape();
  tape.begin({.training = false, .record = false, .compute = compute});
  const Tensor logits = here(in_float32(backend, model->forward(tape, there(of_step(x, 0))).value()));
  if (compute != DType::float32) return expect_near(golden, losses, logits, final);
  expect(golden, "loss", losses, loss_tolerance);
  expect(golden, "eval_logits", logits, trajectory_tolerance);
  expect_group(golden, "final", final);

  for (const auto& rate : golden.names("ema")) {
    std::vector<checkpoint::NamedTensor> shadows;
    for (const Param* const param : state.params)
      shadows.push_back({param->name, here(ema->tensor(rate, param->name))});
    expect_group(golden, "ema/" + rate, shadows);
  }
  for (const optim::Slot& slot : optimizer->slots()) {
    if (slot.name == "step") continue;  // a count of updates: PyTorch's state has it, the case does not
    std::vector<checkpoint::NamedTensor> entries;
    for (const optim::Slot::Entry& entry : slot.entries) entries.push_back({entry.name, here(entry.tensor)});
    expect_group(golden, slot.name, entries);
  }
}

inline void train_all_cases(comm::GradientTransport& transport, kernels::Backend& backend,
                            DType compute = DType::float32) {
  for (const auto& file : golden_files("train", ".h5")) {
    for_each_golden_case(file.stem().string(), [&](const GoldenCase& golden) {
      if (golden.name().starts_with(file.filename().string() + ":"))
        train_case(golden, file.string(), transport, backend, compute);
    });
  }
}

}  // namespace lockstep::test
