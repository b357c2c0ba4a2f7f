// lockstep ema: an average of any width, made after training from the profile snapshots of a run.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <nlohmann/json.hpp>
#include <optional>

#include "base/text.h"
#include "cli/verb.h"
#include "lockstep/checkpoint/convert.h"
#include "lockstep/comm/agreement.h"

namespace lockstep::cli {

ExitCode ema(Session& session, const Arguments& arguments) {
  OptionSet options("ema RUN --sigma-rel S [--step N] --out FILE.h5 [OPTIONS]",
                    "Writes what a power-function average (EMA) of relative width S would hold,\n"
                    "though the run did not track it: the closest mixture of the averages in RUN/ema,\n"
                    "which a run keeps when ema.sigma_rel is set. FILE has one group,\n"
                    "ema/sigma_rel=S, and the run's configuration: eval, generate, inspect, diff,\n"
                    "verify and --resume take it. The profile error that is printed says how far the\n"
                    "mixture is from that average in how it weights past steps; the weights of the\n"
                    "model come closer than that.");
  options.add()("sigma-rel", po::value<double>(), "width as a part of the training so far, such as 0.12");
  options.add()("step", po::value<std::int64_t>(),
                "as of the snapshot of this step, from those up to it; default: the newest");
  options.add()("out", po::value<std::string>(), "the file to write");
  options.add()("force", "replace FILE if it is there already");
  options.add()("json", "print one JSON document");
  options.positional("run");
  po::variables_map values;
  if (!options.parse(session, arguments, values)) return ExitCode::done;
  const std::string run = required(values, "run", "ema: a run directory is missing; see lockstep ema --help");
  if (values.count("sigma-rel") == 0) throw UsageError("ema: --sigma-rel is missing, such as 0.12");
  if (values.count("out") == 0) throw UsageError("ema: --out FILE.h5 is missing");
  std::optional<std::int64_t> step;
  if (values.count("step")) step = values["step"].as<std::int64_t>();

  const std::string out = values["out"].as<std::string>();
  comm::run_on_all(session.world(), [&] {
    if (session.world().rank() != 0) return;
    if (out.ends_with(".safetensors"))
      throw UsageError("ema: {}: write a .h5; lockstep convert makes a .safetensors file of it", out);
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
    fmt::print("{}\n", json_text(report));
  } else {
    fmt::print("{}: {} of step {}, from {} in {} (steps {} to {}); profile error {:.2g} %\n", out, made.group,
               made.step, fmt::join(made.sources, ", "), pluralized(made.snapshots, "snapshot"),
               made.first_step, made.step, 100 * made.error);
  }
  return ExitCode::done;
}

}  // namespace lockstep::cli
