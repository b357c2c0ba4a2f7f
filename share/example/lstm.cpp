// A language model that reads text letter by letter: mpirun -n 2 ./lstm WORDS.h5 RUN STEPS
// The data file: lockstep prepare text words.txt --out words.h5
#include <lockstep/lockstep.h>

#include <array>
#include <cstdlib>

namespace ls = lockstep;
namespace nn = lockstep::nn;
using ls::Var;

constexpr std::int64_t context = 32;  // letters that a sample has
constexpr std::int64_t reach = 16;    // letters that a gradient goes back over
constexpr std::int64_t width = 64;

// Two LSTMs one above the other guess the next letter after each.
struct Reader : nn::Module {
  explicit Reader(std::int64_t vocabulary)
      : letters(*this, "letters", vocabulary, width), out(*this, "out", width, vocabulary) {
    for (int i = 0; i < 2; ++i) cells.emplace_back(width, width);  // cells.0, cells.1
  }

  // x: int64 [N, T]; result [N, T, vocabulary].
  Var forward(ls::Tape& tape, const ls::Batch& batch) {
    const ls::Tensor& tokens = batch["x"];
    const Var x = letters(tape, tokens);  // [N, T, width]
    std::array<nn::LSTMState, 2> states;  // zeros at first
    std::array<Var, context> read;
    for (int t = 0; t < context; ++t) {
      // A state whose gradient ends here, or which a later pass needs, is carried over by its value.
      if (t > 0 && t % reach == 0)
        for (nn::LSTMState& kept : states)
          kept = {tape.constant(kept.h.value()), tape.constant(kept.c.value())};
      Var h = reshape(narrow(x, 1, t, 1), {tokens.size(0), width});
      for (std::size_t i = 0; i < cells.size(); ++i) {
        states[i] = cells[i](h, states[i]);
        h = states[i].h;
      }
      read[std::size_t(t)] = h;
    }
    return out(ls::stack(read, 1));
  }

  nn::Embedding letters;
  nn::List<nn::LSTMCell> cells{*this, "cells"};
  nn::Linear out;
};

int main(int argc, char** argv) {
  return ls::run(argc, argv, [&](ls::Session& session) {
    if (argc != 4) throw ls::UsageError("usage: lstm WORDS.h5 RUN STEPS");
    const long steps = std::atol(argv[3]);
    session.use_device("auto");
    session.set_run({.global_batch = 64, .shards = 4});
    ls::Text text(argv[1], context);
    Reader model(text.vocabulary());
    model.to(session.backend());
    ls::DataParallel replicas(model, session);
    ls::AdamW adamw(replicas, {.lr = 5e-3});
    ls::Loader loader(text, session);
    ls::Store store(argv[2], session);

    auto step = store.resume(model, adamw);
    for (ls::Progress progress(session, step, steps); step < steps; ++step) {
      const auto result = replicas.step(loader.at(step), [&](ls::Tape& tape, const ls::Batch& batch) {
        return ls::cross_entropy(model.forward(tape, batch), batch["y"]);
      });
      adamw.step({.clip = 1});                      // of the gradients' norm: what a recurrent network needs
      progress.step(step + 1, result.mean_loss());  // the loss per letter
      if ((step + 1) % 20 == 0 || step + 1 == steps) store.save(step + 1, model, adamw);
    }
  });
}
