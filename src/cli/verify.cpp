// lockstep verify: is a checkpoint whole, and does every byte fit its digest?
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "cli/verb.h"
#include "lockstep/checkpoint/report.h"
#include "lockstep/checkpoint/verify.h"

namespace lockstep::cli {

ExitCode verify(Session& session, const Arguments& arguments) {
  OptionSet options(
      "verify FILE.h5 [--json]",
      "Reads a checkpoint and compares every byte with its digests. Exit code: 0 whole, 3 not.");
  options.add()("json", "print one JSON document");
  options.positional("file");
  po::variables_map values;
  if (!options.parse(session, arguments, values)) return ExitCode::done;
  const checkpoint::VerifyReport report = checkpoint::verify(
      required(values, "file", "verify: a checkpoint is missing; see lockstep verify --help"),
      session.world());
  if (session.world().rank() == 0) {
    print(values.count("json") ? to_json(report).dump(2) + "\n" : to_text(report));
  }
  return report.whole() ? ExitCode::done : ExitCode::data;
}

}  // namespace lockstep::cli
