// The command line of an App: its verbs, and what goes before and after them.
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

// Each of these is in the file of its verb.
VerbFunction train, status, eval, predict, sample, generate, prepare, inspect, diff, report, verify, convert,
    ema, bench, doctor;
/// How long MPI may take to start: fault.hang_timeout_s of the configuration in `words`, if there is one. In
/// train.cpp.
double start_timeout_s(const Program& program, const Arguments& words);

namespace {

/// In the order of lockstep --help.
constexpr std::array verbs{
    Verb{"train", "train a model, or resume a run", train},
    Verb{"status", "what runs are doing, from their files alone", status},
    Verb{"eval", "evaluate a checkpoint", eval},
    Verb{"predict", "write a model's outputs for every sample", predict},
    Verb{"sample", "make pictures or data with a model of the task diffusion", sample},
    Verb{"generate", "continue a text with a language model", generate},
    Verb{"prepare", "turn csv, idx, cifar or text files into a data file", prepare},
    Verb{"report", "show runs as one HTML page", report},
    Verb{"inspect", "show what a checkpoint holds", inspect},
    Verb{"diff", "compare two checkpoints", diff},
    Verb{"verify", "check a checkpoint's digests", verify},
    Verb{"convert", "weights from and to .safetensors and .pt", convert},
    Verb{"ema", "EMA weights of another width, made after training", ema},
    Verb{"bench", "measure sums, steps and their overlap", bench},
    Verb{"doctor", "check this node, MPI, HDF5 and the disk", doctor},
};

std::string help(const Program& program) {
  std::string text = fmt::format(
      "Lockstep " LOCKSTEP_VERSION
      ": data-parallel training of neural networks.\n\nUsage: [mpirun -n RANKS] {} VERB [ARGUMENTS]\n\n",
      program.name);
  for (const Verb& verb : verbs) text += fmt::format("  {:<10} {}\n", verb.name, verb.summary);
  return text + "\n" + program.name +
         " VERB --help tells more. Exit codes: 0 done, 2 usage, 3 bad data,\n"
         "4 training wrong, 5 a rank failed, 75 preempted (checkpoint written),\n"
         "76 stopped by the user (checkpoint written).\n";
}

std::string version(const Program& program) {
  return program.name == "lockstep" ? "lockstep " LOCKSTEP_VERSION "\n"
                                    : program.name + " (Lockstep " LOCKSTEP_VERSION ")\n";
}

/// UsageError on every rank if ranks registered different things: another version of the program, say.
/// Collective.
void check_same_everywhere(const Registries& registries, comm::HostGroup& world) {
  if (const auto differing = comm::first_difference(
          world, "models:\n" + registries.models.text() + "tasks:\n" + registries.tasks.text() +
                     "optimizers:\n" + registries.optimizers.text() + "data sets:\n" +
                     registries.data.text() + "tokenizers:\n" + registries.tokenizers.text()))
    throw UsageError(
        "ranks have other models, tasks, optimizers, data sets or tokenizers: {}; start the same program on "
        "every "
        "rank",
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

/// Runs the verb and flushes its output: a full disk must not look like success.
ExitCode run_verb(const Program& program, Session& session, const Arguments& words) {
  const ExitCode code = dispatch(program, session, words);
  on_rank_0(session, flush_output);
  return code;
}

/// status: login nodes may have no MPI that starts. doctor --node: each process checks its node without MPI,
/// also if a launcher started several.
bool runs_without_mpi(const Arguments& words) {
  if (words.empty()) return false;
  return words[0] == "status" || (words[0] == "doctor" && std::ranges::find(words, "--node") != words.end());
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
  const train::HeldSignals held(argc > 1 && argv[1] == std::string_view("train"));  // to its StopRequests
  protect_standard_streams();
  const cli::Program program{.name = name_, .registries = registries_};
  const cli::Arguments words(argv + 1, argv + argc);
  if (cli::runs_without_mpi(words)) return cli::run_without_mpi(program, words);
  return lockstep::run(
      argc, argv,
      [&](Session& session) {
        progress::enter(progress::Phase::start);
        comm::run_on_all(session.world(), [&] {
          if (!wrong_.empty()) throw UsageError("{}", wrong_);
        });
        cli::check_same_everywhere(registries_, session.world());
        constexpr std::array<std::string_view, 3> with_requests{"train", "predict", "sample"};
        if (words.empty() || std::ranges::find(with_requests, words.front()) == with_requests.end())
          train::HeldSignals::release();
        return cli::run_verb(program, session, words);
      },
      cli::start_timeout_s(program, words));
}

}  // namespace lockstep
