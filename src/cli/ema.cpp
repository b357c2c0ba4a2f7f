// lockstep ema: computes EMA weights of any width after training, from the profile snapshots of a run.
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
                    "Computes power-function EMA weights of relative width S, which the run did not\n"
                    "track, after training: the closest mixture of the EMA weights in RUN/ema. A run\n"
                    "keeps these if ema.sigma_rel is set. FILE holds the group ema/sigma_rel=S\n"
                    "and the configuration of the run: eval, generate, inspect, diff, verify and\n"
                    "train --resume read it. The printed profile error is the relative difference\n"
                    "between the mixture and the exact EMA in the factors of past steps; the weights\n"
                    "differ by less.");
  options.add()("sigma-rel", po::value<double>(), "width relative to the length of training, such as 0.12");
  options.add()("step", po::value<std::int64_t>(),
                "compute the EMA at the snapshot of this step; default: the newest");
  options.add()("out", po::value<std::string>(), "file to write");
  options.add()("force", "replace FILE if it exists");
  options.add()("json", "print one JSON document");
  options.positional("run");
  po::variables_map values;
  if (!options.parse(session, arguments, values)) return ExitCode::done;
  const std::string run = options.required(values, "run", "the run directory is missing");
  if (values.count("sigma-rel") == 0)
    throw UsageError("ema: --sigma-rel is missing; give a width such as 0.12");
  if (values.count("out") == 0) throw UsageError("ema: --out FILE.h5 is missing");
  std::optional<std::int64_t> step;
  if (values.count("step")) step = values["step"].as<std::int64_t>();

  const std::string out = values["out"].as<std::string>();
  on_rank_0(session, [&] {
    if (checkpoint::is_for_python(out))
      throw UsageError("ema: {}: must be a .h5 file; lockstep convert turns it into other formats", out);
    checkpoint::check_writable(out, values.count("force") != 0,
                               Arguments{run + "/ema", run + "/checkpoints"});
  });
  const checkpoint::EmaReconstructionReport reconstruction =
      checkpoint::reconstruct_ema(run, values["sigma-rel"].as<double>(), step, out, session.world());
  if (session.world().rank() != 0) return ExitCode::done;
  if (values.count("json")) {
    const nlohmann::json report = {{"file", out},
                                   {"weights", reconstruction.group},
                                   {"step", reconstruction.step},
                                   {"profile_error", reconstruction.error},
                                   {"sources", reconstruction.sources},
                                   {"snapshots", reconstruction.snapshots},
                                   {"first_step", reconstruction.first_step}};
    print_json(report);
  } else {
    print_line(fmt::format("{}: {} of step {}, from {} in {} (steps {} to {}); profile error {:.2g} %", out,
                           reconstruction.group, reconstruction.step, fmt::join(reconstruction.sources, ", "),
                           pluralized(reconstruction.snapshots, "snapshot"), reconstruction.first_step,
                           reconstruction.step, 100 * reconstruction.error));
  }
  return ExitCode::done;
}

}  // namespace lockstep::cli
