// lockstep: the command line. One file a verb.
#include <fmt/format.h>

#include <array>

#include "base/streams.h"
#include "base/text.h"
#include "cli/doctor/node.h"
#include "cli/verb.h"
#include "lockstep/comm/agreement.h"

namespace lockstep::cli {
namespace {

constexpr std::array<Verb, 11> verbs{{
    {"train", "train a model, or go on with a run", train},
    {"eval", "evaluate a checkpoint", eval},
    {"generate", "let a language model write", generate},
    {"prepare", "turn csv, idx, cifar or text files into a data file", prepare},
    {"inspect", "what a checkpoint holds", inspect},
    {"diff", "compare two checkpoints", diff},
    {"verify", "check a checkpoint's digests", verify},
    {"convert", "weights from and to .safetensors", convert},
    {"ema", "an average of another width, made after training", ema},
    {"bench", "measure sums, steps and their overlap", bench},
    {"doctor", "what this machine, MPI and HDF5 can do, and what is wrong", doctor},
}};

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
  const bool speaks = session.world().rank() == 0;
  if (words.empty() || words[0] == "--help" || words[0] == "-h" || words[0] == "help") {
    if (speaks) words.empty() ? static_cast<void>(write_standard_error(help())) : print(help());
    return words.empty() ? ExitCode::usage : ExitCode::done;
  }
  if (words[0] == "--version") {
    if (speaks) fmt::print("lockstep {}\n", LOCKSTEP_VERSION);
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

}  // namespace
}  // namespace lockstep::cli

int main(int argc, char** argv) {
  lockstep::settle_standard_streams();
  const lockstep::cli::Arguments words(argv + 1, argv + argc);
  if (lockstep::cli::checkup::asks_for_node(words))  // of one machine: no rank of anything
    return lockstep::cli::checkup::check_node({words.begin() + 1, words.end()});
  const auto program = [&](lockstep::Session& session) {
    const lockstep::ExitCode code = lockstep::cli::dispatch(session, words);
    // A figure that a full disk swallowed must not look like success.
    lockstep::comm::run_on_all(session.world(), [&] {
      if (session.world().rank() == 0) lockstep::cli::flush_output();
    });
    return code;
  };
  return lockstep::run(argc, argv, program, lockstep::cli::start_timeout_s(words));
}
