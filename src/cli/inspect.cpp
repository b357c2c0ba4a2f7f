// lockstep inspect: shows names, shapes, dtypes, norms and provenance of a checkpoint.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "cli/saved_model.h"
#include "cli/verb.h"
#include "lockstep/checkpoint/inspect.h"

namespace lockstep::cli {

ExitCode inspect(const Program& program, Session& session, const Arguments& arguments) {
  OptionSet options(program, "inspect FILE.h5 [--json]",
                    "Shows what a checkpoint holds: position, names, shapes, types, norms, extremes,\n"
                    "counts of numbers that are not finite, and where it came from.");
  options.add()("json", "print one JSON document");
  options.positional("file");
  po::variables_map values;
  if (!options.parse(session, arguments, values)) return ExitCode::done;
  const std::string file = options.required(values, "file", "a checkpoint is missing");
  on_rank_0(session, [&] {
    refuse_foreign(file);
    const checkpoint::Inspection inspection = checkpoint::inspect(file);
    values.count("json") ? print_json(to_json(inspection)) : print(to_text(inspection));
  });
  return ExitCode::done;
}

}  // namespace lockstep::cli
