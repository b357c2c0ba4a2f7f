// lockstep doctor: what this machine, MPI and HDF5 can do, and what is wrong.
#include <fmt/format.h>
#include <mpi.h>

#include "cli/doctor/finding.h"
#include "cli/doctor/needs.h"
#include "cli/doctor/node.h"
#include "cli/verb.h"
#include "lockstep/comm/agreement.h"
#include "train/binding.h"
#include "train/surroundings.h"

namespace lockstep::cli {
namespace checkup {
namespace {

Scene scene_of(const comm::HostGroup& world, const std::string& run) {
  Scene scene;
  scene.run = run;
  scene.place = place_of(run);
  const comm::Topology& topology = world.topology();
  scene.ranks_here = topology.ranks_on_node(topology.node_of_rank[static_cast<std::size_t>(world.rank())]);
  int started = 0;
  MPI_Initialized(&started);
  scene.launched = started != 0;
  return scene;
}

/// What a rank has to itself; the first of a machine looks at the machine, too, and rank 0 asks Slurm.
Findings look(const comm::HostGroup& world, const Scene& scene, const train::Config* config) {
  const auto rank = static_cast<std::size_t>(world.rank());
  const bool first_here = world.topology().local_rank_of_rank[rank] == 0;
  Findings findings;
  const auto add = [&](const char* subject, Finding (*probe)(const Scene&)) {
    findings.push_back(guarded(subject, [&] { return probe(scene); }));
  };
  if (first_here) add("processor", processor);
  findings.push_back(guarded("mpi", [&] { return mpi(world); }));
  add("hdf5", hdf5);
  add("onednn", onednn);
  if (!first_here) return findings;
  add("gpu", gpus);
  add("nccl", nccl);
  add("shared memory", shared_memory);
  add("limits", limits);
  add("temporary files", temporary_files);
  add("run directory", free_space);
  add("disk speed", disk_speed);
  add("file calls", file_calls);
  findings.push_back(guarded("precision", [&] { return precision(config); }));
  if (config) {
    findings.push_back(guarded("data", [&] { return data(*config); }));
    findings.push_back(guarded("device", [&] { return device(*config); }));
  }
  if (rank == 0) add("slurm", slurm);
  return findings;
}

/// Programs, libraries, instruction sets, and if a configuration was given, it and the data.
Findings alike(comm::HostGroup& world, const train::Config* config) {
  if (world.size() == 1) return {};
  const char* const subject = "ranks alike";
  train::Facts facts = train::program_facts();
  if (config) {
    for (train::Fact& fact : train::configuration_facts(*config)) facts.push_back(std::move(fact));
  }
  const train::Fact instructions = train::instruction_set_fact();
  facts.push_back(instructions);
  Findings findings;
  for (const train::Difference& difference : train::differences(world, facts)) {
    const bool bits_only = difference.name == instructions.name;
    findings.push_back({subject, bits_only ? Verdict::note : Verdict::problem,
                        difference.describe(world.topology()),
                        bits_only ? "use like machines: the same bits come only from the same ranks on the "
                                    "same machines"
                                  : "give every machine the same: lockstep train refuses to start"});
  }
  if (findings.empty()) {
    findings.push_back(
        {subject, Verdict::ok,
         config ? "program, libraries, configuration, data and instruction set"
                : "program, libraries and instruction set (--config: configuration and data, too)",
         ""});
  }
  return findings;
}

}  // namespace

OptionSet options() {
  OptionSet options("doctor [--run DIR] [--config RUN.ini] [--node] [--json]",
                    "Says what this machine, MPI, HDF5 and the disk can do, and what is wrong. Run\n"
                    "it under mpirun or srun, as the run will be, to compare all machines.\n"
                    "Exit code: 1 on a problem.");
  options.add()("run", po::value<std::string>()->default_value("."), "where the run will be kept");
  options.add()("config", po::value<std::string>(),
                "also what this run needs, and whether machines have the same configuration and data");
  options.add()("node", "this machine only, in a second or so and without MPI: for job scripts");
  options.add()("json", "print one JSON document");
  return options;
}

}  // namespace checkup

ExitCode doctor(Session& session, const Arguments& arguments) {
  po::variables_map values;
  if (!checkup::options().parse(session, arguments, values)) return ExitCode::done;

  comm::HostGroup& world = session.world();
  checkup::Scene scene = checkup::scene_of(world, values["run"].as<std::string>());
  const std::vector<train::RankCores> cores = train::cores_of_ranks(world);
  std::optional<train::Config> config;
  comm::run_on_all(world, [&] {
    if (!values.count("config")) return;
    config = train::read_config(values["config"].as<std::string>(), {});
    scene.needs = checkup::needs_of(*config, world);
    if (config->train.threads == 0)
      scene.needs.threads = train::choose_threads(cores, world.topology()).threads;
  });
  scene.needs.bind = train::binding_wanted(world, config ? config->train.bind : train::TrainConfig{}.bind);

  checkup::Findings common;
  const auto add = [&](const checkup::Findings& findings) {
    common.insert(common.end(), findings.begin(), findings.end());
  };
  add(checkup::alike(world, config ? &*config : nullptr));  // first: others' programs may ask otherwise
  const checkup::Findings mine = checkup::look(world, scene, config ? &*config : nullptr);
  if (config) add({checkup::shards(*config, world)});
  add(checkup::binding(world, cores, scene.needs));
  add(checkup::shared_directory(world, scene));
  add(checkup::clocks(world));
  const bool problem = checkup::report(world, mine, common, values.count("json") > 0);
  return problem ? static_cast<ExitCode>(1) : ExitCode::done;
}

}  // namespace lockstep::cli
