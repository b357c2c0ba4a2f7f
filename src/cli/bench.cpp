// lockstep bench: how long things take here. A file a subject.
#include "cli/bench.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <array>

#include "base/text.h"
#include "lockstep/checkpoint/state_dict.h"
#include "report/document.h"

namespace lockstep::cli {
namespace {

constexpr std::array subjects{
    Verb{"allreduce", "sums over all ranks and MPI_Allreduce, every result checked", bench_allreduce},
    Verb{"checkpoint", "saves compared with plain writes, and during training", bench_checkpoint},
    Verb{"overlap", "how much of a step's communication is hidden", bench_overlap},
    Verb{"step", "whole training steps of a standard workload", bench_step}};

}  // namespace

void add_workload(OptionSet& options) {
  options.add()("workload", po::value<std::string>()->default_value("gpt-cpu"), "which one");
  options.add()("steps", po::value<std::int64_t>()->default_value(20), "steps measured");
}

std::string workload_names() {
  std::vector<std::string> names;
  for (const train::StandardWorkload& workload : train::standard_workloads()) names.push_back(workload.name);
  constexpr std::size_t columns = 66;  // beside "Workloads: ", on a line of a screen
  std::string text = fmt::format("{}", fmt::join(names, ", "));
  if (text.size() > columns) text[text.rfind(' ', columns)] = '\n';
  return text;
}

std::string ranks_and_nodes(const comm::HostGroup& world) {
  return pluralized(world.size(), "rank") + " on " + pluralized(world.topology().nodes(), "node");
}

void show(const ResultOutput& output, const Session& session, const nlohmann::json& result,
          const std::function<void()>& print_text, const PageHead& head, const nlohmann::json& section) {
  output.print(result, print_text);
  output.write_page([&]() -> nlohmann::json {
    const checkpoint::Provenance environment = checkpoint::provenance_of(session.world());
    report::Pairs facts{{"ranks", ranks_and_nodes(session.world())}};
    facts.insert(facts.end(), head.facts.begin(), head.facts.end());
    return {
        {"title", head.title},
        {"lead", head.lead},
        {"facts", facts},
        {"sections",
         {report::section("Results", {{{"results", nlohmann::json::array({result})}}}), section,
          report::section("Environment", {report::key_table({environment.begin(), environment.end()})})}}};
  });
}

ExitCode bench(const Program& program, Session& session, const Arguments& arguments) {
  std::vector<std::string_view> names;
  std::string text = "Measures, alone or under mpirun or srun:\n";
  for (const Verb& subject : subjects) {
    if (!arguments.empty() && arguments.front() == subject.name)
      return subject.run(program, session, Arguments(arguments.begin() + 1, arguments.end()));
    names.push_back(subject.name);
    text += fmt::format("  {:<11} {}\n", subject.name, subject.summary);
  }
  OptionSet options(
      program, fmt::format("bench {} [OPTIONS]", fmt::join(names, "|")),
      text + program.name + " bench NAME --help tells more; with --json each prints a JSON document.");
  options.positional("what");
  po::variables_map values;
  if (!options.parse(session, arguments, values)) return ExitCode::done;
  throw UsageError("bench: cannot measure '{}'; one of {}",
                   options.required(values, "what", "say what to measure"), fmt::join(names, ", "));
}

}  // namespace lockstep::cli
