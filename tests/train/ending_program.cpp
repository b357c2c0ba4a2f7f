// For ending.sh: a program that ends as its argument says.
#include <stdexcept>
#include <string>

#include "lockstep/comm/agreement.h"
#include "lockstep/train/session.h"

namespace ls = lockstep;

int main(int argc, char** argv) {
  const std::string ending = argc > 1 ? argv[1] : "";
  return ls::run(argc, argv, [&](ls::Session& session) {
    const bool last = session.world().rank() == session.world().size() - 1;
    if (ending == "one_rank_throws" && last) throw ls::TrainingError("the sky fell");
    if (ending == "one_rank_throws_foreign" && last) throw std::runtime_error("a foreign exception");
    if (ending == "all_throw") throw ls::DataError("everybody saw the same");
    if (ending == "agreed") {
      ls::comm::together(session.world(), [&] {
        if (last) throw ls::UsageError("only one saw it");
      });
    }
    session.world().barrier();  // the others wait in a collective
    return ending == "stopped" ? ls::ExitCode::user_stopped : ls::ExitCode::done;
  });
}
