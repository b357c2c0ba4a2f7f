// A model and a loop of your own: mpirun -n 2 ./digits digits.h5 RUN STEPS
#include <lockstep/lockstep.h>

#include <cstdlib>

namespace ls = lockstep;

struct Classifier : ls::nn::Module {
  ls::nn::Linear hidden{*this, "hidden", 64, 128};  // registers hidden.weight, hidden.bias
  ls::nn::Linear out{*this, "out", 128, 10};
  ls::Var forward(ls::Tape& tape, const ls::Batch& batch) {
    return out(ls::relu(hidden(ls::flatten(tape.batch(batch["x"]), 1))));
  }
};

int main(int argc, char** argv) {
  return ls::run(argc, argv, [&](ls::Session& session) {  // MPI; an error on one rank ends all, with its text
    if (argc != 4) throw ls::UsageError("usage: digits DATA.h5 RUN STEPS");
    const long steps = std::atol(argv[3]);
    session.use_device("auto");  // a GPU if this build and machine have one
    session.set_run({.global_batch = 64, .shards = 4, .seed = 1});
    Classifier model;
    model.to(session.backend());
    ls::DataParallel replicas(model, session);
    ls::AdamW adamw(replicas, {.lr = 1e-3, .weight_decay = 0.05});
    ls::Ema ema(model, {0.99, 0.999});
    ls::Images digits(argv[1]);
    ls::Loader loader(digits, session);
    ls::Store store(argv[2], session);

    auto step = store.resume(model, adamw, ema);
    for (ls::Progress progress(session, step, steps); step < steps; ++step) {
      const auto result = replicas.step(loader.at(step), [&](ls::Tape& tape, const ls::Batch& batch) {
        return ls::cross_entropy(model.forward(tape, batch), batch["y"]);
      });
      adamw.step();
      ema.update();
      progress.step(step + 1, result.mean_loss());
      if ((step + 1) % 20 == 0) store.save(step + 1, model, adamw, ema);
    }
  });
}
