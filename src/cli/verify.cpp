// lockstep verify: checks that a checkpoint is complete and matches its digests.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "cli/saved_model.h"
#include "cli/verb.h"
#include "lockstep/checkpoint/inspect.h"
#include "lockstep/comm/agreement.h"

namespace lockstep::cli {

ExitCode verify(const Program& program, Session& session, const Arguments& arguments) {
  OptionSet options(program, "verify FILE.h5 [--json]",
                    "Reads all of a checkpoint and compares it with its digests.\n"
                    "Exit code: 0 complete and undamaged, 3 incomplete or damaged.");
  options.add()("json", "print one JSON document");
  options.positional("file");
  po::variables_map values;
  if (!options.parse(session, arguments, values)) return ExitCode::done;
  const std::string file = options.required(values, "file", "the checkpoint file is missing");
  checkpoint::VerifyReport report;
  report.path = file;
  try {
    comm::run_on_all(session.world(), [&] { refuse_foreign(file); });
    report = checkpoint::verify(file, session.world());
  } catch (const DataError& error) {
    report.problems.emplace_back(error.what());
  }
  if (session.world().rank() == 0) {
    values.count("json") ? print_json(to_json(report)) : print(to_text(report));
  }
  return report.whole() ? ExitCode::done : ExitCode::data;
}

}  // namespace lockstep::cli
