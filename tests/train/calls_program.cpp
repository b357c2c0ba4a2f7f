// For calls.sh: a program whose ranks do what its arguments say: the first is rank 0's, the second rank 1's,
// and so on; the last is that of all further ranks, too.
#include "calls.h"

namespace ls = lockstep;

int main(int argc, char** argv) {
  return ls::run(argc, argv, [&](ls::Session& session) {
    if (argc < 3) throw ls::UsageError("usage: calls FOLDER CALLS_OF_RANK_0 [CALLS_OF_RANK_1]...");
    session.set_run({.global_batch = 4 * session.world().size()});
    ls::test::CallingProgram(session, argv[1]).make(argv[std::min(2 + session.world().rank(), argc - 1)]);
  });
}
