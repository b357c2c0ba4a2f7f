// For watched.sh: a program that does not ask to be watched, and hangs, or works for long, as its argument
// says.
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <string>
#include <thread>

#include "lockstep/autograd/functions.h"
#include "lockstep/checkpoint/store.h"
#include "lockstep/data/loader.h"
#include "lockstep/ddp/collectives.h"
#include "lockstep/ddp/data_parallel.h"
#include "lockstep/nn/layers.h"
#include "lockstep/train/session.h"

namespace ls = lockstep;

namespace {

struct Step {
  std::int64_t step = 0;
  std::vector<ls::Batch> shards;
  auto begin() const { return shards.begin(); }
  auto end() const { return shards.end(); }
};

struct Model : ls::nn::Module {
  ls::nn::Linear layer{*this, "layer", 3, 2};
};

[[noreturn]] void hang() {
  for (;;) ::pause();
}

void work() { std::this_thread::sleep_for(std::chrono::seconds(5)); }  // longer than the timeout

volatile std::sig_atomic_t own_signals = 0;

}  // namespace

int main(int argc, char** argv) {
  const std::string what = argc > 1 ? argv[1] : "", run = argc > 2 ? argv[2] : "";
  std::signal(SIGUSR1, [](int) { own_signals = 1; });
  return ls::run(argc, argv, [&](ls::Session& session) {
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
  });
}
