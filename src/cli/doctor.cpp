// lockstep doctor: checks this node, MPI, HDF5 and the disk, and reports problems with remedies.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <exception>
#include <functional>
#include <iterator>
#include <nlohmann/json.hpp>

#include "cli/doctor/checks.h"
#include "cli/verb.h"
#include "lockstep/comm/agreement.h"

namespace lockstep::cli {
namespace {

using checks::Context;
using checks::Result;
using checks::Results;
using checks::Verdict;

enum class Where { every_rank, every_node, rank_0 };

/// A check of one process.
struct Check {
  const char* subject;
  Result (*run)(const Context&);
  Where where = Where::every_node;
  bool quick = false;   ///< also part of --node
  bool of_run = false;  ///< only with --config
};

constexpr Check node_checks[] = {
    {"processor", checks::processor},
    {"mpi", checks::mpi, Where::every_rank},
    {"hdf5", checks::hdf5, Where::every_rank},
    {"onednn", checks::onednn, Where::every_rank},
    {"gpu", checks::gpu, Where::every_node, true},
    {"nccl", checks::nccl},
    {"shared memory", checks::shared_memory, Where::every_node, true},
    {"limits", checks::limits, Where::every_node, true},
    {"temporary files", checks::temporary_files, Where::every_node, true},
    {"run directory", checks::run_directory, Where::every_node, true},
    {"disk speed", checks::disk_speed, Where::every_node, true},
    {"data storage", checks::data_storage, Where::every_node, false, true},
    {"file calls", checks::file_calls},
    {"precision", checks::precision},
    {"slurm", checks::slurm, Where::rank_0},
    {"job settings", checks::site_files, Where::rank_0},
};

/// A check of all ranks.
struct CommonCheck {
  const char* subject;
  Results (*run)(const Context&);
};
constexpr CommonCheck common_checks[] = {{"ranks alike", checks::ranks_alike},
                                         {"binding", checks::binding},
                                         {"threads", checks::threads},
                                         {"shared directory", checks::shared_directory},
                                         {"clocks", checks::clocks}};

std::string_view word(Verdict verdict) {
  return verdict == Verdict::ok ? "ok" : verdict == Verdict::note ? "note" : "problem";
}

/// The results of the node checks for which selects(check) is true.
Results run_checks(const Context& context, const std::function<bool(const Check&)>& selects) {
  Results results;
  for (const Check& check : node_checks) {
    if (!selects(check) || (check.of_run && !context.config)) continue;
    try {
      results.push_back(check.run(context));
    } catch (const std::exception& error) {
      results.push_back(checks::problem(fmt::format("the check failed: {}", error.what()), "check by hand"));
    }
    results.back().subject = check.subject;
  }
  return results;
}

/// One result of several ranks, which may differ in its text only.
struct MergedResult {
  Result result;           ///< of the first of the ranks
  std::vector<int> ranks;  ///< empty: the result is of the whole run
};

void merge(std::vector<MergedResult>& all, const Result& result, int rank) {
  const auto same_subject = [&](const MergedResult& other) { return other.result.subject == result.subject; };
  const auto alike = [&](const MergedResult& other) {
    return same_subject(other) && other.result.verdict == result.verdict &&
           other.result.remedy == result.remedy;
  };
  if (const auto found = std::ranges::find_if(all, alike); found != all.end()) {
    found->ranks.push_back(rank);
    return;
  }
  const auto last = std::find_if(all.rbegin(), all.rend(), same_subject);
  all.insert(last == all.rend() ? all.end() : last.base(), {result, {rank}});
}

/// The results of all ranks. Collective.
std::vector<MergedResult> gather_results(comm::HostGroup& world, const Results& mine) {
  nlohmann::json own = nlohmann::json::array();
  for (const Result& result : mine)
    own.push_back({static_cast<int>(result.verdict), result.text, result.remedy, result.subject});
  std::vector<MergedResult> all;
  int rank = 0;
  for (const nlohmann::json& of_rank : comm::all_gather_json(world, own)) {
    for (const nlohmann::json& value : of_rank)
      merge(all, {static_cast<Verdict>(value[0].get<int>()), value[1], value[2], value[3]}, rank);
    ++rank;
  }
  return all;
}

/// "on h1, h2: ", or nothing if all nodes have the result.
std::string where(const MergedResult& merged, const comm::Topology& topology) {
  std::vector<std::string> hosts;
  for (const int rank : merged.ranks) {
    const int node = topology.node_of_rank[static_cast<std::size_t>(rank)];
    const std::string& host = topology.host_names[static_cast<std::size_t>(node)];
    if (std::ranges::find(hosts, host) == hosts.end()) hosts.push_back(host);
  }
  if (hosts.empty() || static_cast<int>(hosts.size()) == topology.nodes()) return "";
  constexpr std::size_t max_named = 4;
  const std::size_t more = hosts.size() > max_named ? hosts.size() - max_named : 0;
  hosts.resize(hosts.size() - more);
  return fmt::format("on {}{}: ", fmt::join(hosts, ", "), more ? fmt::format(" and {} more", more) : "");
}

std::string as_lines(const std::vector<MergedResult>& all, const comm::Topology& topology) {
  std::string text;
  for (const MergedResult& merged : all) {
    const Result& result = merged.result;
    const bool on_rank_0 = merged.ranks.empty() || merged.ranks.front() == 0;
    if (result.verdict == Verdict::ok && !on_rank_0) continue;  // like rank 0's
    text +=
        fmt::format("{:<8} {:<17} {}{}{}{}\n", word(result.verdict), result.subject, where(merged, topology),
                    result.text, result.remedy.empty() ? "" : "; ", result.remedy);
  }
  return text;
}

/// One line for each note and problem, and one for all that is ok. Each names the host, because job scripts
/// join the lines of several nodes.
std::string as_lines_of_node(const std::vector<MergedResult>& all, const std::string& host) {
  std::string text, healthy;
  for (const auto& [result, ranks] : all) {
    if (result.verdict == Verdict::ok) {
      healthy += fmt::format("{}{}: {}", healthy.empty() ? "" : "; ", result.subject, result.text);
    } else {
      text += fmt::format("{:<8} {}: {}: {}; {}\n", word(result.verdict), host, result.subject, result.text,
                          result.remedy);
    }
  }
  if (!healthy.empty()) text += fmt::format("{:<8} {}: {}\n", word(Verdict::ok), host, healthy);
  return text;
}

nlohmann::json as_json(const std::vector<MergedResult>& all, bool with_ranks) {
  nlohmann::json findings = nlohmann::json::array();
  for (const auto& [result, ranks] : all) {
    findings.push_back({{"subject", result.subject},
                        {"verdict", word(result.verdict)},
                        {"text", result.text},
                        {"remedy", result.remedy}});
    if (with_ranks) findings.back()["ranks"] = ranks;
  }
  return findings;
}

}  // namespace

ExitCode doctor(const Program& program, Session& session, const Arguments& arguments) {
  OptionSet options(program, "doctor [--run DIR] [--config RUN.ini] [--node] [--json]",
                    "Checks this node, MPI, HDF5 and the disk, and prints a remedy for each problem.\n"
                    "Start it under mpirun or srun, like the run itself, to check and compare all\n"
                    "nodes. Exit code: 1 if it finds a problem.");
  options.add()("run", po::value<std::string>()->default_value("."), "run directory to check");
  options.add()("config", po::value<std::string>(),
                "also check what this run needs, and that all nodes have the same configuration and data");
  options.add()("node", "check this node only, in about a second and without MPI: for job scripts");
  options.add()("json", "print one JSON document");
  po::variables_map values;
  if (!options.parse(session, arguments, values)) return ExitCode::done;

  comm::HostGroup& world = session.world();
  const comm::Topology& topology = world.topology();
  const std::string run = values["run"].as<std::string>();
  Context context{.world = world, .run = run, .existing = checks::existing_directory(run)};
  const bool node_only = values.count("node") > 0;
  std::vector<MergedResult> all;
  if (node_only) {
    if (values.count("config"))
      throw UsageError("doctor: --node does not read a configuration; omit --config");
    context.speed_mib = 8;  // all nodes of a job write at once
    all = gather_results(world, run_checks(context, [](const Check& check) { return check.quick; }));
  } else {
    context.cores = train::cores_of_ranks(world);
    std::optional<train::Config> config;
    comm::run_on_all(world, [&] {
      if (!values.count("config")) return;
      context.config =
          &config.emplace(train::read_config(values["config"].as<std::string>(), {}, program.registries));
      context.needed = checks::requirements(context);
    });
    context.needed.bind =
        train::binding_wanted(world, config ? config->train.bind : train::TrainConfig{}.bind);
    // These come first: they find ranks with different programs, whose later collectives may not match.
    std::vector<MergedResult> common;
    for (const CommonCheck& check : common_checks) {
      for (Result& result : check.run(context)) {
        result.subject = check.subject;
        common.push_back({std::move(result), {}});
      }
    }
    const bool first_of_node = topology.local_rank_of_rank[static_cast<std::size_t>(world.rank())] == 0;
    all = gather_results(world, run_checks(context, [&](const Check& check) {
                           return check.where == Where::every_rank ||
                                  (check.where == Where::every_node && first_of_node) || world.rank() == 0;
                         }));
    std::ranges::move(common, std::back_inserter(all));
    const bool are_alike = std::ranges::none_of(all, [](const MergedResult& one) {
      return one.result.subject == "ranks alike" && one.result.verdict == Verdict::problem;
    });
    if (config && are_alike) {
      all.push_back({checks::configuration(context, session), {}});
      all.back().result.subject = "configuration";
    }
  }
  const bool problem = std::ranges::any_of(
      all, [](const MergedResult& one) { return one.result.verdict == Verdict::problem; });
  if (world.rank() == 0) {
    const std::string& host = topology.host_names[0];
    if (values.count("json")) {
      nlohmann::json document = {{"ok", !problem}, {"findings", as_json(all, !node_only)}};
      if (node_only) {
        document["host"] = host;
      } else {
        document["ranks"] = world.size();
        document["hosts"] = topology.host_names;
      }
      print_json(document);
    } else {
      print(node_only ? as_lines_of_node(all, host) : as_lines(all, topology));
    }
  }
  return problem ? static_cast<ExitCode>(1) : ExitCode::done;
}

}  // namespace lockstep::cli
