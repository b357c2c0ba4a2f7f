// The state of a task: the ranks agree on it after each step, and checkpoints store it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "lockstep/checkpoint/index.h"
#include "lockstep/checkpoint/state_dict.h"
#include "lockstep/comm/communicator.h"
#include "lockstep/comm/reduction_tree.h"
#include "lockstep/tasks/task.h"

namespace lockstep::train {

/// Passes the numbers of all samples of a step to a task (Task::after_step), in order, so that its state is
/// the same on every rank and at any number of ranks.
class TaskNumbers {
 public:
  /// global_batch: samples of a step. The task and the ranks must outlive this.
  TaskNumbers(Task& task, comm::HostGroup& world, const comm::ShardMap& shards, std::int64_t global_batch);

  /// After each step. Collective if the task has numbers; otherwise does nothing. UsageError on every rank if
  /// the task's passes left another number of them than numbers_per_sample().
  void agree();

 private:
  Task& task_;
  comm::HostGroup& world_;
  std::vector<std::size_t> bytes_of_rank_;
  std::vector<double> mine_, all_;
};

/// Lists Task::state() under "task", if there is any. The task must outlive the state dict.
void add(checkpoint::StateDict& state_dict, Task& task);

/// Removes the section "task" from a fork's load if the file has a tensor of it in another shape, for example
/// with another diffusion.steps: the state starts again. Returns a line for the log; empty: it fits.
std::string drop_task_of_other_shape(checkpoint::StateDict& state_dict, const checkpoint::FileIndex& file);

}  // namespace lockstep::train
