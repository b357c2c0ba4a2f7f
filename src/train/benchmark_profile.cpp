// Where the time of a training step goes.
#include "train/benchmark_run.h"
#include "train/precision.h"

namespace lockstep::train {

StepProfile profile_steps(Session& session, const std::string& name, std::int64_t steps, DType compute) {
  check_steps(steps, "step");
  kernels::Profile profile;
  std::optional<kernels::Profiler> profiler(std::in_place, session.backend(), profile);
  WorkloadRun run(workload_named(name), session.transport(), session.backend(), {.compute = compute});
  for (std::int64_t step = 0; step < settling_steps; ++step) run.step();

  StepProfile found{.model = name,
                    .precision = precision_text(compute, session.backend()),
                    .ranks = session.world().size(),
                    .steps = steps};
  // In the middle of what is measured, so that both see the same machine.
  profile.clear();
  const auto some_steps = [&](std::int64_t count) {
    for (std::int64_t step = 0; step < count; ++step) {
      const WorkloadRun::Times times = run.step();
      found.step_ms += times.step_ms / static_cast<double>(steps);
      found.exposed_comm_ms += times.exposed_comm_ms / static_cast<double>(steps);
    }
  };
  some_steps(steps / 2);
  profiler.reset();  // not of the ceilings
  found.ceilings = kernels::measure_ceilings(session.backend(), compute);
  profiler.emplace(session.backend(), profile);
  some_steps(steps - steps / 2);

  found.operations = profile.operations();
  for (kernels::OperationFigures& operation : found.operations) {
    operation.ms /= static_cast<double>(steps);
    operation.flops /= static_cast<double>(steps);
    operation.bytes /= static_cast<double>(steps);
    operation.calls /= steps;
  }
  return found;
}

}  // namespace lockstep::train
