#include "train/run/task_state.h"

#include <fmt/format.h>

#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/comm/agreement.h"

namespace lockstep::train {
namespace {

constexpr const char* task_section = "task";

}  // namespace

TaskNumbers::TaskNumbers(Task& task, comm::HostGroup& world, const comm::ShardMap& shards,
                         std::int64_t global_batch)
    : task_(task), world_(world) {
  const std::size_t width = task.numbers_per_sample();
  if (width == 0) return;
  const auto samples_of_shard = static_cast<std::size_t>(global_batch / shards.shards());
  for (int rank = 0; rank < world.size(); ++rank)
    bytes_of_rank_.push_back(static_cast<std::size_t>(shards.block(rank).count) * samples_of_shard * width *
                             sizeof(double));
  all_.resize(static_cast<std::size_t>(global_batch) * width);
}

void TaskNumbers::agree() {
  if (bytes_of_rank_.empty()) return;
  mine_.clear();
  comm::run_on_all(world_, [&] {
    task_.take_numbers(mine_);
    const std::size_t expected = bytes_of_rank_[static_cast<std::size_t>(world_.rank())] / sizeof(double);
    if (mine_.size() != expected)
      throw UsageError(
          "Task::take_numbers() gave {} numbers of a step's samples, but numbers_per_sample() means {}",
          mine_.size(), expected);
  });
  world_.all_gather_unequal(mine_.data(), bytes_of_rank_, all_.data());
  task_.after_step(all_);
}

void add(checkpoint::StateDict& state_dict, Task& task) {
  checkpoint::Section section{.path = task_section, .tensors = {}, .attributes = {}};
  for (auto& [name, tensor] : task.state())
    section.tensors.push_back({.name = std::move(name), .value = std::move(tensor)});
  if (!section.tensors.empty()) state_dict.sections.push_back(std::move(section));
}

std::string drop_task_of_other_shape(checkpoint::StateDict& state_dict, const checkpoint::FileIndex& file) {
  for (auto section = state_dict.sections.begin(); section != state_dict.sections.end(); ++section) {
    if (section->path != task_section) continue;
    for (const checkpoint::NamedTensor& now : section->tensors)
      for (const checkpoint::TensorEntry& then : file.tensors) {
        if (then.group != task_section || then.name != now.name || then.shape == now.shape()) continue;
        std::string line =
            fmt::format("{} is {} in {}, and {} in this run: the state of the task starts anew", then.path(),
                        to_string(then.shape), file.path, to_string(now.shape()));
        state_dict.sections.erase(section);
        return line;
      }
  }
  return {};
}

}  // namespace lockstep::train
