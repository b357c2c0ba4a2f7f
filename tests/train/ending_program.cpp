// For ending.sh: a program that ends as its argument says.
#include <stdexcept>
#include <string>

#include "lockstep/autograd/functions.h"
#include "lockstep/comm/agreement.h"
#include "lockstep/data/loader.h"
#include "lockstep/ddp/data_parallel.h"
#include "lockstep/models/resnet.h"
#include "lockstep/train/session.h"
#include "lockstep/train/stop.h"

namespace ls = lockstep;

namespace {

struct Step {
  std::int64_t step = 0;
  std::vector<ls::Batch> shards;
  auto begin() const { return shards.begin(); }
  auto end() const { return shards.end(); }
};

/// A step in which the last rank throws while the others already wait for it inside a layer.
void fail_while_layers_meet(ls::Session& session) {
  const int rank = session.world().rank(), last = session.world().size() - 1;
  ls::models::Resnet model({.blocks = {1}, .width = 8, .in_channels = 1, .classes = 2, .batch_norm = "sync"},
                           1);
  ls::ddp::DataParallel replicas(model, session);
  const Step step{0,
                  {ls::Batch(rank, {{"x", ls::Tensor::zeros({2, 1, 4, 4})},
                                    {"y", ls::Tensor::zeros({2}, ls::DType::int64)}})}};
  replicas.step(step, [&](ls::Tape& tape, const ls::Batch& batch) {
    if (rank == last) throw ls::DataError("a bad shard");
    return ls::cross_entropy(model.forward(tape, batch), batch["y"]);
  });
}

}  // namespace

int main(int argc, char** argv) {
  const std::string ending = argc > 1 ? argv[1] : "";
  return ls::run(argc, argv, [&](ls::Session& session) {
    const bool last = session.world().rank() == session.world().size() - 1;
    if (ending == "one_rank_throws" && last) throw ls::TrainingError("the sky fell");
    if (ending == "one_rank_throws_foreign" && last) throw std::runtime_error("a foreign exception");
    if (ending == "all_throw") throw ls::DataError("everybody saw the same");
    if (ending == "agreed") {
      ls::comm::run_on_all(session.world(), [&] {
        if (last) throw ls::UsageError("only one saw it");
      });
    }
    if (ending == "obeys") {
      const ls::train::StopRequests requests("", false);
      const std::uint64_t asked = ls::comm::bits_of_any(session.world(), requests.pending().to_bits());
      return ls::train::exit_code(ls::ddp::Requests::from_bits(asked)).value_or(ls::ExitCode::done);
    }
    if (ending == "layers_meet") fail_while_layers_meet(session);
    session.world().barrier();  // the others wait in a collective
    return ending == "stopped" ? ls::ExitCode::user_stopped : ls::ExitCode::done;
  });
}
