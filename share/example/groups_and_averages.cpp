// A trainer with groups of parameters, EMA weights and synchronized batch norm, which stops and requeues:
// mpirun -n 2 ./groups_and_averages DIGITS.h5 RUN STEPS
#include <lockstep/lockstep.h>

#include <cstdlib>
#include <nlohmann/json.hpp>

namespace ls = lockstep;
namespace nn = lockstep::nn;
using ls::Var;

struct ConvNet : nn::Module {
  nn::Conv2d conv1{*this, "conv1", 1, 16, 3, {.padding = 1}};
  nn::BatchNorm2d norm1{*this, "norm1", 16};
  nn::Conv2d conv2{*this, "conv2", 16, 32, 3, {.stride = 2, .padding = 1}};
  nn::BatchNorm2d norm2{*this, "norm2", 32};
  nn::Linear head{*this, "head", 32, 10};

  Var forward(ls::Tape& tape, const ls::Batch& batch) {
    const Var h = norm1.relu(conv1(tape.batch(batch["x"])));
    return head(ls::flatten(ls::global_avg_pool2d(norm2.relu(conv2(h))), 1));
  }
};

int main(int argc, char** argv) {
  return ls::run(argc, argv, [&](ls::Session& session) {
    if (argc != 4) throw ls::UsageError("usage: groups_and_averages DIGITS.h5 RUN STEPS");
    const std::string run = argv[2];
    const long steps = std::atol(argv[3]);
    session.use_device("auto");
    session.set_run({.global_batch = 64, .seed = 1});  // one shard a rank
    ConvNet model;
    nn::convert_sync_batch_norm(model);  // statistics are those of the global batch
    model.to(session.backend());
    ls::DataParallel replicas(model, session);

    // No decay for biases and norms; the head learns at half the rate. The first pattern that fits counts.
    ls::AdamW adamw(replicas, {.lr = 3e-3,
                               .weight_decay = 0.05,
                               .decay = ls::optim::Decay::all,
                               .groups = {{.pattern = "*.bias", .decay_factor = 0},
                                          {.pattern = "norm*", .decay_factor = 0},
                                          {.pattern = "head.*", .lr_factor = 0.5}}});
    // Two rates, and a profile from which other widths can be made later (lockstep ema). Running statistics
    // are averaged, too.
    ls::Ema ema(model, {0.99, 0.999, ls::optim::EmaProfile::power(0.1)},
                {.buffers = ls::optim::EmaBuffers::average});
    ls::Images digits(argv[1]);
    ls::Loader loader(digits, session, {.augment = {.crop_padding = 1}});
    ls::Store store(run, session, {.async = true});  // written during the next steps
    ls::StopRequests requests(run, session);         // SIGTERM, SIGUSR2, Ctrl-C, RUN/stop, RUN/checkpoint
    ls::TimeLimit limit(session);                    // of the Slurm job
    ls::MetricsFile metrics(run + "/metrics.jsonl", store.newest() ? store.newest()->position.step : 0, true,
                            session.world().rank() == 0);

    auto step = store.resume(model, adamw, ema);
    for (ls::Progress progress(session, step, steps); step < steps;) {
      auto asked = requests.pending();
      if (limit.left_s() < 30) asked.stop_preempted = true;
      replicas.request(asked);
      const auto result = replicas.step(loader.at(step), [&](ls::Tape& tape, const ls::Batch& batch) {
        return ls::cross_entropy(model.forward(tape, batch), batch["y"], {.label_smoothing = 0.1f});
      });
      adamw.step({.clip = 1});
      ema.update();
      ++step;
      progress.step(step, result.mean_loss());
      metrics.append({{"step", step}, {"loss", result.mean_loss()}});
      store.advance();
      if (step % 20 == 0 || step == steps || result.requests.any()) {
        metrics.sync();
        store.save(step, model, adamw, ema);
      }
      if (!result.requests.any()) continue;
      store.finish();  // a request is obeyed when the checkpoint is on storage
      requests.clear(result.requests);
      if (const auto code = ls::train::exit_code(result.requests); code && step < steps)
        return *code;  // 75: requeued
    }
    store.finish();
    return ls::ExitCode::done;
  });
}
