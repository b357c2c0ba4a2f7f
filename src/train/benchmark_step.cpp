// How long a training step takes.
#include "train/benchmark_run.h"

namespace lockstep::train {

StepTimes time_steps(Session& session, const std::string& name, std::int64_t steps) {
  if (steps < 1) throw UsageError("--steps {}: must be at least 1; see lockstep bench step --help", steps);
  comm::Communicator& world = session.world();
  WorkloadRun run(workload_named(name), world, session.backend());

  std::vector<double> step_ms, exposed_ms;
  for (std::int64_t step = 0; step < settling_steps; ++step) run.step();
  for (std::int64_t step = 0; step < steps; ++step) {
    const WorkloadRun::Times times = run.step();
    step_ms.push_back(times.step_ms);
    exposed_ms.push_back(times.exposed_comm_ms);
  }

  StepTimes times{
      .model = name, .precision = run.config().train.precision, .ranks = world.size(), .steps = steps};
  times.step_ms = median(greatest_of_ranks(world, step_ms));
  times.exposed_comm_ms = median(greatest_of_ranks(world, exposed_ms));
  times.samples_per_second = static_cast<double>(run.config().train.global_batch) * 1e3 / times.step_ms;
  return times;
}

}  // namespace lockstep::train
