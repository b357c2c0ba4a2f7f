// A program that ends, hangs or works for long as its argument says: for ending.sh and watched.sh.
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <stdexcept>
#include <string>
#include <thread>

#include "lockstep/autograd/functions.h"
#include "lockstep/checkpoint/store.h"
#include "lockstep/comm/agreement.h"
#include "lockstep/data/loader.h"
#include "lockstep/ddp/collectives.h"
#include "lockstep/ddp/data_parallel.h"
#include "lockstep/models/resnet.h"
#include "lockstep/nn/layers.h"
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

struct Model : ls::nn::Module {
  ls::nn::Linear layer{*this, "layer", 3, 2};
};

[[noreturn]] void hang() {
  for (;;) ::pause();
}

void work() { std::this_thread::sleep_for(std::chrono::seconds(5)); }  // longer than the timeout

volatile std::sig_atomic_t own_signals = 0;

/// Steps, a checkpoint and a meeting of all ranks, in which the last one hangs or works where `what` says.
ls::ExitCode train(ls::Session& session, const std::string& what, const std::string& run) {
  const int rank = session.world().rank();
  const bool last = rank == session.world().size() - 1;
  if (what == "asked") session.watch(2);
  if (what == "asked_not_to") session.watch(0);
  if (what == "signal") {
    ::raise(SIGUSR1);
    return own_signals == 1 ? ls::ExitCode::done : ls::ExitCode::data;
  }

  Model model;
  ls::ddp::DataParallel replicas(model, session);
  ls::checkpoint::Store store(run, session);
  const auto step = [&](std::int64_t number) {
    replicas.step(Step{number, {ls::Batch(rank, {{"x", ls::Tensor::zeros({4, 3})}})}},
                  [&](ls::Tape& tape, const ls::Batch& batch) {
                    if (number == 1 && last && what == "loss") hang();
                    if (number == 1 && last && what == "stopped") ::raise(SIGSTOP);
                    return ls::mse(model.layer(tape.batch(batch["x"])), ls::Tensor::zeros({4, 2}));
                  });
  };
  step(0);
  if (what == "loss" || what == "stopped") step(1);
  if (what == "asked") hang();
  if (what == "own_code" && last) hang();
  if (what == "late" && last) work();
  if (what == "asked_not_to" && last) work();
  if (what == "together") work();
  if (what == "save" && rank == 0) store.save(1, model);
  const bool meets = what != "save" && what != "alone" && what != "together";
  if (meets && !(what == "fewer" && last)) ls::barrier(session);
  if (what == "alone" && rank == 0) work();
  return ls::ExitCode::done;
}

/// An end, on the last rank alone or on all.
ls::ExitCode end(ls::Session& session, const std::string& ending) {
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
}

}  // namespace

int main(int argc, char** argv) {
  const std::string what = argc > 1 ? argv[1] : "", run = argc > 2 ? argv[2] : "";
  if (!run.empty()) std::signal(SIGUSR1, [](int) { own_signals = 1; });
  return ls::run(argc, argv, [&](ls::Session& session) {
    return run.empty() ? end(session, what) : train(session, what, run);
  });
}
