// A model and a loop of your own: mpirun -n 2 ./digits digits.h5 RUN STEPS
#include <lockstep/lockstep.h>

#include <cstdio>
#include <cstdlib>

namespace ls = lockstep;

struct Classifier : ls::nn::Module {
  ls::nn::Linear hidden{*this, "hidden", 64, 128};  // registers hidden.weight, hidden.bias
  ls::nn::Linear out{*this, "out", 128, 10};
  ls::Var forward(const ls::Var& x) { return out(ls::relu(hidden(ls::flatten(x, 1)))); }
};

int main(int argc, char** argv) {
  return ls::run(
      argc, argv,
      [&](ls::Session& session) {  // MPI, device; an exception on one rank ends all, with its text
        if (argc != 4) throw ls::UsageError("usage: digits DATA.h5 RUN STEPS");
        const long steps = std::atol(argv[3]);
        session.use_device("auto");  // a GPU if this build and machine have one
        Classifier model;
        model.to(session.backend());
        ls::ddp::DataParallel replicas(model, session.transport(), session.backend(), {.shards = 4});
        ls::optim::AdamW adamw(replicas, {.lr = 1e-3, .weight_decay = 0.05});
        ls::optim::Ema ema(model, {0.99, 0.999});
        ls::data::Images digits(argv[1]);
        ls::data::Loader loader(digits,
                                {.global_batch = 64, .shards = 4, .seed = 1, .backend = &session.backend()},
                                session.world());
        ls::checkpoint::Store store(argv[2], session.world());

        for (auto step = store.resume(model, adamw, ema); step < steps; ++step) {
          const auto result = replicas.step(loader.at(step), [&](ls::Tape& tape, const ls::Batch& batch) {
            return ls::cross_entropy(model.forward(tape.batch(batch["x"])), batch["y"]);
          });
          adamw.step();
          ema.update();
          if ((step + 1) % 20 == 0) {
            store.save(step + 1, model, adamw, ema);
            if (session.world().rank() == 0)
              std::printf("step %ld  loss %.4f\n", long(step + 1), result.mean_loss());
          }
        }
      });
}
