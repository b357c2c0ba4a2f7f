// lockstep bench: chooses the benchmark. Each one has its own file.
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
    Verb{"allreduce", "sums over all ranks, compared with MPI_Allreduce", bench_allreduce},
    Verb{"checkpoint", "saves, compared with plain writes and during training", bench_checkpoint},
    Verb{"data", "reading and decoding a run's data, and what its steps take", bench_data},
    Verb{"overlap", "how much communication the backward pass hides", bench_overlap},
    Verb{"step", "training steps of a standard workload or a run", bench_step}};

}  // namespace

void add_workload(OptionSet& options) {
  options.add()("workload", po::value<std::string>()->default_value("gpt-cpu"), "the standard workload");
  options.add()("steps", po::value<std::int64_t>()->default_value(20), "number of steps to measure");
}

std::string workload_names() {
  std::vector<std::string> names;
  for (const train::StandardWorkload& workload : train::standard_workloads()) names.push_back(workload.name);
  constexpr std::size_t columns = 66;  // after "Workloads: ", on a line of 80
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
  std::string text = "Measures on one process, or on all ranks under mpirun or srun:\n";
  for (const Verb& subject : subjects) {
    if (!arguments.empty() && arguments.front() == subject.name)
      return subject.run(program, session, Arguments(arguments.begin() + 1, arguments.end()));
    names.push_back(subject.name);
    text += fmt::format("  {:<11} {}\n", subject.name, subject.summary);
  }
  OptionSet options(program, fmt::format("bench {} [OPTIONS]", fmt::join(names, "|")),
                    text + program.name + " bench NAME --help describes a benchmark.");
  options.positional("what");
  po::variables_map values;
  if (!options.parse(session, arguments, values)) return ExitCode::done;
  throw UsageError("bench: unknown benchmark '{}'; use one of {}",
                   options.required(values, "what", "the name of a benchmark is missing"),
                   fmt::join(names, ", "));
}

}  // namespace lockstep::cli
