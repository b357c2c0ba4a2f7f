// lockstep diff: compares the tensors of two checkpoints.
#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <optional>

#include "cli/saved_model.h"
#include "cli/verb.h"
#include "lockstep/checkpoint/inspect.h"

namespace lockstep::cli {
namespace {

constexpr ExitCode different = static_cast<ExitCode>(1), error_code = ExitCode::usage;  // like diff(1)

}  // namespace

ExitCode diff(const Program& program, Session& session, const Arguments& arguments) {
  OptionSet options(program, "diff A.h5 B.h5 [--tolerance T] [--json]",
                    "Compares two checkpoints tensor by tensor, and shows how much tensors differ.\n"
                    "Exit code: 0 equal, 1 different, 2 error.");
  options.add()("tolerance", po::value<double>()->default_value(0),
                "largest |a - b| that counts as equal; 0: compare bits");
  options.add()("json", "print one JSON document");
  options.positional("file", 2);
  po::variables_map values;
  if (!options.parse(session, arguments, values)) return ExitCode::done;
  if (values.count("file") == 0 || values["file"].as<Arguments>().size() != 2) {
    throw options.error("two checkpoint files are needed");
  }
  const Arguments files = values["file"].as<Arguments>();
  ExitCode verdict = ExitCode::done;
  on_rank_0(session, [&] {
    try {
      for (const std::string& file : files) refuse_foreign(file);
      const checkpoint::DiffReport report =
          checkpoint::diff(files[0], files[1], values["tolerance"].as<double>());
      values.count("json") ? print_json(to_json(report)) : print(to_text(report));
      verdict = report.same() ? ExitCode::done : different;
    } catch (const Error& error) {
      throw Error(error_code, error.what());
    }
  });
  session.world().broadcast(&verdict, sizeof verdict, 0);
  return verdict;
}

}  // namespace lockstep::cli
