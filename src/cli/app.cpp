// The command line of an App: dispatches to a verb, without MPI where a verb needs none.
#include "lockstep/cli/app.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <exception>
#include <memory>
#include <string_view>

#include "base/progress.h"
#include "base/streams.h"
#include "base/text.h"
#include "cli/verb.h"
#include "lockstep/base/random.h"
#include "lockstep/comm/agreement.h"
#include "train/watch/processes.h"
#include "train/watch/watchdog.h"

namespace lockstep::cli {

// Each is defined in the file of its verb.
VerbFunction train, sweep, status, eval, predict, sample, generate, prepare, inspect, diff, report, verify,
    convert, ema, bench, doctor;
/// The time limit for MPI to start: fault.hang_timeout_s of the configuration in `words`, else the default.
/// Defined in train.cpp.
double start_timeout_s(const Program& program, const Arguments& words);

namespace {

/// In the order of lockstep --help.
constexpr std::array verbs{
    Verb{"train", "train a model, or resume a run", train},
    Verb{"sweep", "train under many settings, several runs at once", sweep},
    Verb{"status", "show what runs are doing, from their files alone", status},
    Verb{"eval", "evaluate a checkpoint", eval},
    Verb{"predict", "write a model's output for every sample", predict},
    Verb{"sample", "generate pictures or data with a diffusion model", sample},
    Verb{"generate", "continue a text with a language model", generate},
    Verb{"prepare", "convert csv, idx, cifar, text or pictures to a data file", prepare},
    Verb{"report", "write runs or benchmark results as one HTML page", report},
    Verb{"inspect", "show the contents of a checkpoint", inspect},
    Verb{"diff", "compare two checkpoints", diff},
    Verb{"verify", "verify the digests of a checkpoint", verify},
    Verb{"convert", "convert weights from and to .safetensors and .pt", convert},
    Verb{"ema", "compute EMA weights of another width after training", ema},
    Verb{"bench", "measure steps, all-reduce, overlap and checkpoints", bench},
    Verb{"doctor", "check this node, MPI, HDF5 and the disk", doctor},
};

std::string help(const Program& program) {
  std::string text = fmt::format(
      "Lockstep " LOCKSTEP_VERSION
      ": data-parallel training of neural networks.\n\nUsage: [mpirun -n RANKS] {} VERB [ARGUMENTS]\n\n",
      program.name);
  for (const Verb& verb : verbs) text += fmt::format("  {:<10} {}\n", verb.name, verb.summary);
  return text + "\n" + program.name +
         " VERB --help describes a verb. Exit codes: 0 success,\n"
         "2 usage or configuration error, 3 invalid data, 4 loss not finite or replicas\n"
         "differ, 5 a rank failed; with a checkpoint 75 preempted, 76 stopped by the user.\n";
}

std::string version(const Program& program) {
  return program.name == "lockstep" ? "lockstep " LOCKSTEP_VERSION "\n"
                                    : program.name + " (Lockstep " LOCKSTEP_VERSION ")\n";
}

/// UsageError on every rank if ranks registered different models, tasks, optimizers, data sets or tokenizers.
/// Collective.
void check_same_everywhere(const Registries& registries, comm::HostGroup& world) {
  if (const auto differing = comm::first_difference(
          world, "models:\n" + registries.models.text() + "tasks:\n" + registries.tasks.text() +
                     "optimizers:\n" + registries.optimizers.text() + "data sets:\n" +
                     registries.data.text() + "tokenizers:\n" + registries.tokenizers.text()))
    throw UsageError(
        "ranks have different models, tasks, optimizers, data sets or tokenizers: {}; start the same program "
        "on every rank",
        differing->text());
}

ExitCode dispatch(const Program& program, Session& session, const Arguments& words) {
  const bool prints = session.world().rank() == 0;
  if (words.empty() || words[0] == "--help" || words[0] == "-h" || words[0] == "help") {
    if (prints) words.empty() ? static_cast<void>(write_standard_error(help(program))) : print(help(program));
    return words.empty() ? ExitCode::usage : ExitCode::done;
  }
  if (words[0] == "--version") {
    if (prints) print(version(program));
    return ExitCode::done;
  }
  for (const Verb& verb : verbs) {
    if (verb.name == words[0]) return verb.run(program, session, Arguments(words.begin() + 1, words.end()));
  }
  std::vector<std::string> names;
  for (const Verb& verb : verbs) names.emplace_back(verb.name);
  const std::string nearest = nearest_name(words[0], names);
  throw UsageError("unknown verb {}; {}", quote(words[0]),
                   nearest.empty() ? "see " + program.name + " --help" : "did you mean " + nearest + "?");
}

/// Runs the verb and flushes its output, so that a full disk is an error.
ExitCode run_verb(const Program& program, Session& session, const Arguments& words) {
  const ExitCode code = dispatch(program, session, words);
  on_rank_0(session, flush_output);
  return code;
}

/// status: MPI may not start on a login node. sweep: the processes that it starts are ranks. doctor --node:
/// each process checks its node without MPI, even if a launcher started several.
bool runs_without_mpi(const Arguments& words) {
  if (words.empty()) return false;
  return words[0] == "status" || words[0] == "sweep" ||
         (words[0] == "doctor" && std::ranges::find(words, "--node") != words.end());
}

int run_without_mpi(const Program& program, const Arguments& words) {
  ExitCode code = ExitCode::failure;
  try {
    const std::unique_ptr<comm::CpuCommunicator> self = comm::make_self_communicator();
    std::unique_ptr<train::Watchdog> no_watchdog;
    Session session(*self, no_watchdog);
    return static_cast<int>(run_verb(program, session, words));
  } catch (const Error& error) {
    write_standard_error(fmt::format("lockstep: {}\n", on_one_line(error.what())), 2);
    code = error.code();
  } catch (const std::exception& error) {
    write_standard_error(fmt::format("lockstep: {}\n", on_one_line(error.what())), 2);
  }
  return static_cast<int>(code);
}

}  // namespace
}  // namespace lockstep::cli

namespace lockstep {

App::App(std::string name) : name_(std::move(name)) {
  registries_.program = name_;
  add_built_in(registries_);
}

int App::run(int argc, char** argv) {
  // Held until StopRequests takes them.
  const train::HeldSignals held(argc > 1 && argv[1] == std::string_view("train"));
  protect_standard_streams();
  const cli::Program program{.name = name_, .registries = registries_};
  const cli::Arguments words(argv + 1, argv + argc);
  if (cli::runs_without_mpi(words)) return cli::run_without_mpi(program, words);
  return lockstep::run(
      argc, argv,
      [&](Session& session) {
        progress::enter(progress::Phase::start);
        comm::run_on_all(session.world(), [&] {
          if (!registration_error_.empty()) throw UsageError("{}", registration_error_);
        });
        cli::check_same_everywhere(registries_, session.world());
        constexpr std::array<std::string_view, 3> stoppable{"train", "predict", "sample"};
        if (words.empty() || std::ranges::find(stoppable, words.front()) == stoppable.end())
          train::HeldSignals::release();
        return cli::run_verb(program, session, words);
      },
      cli::start_timeout_s(program, words));
}

}  // namespace lockstep
