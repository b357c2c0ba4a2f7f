// Weights may be loaded before or after the model is wrapped. Both ways train with the same bits, from
// whatever each rank began with: mpirun -n 2 ./load_and_wrap CHECKPOINT DIGITS.h5, the checkpoint of the
// program digits.
#include <lockstep/lockstep.h>

#include <cstring>

namespace ls = lockstep;

struct Classifier : ls::nn::Module {
  using Module::Module;
  ls::nn::Linear hidden{*this, "hidden", 64, 128};
  ls::nn::Linear out{*this, "out", 128, 10};
  ls::Var forward(ls::Tape& tape, const ls::Batch& batch) {
    return out(ls::relu(hidden(ls::flatten(tape.batch(batch["x"]), 1))));
  }
};

void train(Classifier& model, ls::DataParallel& replicas, ls::Loader& loader) {
  ls::AdamW adamw(replicas, {.lr = 1e-3});
  for (std::int64_t step = 0; step < 10; ++step) {
    replicas.step(loader.at(step), [&](ls::Tape& tape, const ls::Batch& batch) {
      return ls::cross_entropy(model.forward(tape, batch), batch["y"]);
    });
    adamw.step();
  }
}

int main(int argc, char** argv) {
  return ls::run(argc, argv, [&](ls::Session& session) {
    if (argc != 3) throw ls::UsageError("usage: load_and_wrap CHECKPOINT DIGITS.h5");
    session.set_run({.global_batch = 64, .shards = 4, .seed = 2});
    const ls::Images digits(argv[2]);
    ls::Loader loader(digits, session);
    const auto load = [&](Classifier& model) {  // or group "ema/0.99": EMA weights
      ls::checkpoint::load_weights(argv[1], model, session.world(), "model");
    };

    Classifier loaded_first(1 + session.world().rank());  // every rank draws other weights
    load(loaded_first);
    ls::DataParallel replicas(loaded_first, session);  // gives every rank the values of rank 0
    train(loaded_first, replicas, loader);

    Classifier wrapped_first(100 + session.world().rank());
    ls::DataParallel others(wrapped_first, session);
    load(wrapped_first);  // every rank loads, so replicas stay equal
    others.check_replicas();
    train(wrapped_first, others, loader);

    const auto a = replicas.params(), b = others.params();
    for (std::size_t i = 0; i < a.size(); ++i)
      if (std::memcmp(a[i]->value.raw(), b[i]->value.raw(), a[i]->value.bytes()) != 0)
        throw ls::TrainingError("{} differs", a[i]->name);
    session.log().info("load then wrap, wrap then load: the same bits");
  });
}
