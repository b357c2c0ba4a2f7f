// lockstep report: writes the logs of runs, or results of benchmarks, as one HTML file.
#include <fmt/format.h>

#include "cli/verb.h"
#include "report/report.h"

namespace lockstep::cli {

ExitCode report(const Program& program, Session& session, const Arguments& arguments) {
  OptionSet options(program, "report RUN...|FILE.json... [--out FILE.html]",
                    "Writes the logs of runs as one HTML page, which works offline: curves, events,\n"
                    "samples, configuration and provenance. Several runs share the charts and a table\n"
                    "that sorts by any metric. A run may be live. Replaces an older page, but no\n"
                    "other file. FILE.json is output of lockstep eval --json, alone or with runs, or\n"
                    "of lockstep bench --json: several are compared over ranks or sizes.");
  options.add()("out", po::value<std::string>(),
                "file to write; default: RUN/report.html, or report.html for several runs or FILE.json");
  options.positional("run", -1);
  po::variables_map values;
  if (!options.parse(session, arguments, values)) return ExitCode::done;
  if (values.count("run") == 0) throw options.error("the run directory is missing");
  const Arguments runs = values["run"].as<Arguments>();
  const bool in_run = runs.size() == 1 && !report::is_result(runs[0]);
  const std::string out =
      option_text(values, "out").value_or(in_run ? runs[0] + "/report.html" : "report.html");
  on_rank_0(session, [&] {
    if (values.count("out") == 0 && in_run)
      report::read_run(runs[0]);  // an invalid run is reported before an invalid output
    report::write_report(runs, out);
    print_line(out);
  });
  return ExitCode::done;
}

}  // namespace lockstep::cli
