#include "cli/doctor/node.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <exception>
#include <nlohmann/json.hpp>

#include "base/streams.h"
#include "base/text.h"
#include "cli/doctor/finding.h"
#include "lockstep/base/error.h"

namespace lockstep::cli::checkup {
namespace {

/// What takes long (Slurm's answers) or needs other machines is left to the whole doctor. All nodes of a job
/// look at once: a little data of each tells a disk that crawls.
Findings look(const std::string& run) {
  Scene scene;
  scene.run = run;
  scene.place = place_of(run);
  scene.speed_mib = 8;
  return {guarded("gpu", [&] { return gpus(scene); }),
          guarded("shared memory", [&] { return shared_memory(scene); }),
          guarded("run directory", [&] { return free_space(scene); }),
          guarded("disk speed", [&] { return disk_speed(scene); }),
          guarded("temporary files", [&] { return temporary_files(scene); }),
          guarded("limits", [&] { return limits(scene); })};
}

void print_lines(const std::string& host, const Findings& findings) {
  std::string healthy;
  for (const Finding& finding : findings) {
    if (finding.verdict == Verdict::ok) {
      healthy += fmt::format("{}{}: {}", healthy.empty() ? "" : "; ", finding.subject, finding.text);
    } else {
      print(fmt::format("{:<8} {}: {}: {}; {}\n", word(finding.verdict), host, finding.subject, finding.text,
                        finding.remedy));
    }
  }
  if (!healthy.empty()) print(fmt::format("{:<8} {}: {}\n", word(Verdict::ok), host, healthy));
}

void print_json(const std::string& host, const Findings& findings, bool problem) {
  nlohmann::json document = {{"ok", !problem}, {"host", host}, {"findings", nlohmann::json::array()}};
  for (const Finding& finding : findings) {
    document["findings"].push_back({{"subject", finding.subject},
                                    {"verdict", word(finding.verdict)},
                                    {"text", finding.text},
                                    {"remedy", finding.remedy}});
  }
  print(document.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n");
}

ExitCode check(const Arguments& arguments) {
  po::variables_map values;
  if (!options().parse(true, arguments, values)) return ExitCode::done;
  if (values.count("config")) throw UsageError("doctor: --node reads no configuration; leave --config out");
  const std::string host = comm::make_self_communicator()->topology().host_names[0];
  const Findings findings = look(values["run"].as<std::string>());
  const bool problem =
      std::ranges::any_of(findings, [](const Finding& one) { return one.verdict == Verdict::problem; });
  if (values.count("json")) {
    print_json(host, findings, problem);
  } else {
    print_lines(host, findings);
  }
  flush_output();
  return problem ? static_cast<ExitCode>(1) : ExitCode::done;
}

}  // namespace

bool asks_for_node(const Arguments& words) {
  return !words.empty() && words[0] == "doctor" && std::ranges::find(words, "--node") != words.end();
}

int check_node(const Arguments& arguments) {
  try {
    return static_cast<int>(check(arguments));
  } catch (const Error& error) {
    write_standard_error(fmt::format("lockstep: {}\n", on_one_line(error.what())), 2);
    return static_cast<int>(error.code());
  } catch (const std::exception& error) {
    write_standard_error(fmt::format("lockstep: {}\n", on_one_line(error.what())), 2);
    return static_cast<int>(ExitCode::failure);
  }
}

}  // namespace lockstep::cli::checkup
