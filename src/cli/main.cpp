// lockstep: the command line.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <exception>
#include <memory>

#include "base/streams.h"
#include "base/text.h"
#include "cli/verb.h"
#include "train/watchdog.h"

namespace lockstep::cli {

// Each of these is in the file of its verb.
VerbFunction train, eval, predict, generate, prepare, inspect, diff, verify, convert, ema, bench, doctor;
/// How long MPI may take to start: fault.hang_timeout_s of the configuration in `words`, if there is one. In
/// train.cpp.
double start_timeout_s(const Arguments& words);

namespace {

/// In the order of lockstep --help.
constexpr std::array verbs{
    Verb{"train", "train a model, or resume a run", train},
    Verb{"eval", "evaluate a checkpoint", eval},
    Verb{"predict", "a checkpoint's outputs for every sample", predict},
    Verb{"generate", "continue a text with a language model", generate},
    Verb{"prepare", "turn csv, idx, cifar or text files into a data file", prepare},
    Verb{"inspect", "show what a checkpoint holds", inspect},
    Verb{"diff", "compare two checkpoints", diff},
    Verb{"verify", "check a checkpoint's digests", verify},
    Verb{"convert", "weights from and to .safetensors", convert},
    Verb{"ema", "EMA weights of another width, made after training", ema},
    Verb{"bench", "measure sums, steps and their overlap", bench},
    Verb{"doctor", "check this node, MPI, HDF5 and the disk", doctor},
};

std::string help() {
  std::string text = "Lockstep " LOCKSTEP_VERSION
                     ": data-parallel training of neural networks.\n\nUsage: [mpirun -n RANKS] lockstep VERB "
                     "[ARGUMENTS]\n\n";
  for (const Verb& verb : verbs) text += fmt::format("  {:<10} {}\n", verb.name, verb.summary);
  return text +
         "\nlockstep VERB --help tells more. Exit codes: 0 done, 2 usage, 3 bad data,\n"
         "4 training wrong, 5 a rank failed, 75 preempted (checkpoint written),\n"
         "76 stopped by the user (checkpoint written).\n";
}

ExitCode dispatch(Session& session, const Arguments& words) {
  const bool prints = session.world().rank() == 0;
  if (words.empty() || words[0] == "--help" || words[0] == "-h" || words[0] == "help") {
    if (prints) words.empty() ? static_cast<void>(write_standard_error(help())) : print(help());
    return words.empty() ? ExitCode::usage : ExitCode::done;
  }
  if (words[0] == "--version") {
    if (prints) fmt::print("lockstep {}\n", LOCKSTEP_VERSION);
    return ExitCode::done;
  }
  for (const Verb& verb : verbs) {
    if (verb.name == words[0]) return verb.run(session, Arguments(words.begin() + 1, words.end()));
  }
  std::vector<std::string> names;
  for (const Verb& verb : verbs) names.emplace_back(verb.name);
  const std::string nearest = nearest_name(words[0], names);
  throw UsageError("unknown verb {}; {}", quote(words[0]),
                   nearest.empty() ? "see lockstep --help" : "did you mean " + nearest + "?");
}

/// Runs the verb and flushes its output: a full disk must not look like success.
ExitCode run_verb(Session& session, const Arguments& words) {
  const ExitCode code = dispatch(session, words);
  on_rank_0(session, flush_output);
  return code;
}

/// doctor --node: each process checks its node without MPI, also if a launcher started several.
bool runs_without_mpi(const Arguments& words) {
  return !words.empty() && words[0] == "doctor" && std::ranges::find(words, "--node") != words.end();
}

int run_without_mpi(const Arguments& words) {
  ExitCode code = ExitCode::failure;
  try {
    const std::unique_ptr<comm::CpuCommunicator> self = comm::make_self_communicator();
    std::unique_ptr<train::Watchdog> no_watchdog;
    Session session(*self, no_watchdog);
    return static_cast<int>(run_verb(session, words));
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

int main(int argc, char** argv) {
  namespace cli = lockstep::cli;
  lockstep::protect_standard_streams();
  const cli::Arguments words(argv + 1, argv + argc);
  if (cli::runs_without_mpi(words)) return cli::run_without_mpi(words);
  return lockstep::run(
      argc, argv, [&](lockstep::Session& session) { return cli::run_verb(session, words); },
      cli::start_timeout_s(words));
}
