// lockstep report: what runs have logged, or benches measured, as one HTML file.
#include <fmt/format.h>

#include "cli/verb.h"
#include "report/page.h"

namespace lockstep::cli {

ExitCode report(const Program& program, Session& session, const Arguments& arguments) {
  OptionSet options(program, "report RUN...|FILE.json... [--out FILE.html]",
                    "Writes what runs have logged as one HTML file, which needs no network: curves,\n"
                    "events, samples, configuration, provenance. Several runs share the charts and a\n"
                    "table that sorts by any metric. Runs may be live. Reads files alone. An older\n"
                    "report of that name is replaced, another file is not. FILE.json is what lockstep\n"
                    "bench --json has printed; several are compared, as curves over ranks or sizes.");
  options.add()("out", po::value<std::string>(),
                "file to write; default: RUN/report.html, or report.html for several runs and for results");
  options.positional("run", -1);
  po::variables_map values;
  if (!options.parse(session, arguments, values)) return ExitCode::done;
  if (values.count("run") == 0) throw options.error("a run directory is missing");
  const Arguments runs = values["run"].as<Arguments>();
  const bool in_run = runs.size() == 1 && !report::is_result(runs[0]);
  const std::string out = given(values, "out").value_or(in_run ? runs[0] + "/report.html" : "report.html");
  on_rank_0(session, [&] {
    if (values.count("out") == 0 && in_run) report::read_run(runs[0]);  // what is no run is said first
    report::write_report(runs, out);
    print(out + "\n");
  });
  return ExitCode::done;
}

}  // namespace lockstep::cli
