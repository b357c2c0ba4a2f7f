// How long a training step takes.
#include "base/resources.h"
#include "lockstep/base/error.h"
#include "train/benchmark_run.h"
#include "train/precision.h"

namespace lockstep::train {

StepTimes time_steps(Session& session, const std::string& name, std::int64_t steps, DType compute,
                     const std::vector<std::string>& overrides) {
  for (const std::string& text : overrides) {
    if (!text.starts_with("model.") && !text.starts_with("optimizer."))
      throw UsageError("--set {}: only keys of model and optimizer are the workload's", text);
  }
  check_steps(steps, "step");
  comm::HostGroup& world = session.world();
  WorkloadRun run(workload_named(name), session.transport(), session.backend(), {.compute = compute}, 1,
                  overrides);

  std::vector<double> step_ms, exposed_ms;
  for (std::int64_t step = 0; step < settling_steps; ++step) run.step();
  step_ms.reserve(static_cast<std::size_t>(steps));
  exposed_ms.reserve(static_cast<std::size_t>(steps));
  const ProcessMemory before = process_memory();
  for (std::int64_t step = 0; step < steps; ++step) {
    const WorkloadRun::Times times = run.step();
    step_ms.push_back(times.step_ms);
    exposed_ms.push_back(times.exposed_comm_ms);
  }
  const ProcessMemory after = process_memory();
  const std::vector<double> memory = greatest_of_ranks(
      world, {static_cast<double>(after.peak_bytes),
              static_cast<double>(after.page_faults - before.page_faults) / static_cast<double>(steps)});

  StepTimes times{.model = name,
                  .precision = precision_text(compute, session.backend()),
                  .ranks = world.size(),
                  .steps = steps};
  times.step_ms = median(greatest_of_ranks(world, step_ms));
  times.exposed_comm_ms = median(greatest_of_ranks(world, exposed_ms));
  times.peak_memory_bytes = memory[0];
  times.page_faults = memory[1];
  times.samples_per_second = static_cast<double>(run.config().train.global_batch) * 1e3 / times.step_ms;
  return times;
}

TreeOrderTimes time_tree_order(Session& session, const std::string& name, std::int64_t steps, int passes,
                               DType compute) {
  check_steps(steps, "step");
  comm::HostGroup& world = session.world();
  const StandardWorkload& workload = workload_named(name);
  WorkloadRun tree(workload, session.transport(), session.backend(), {.compute = compute}, passes);
  WorkloadRun in_order(workload, session.transport(), session.backend(),
                       {.micro_batches = passes, .compute = compute});

  std::vector<double> tree_ms, in_order_ms;
  for (std::int64_t step = 0; step < settling_steps + steps; ++step) {
    const double with_tree = tree.step().step_ms, without = in_order.step().step_ms;
    if (step < settling_steps) continue;
    tree_ms.push_back(with_tree);
    in_order_ms.push_back(without);
  }
  return {.passes = passes,
          .tree_ms = median(greatest_of_ranks(world, tree_ms)),
          .in_order_ms = median(greatest_of_ranks(world, in_order_ms)),
          .accumulators = tree.replicas().accumulation_buffers(),
          .accumulator_bytes = tree.replicas().accumulation_buffer_bytes()};
}

}  // namespace lockstep::train
