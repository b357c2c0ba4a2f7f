// lockstep ema: EMA weights of any width, made after training from the profile snapshots of a run.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <nlohmann/json.hpp>
#include <optional>

#include "base/text.h"
#include "cli/verb.h"
#include "lockstep/checkpoint/convert.h"

namespace lockstep::cli {

ExitCode ema(const Program& program, Session& session, const Arguments& arguments) {
  OptionSet options(program, "ema RUN --sigma-rel S [--step N] --out FILE.h5 [OPTIONS]",
                    "Writes the power-function EMA weights of relative width S, which the run did not\n"
                    "track: the closest mixture of the EMA weights in RUN/ema, which a run keeps when\n"
                    "ema.sigma_rel is set. FILE has one group, ema/sigma_rel=S, and the run's\n"
                    "configuration: eval, generate, inspect, diff, verify and --resume read it. The\n"
                    "profile error that is printed says how much the mixture differs from that EMA in\n"
                    "the factors of past steps; the resulting weights differ by less.");
  options.add()("sigma-rel", po::value<double>(), "width as a part of the training so far, such as 0.12");
  options.add()("step", po::value<std::int64_t>(),
                "as of the snapshot of this step, from those up to it; default: the newest");
  options.add()("out", po::value<std::string>(), "the file to write");
  options.add()("force", "replace FILE if it exists");
  options.add()("json", "print one JSON document");
  options.positional("run");
  po::variables_map values;
  if (!options.parse(session, arguments, values)) return ExitCode::done;
  const std::string run = options.required(values, "run", "a run directory is missing");
  if (values.count("sigma-rel") == 0) throw UsageError("ema: --sigma-rel is missing, such as 0.12");
  if (values.count("out") == 0) throw UsageError("ema: --out FILE.h5 is missing");
  std::optional<std::int64_t> step;
  if (values.count("step")) step = values["step"].as<std::int64_t>();

  const std::string out = values["out"].as<std::string>();
  on_rank_0(session, [&] {
    if (checkpoint::is_for_python(out))
      throw UsageError("ema: {}: write a .h5; lockstep convert makes such a file of it", out);
    checkpoint::check_writable(out, values.count("force") != 0,
                               Arguments{run + "/ema", run + "/checkpoints"});
  });
  const checkpoint::EmaReconstructionReport made =
      checkpoint::reconstruct_ema(run, values["sigma-rel"].as<double>(), step, out, session.world());
  if (session.world().rank() != 0) return ExitCode::done;
  if (values.count("json")) {
    const nlohmann::json report = {{"file", out},
                                   {"weights", made.group},
                                   {"step", made.step},
                                   {"profile_error", made.error},
                                   {"sources", made.sources},
                                   {"snapshots", made.snapshots},
                                   {"first_step", made.first_step}};
    print_json(report);
  } else {
    fmt::print("{}: {} of step {}, from {} in {} (steps {} to {}); profile error {:.2g} %\n", out, made.group,
               made.step, fmt::join(made.sources, ", "), pluralized(made.snapshots, "snapshot"),
               made.first_step, made.step, 100 * made.error);
  }
  return ExitCode::done;
}

}  // namespace lockstep::cli
