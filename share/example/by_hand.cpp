// Gradients averaged by hand: mpirun -n 2 ./by_hand RUN STEPS one_by_one|flat|bucketed|wrapped
// A differentiable simulator of diffusion is fitted to observations: how well each place conducts, and what
// heats it. all_reduce() sums the gradients in one of three ways, with the bits of DataParallel (wrapped).
#include <lockstep/lockstep.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <optional>
#include <utility>

namespace ls = lockstep;
using ls::Tensor, ls::Var;

constexpr std::int64_t places = 32;  // on a ring
constexpr int moments = 8;           // that an experiment lasts

/// Explicit steps of u' = conductivity * (mean of both neighbours - u) + source - loss * u.
struct Diffusion : ls::nn::Module {
  ls::nn::Parameter conductivity{*this, "conductivity", {places}, ls::nn::Init::constant(0.3f)};
  ls::nn::Parameter source{*this, "source", {places}, ls::nn::Init::constant(0)};
  ls::nn::Parameter loss{*this, "loss", {1}, ls::nn::Init::constant(0)};

  Var forward(ls::Tape& tape, const ls::Batch& batch) {
    const Var c = tape.parameter(conductivity), s = tape.parameter(source), l = tape.parameter(loss);
    Var u = tape.batch(batch["before"]);  // [N, places]
    for (int moment = 0; moment < moments; ++moment) {
      const Var left = ls::concat({narrow(u, 1, places - 1, 1), narrow(u, 1, 0, places - 1)}, 1);
      const Var right = ls::concat({narrow(u, 1, 1, places - 1), narrow(u, 1, 0, 1)}, 1);
      u = u + c * (0.5f * (left + right) - u) + s - l * u;
    }
    return u;
  }
};

/// Experiment i: a warm spot somewhere on the ring, and what is observed later.
struct Experiments final : ls::Dataset {
  std::int64_t size() const override { return 10'000; }
  const std::vector<ls::Field>& fields() const override { return fields_; }
  std::string name() const override { return "experiments"; }
  void read(std::span<const std::int64_t> samples, std::span<const Tensor> into) const override {
    for (std::size_t n = 0; n < samples.size(); ++n) {
      float *before = into[0].data<float>() + n * places, *u = into[1].data<float>() + n * places;
      const ls::Random random({.purpose = ls::purpose_of("spot"), .step = std::uint64_t(samples[n])});
      const float spot = places * random.uniform(0), width = 1 + 3 * random.uniform(1);
      for (int x = 0; x < places; ++x) before[x] = std::exp(-std::abs(float(x) - spot) / width);
      std::copy_n(before, places, u);
      for (int moment = 0; moment < moments; ++moment) {
        const std::vector<float> last(u, u + places);
        for (std::size_t x = 0; x < places; ++x) {
          const float mean = 0.5f * (last[(x + places - 1) % places] + last[(x + 1) % places]);
          u[x] += (0.5f + 0.4f * std::sin(0.2f * float(x))) * (mean - last[x]) + (x < 4 ? 0.1f : 0.0f);
        }
      }
    }
  }

 private:
  std::vector<ls::Field> fields_{{.name = "before", .shape = {places}}, {.name = "after", .shape = {places}}};
};

/// The gradients of a bucket of parameters, summed over the ranks as one vector.
void sum_bucket(ls::Session& session, std::span<ls::Param* const> bucket) {
  if (bucket.size() == 1) return ls::all_reduce(session, bucket[0]->gradient);
  std::int64_t elements = 0;
  for (const ls::Param* const param : bucket) elements += param->value.numel();
  const Tensor flat = session.backend().empty({elements});
  std::vector<Tensor> slots;
  for (std::int64_t first = 0; const ls::Param* const param : bucket) {
    const std::int64_t end = first + param->value.numel();
    slots.push_back(flat.rows(std::exchange(first, end), end).reshape(param->value.shape()));
    session.backend().copy(param->gradient, slots.back());
  }
  ls::all_reduce(session, flat);
  for (std::size_t i = 0; i < slots.size(); ++i) session.backend().copy(slots[i], bucket[i]->gradient);
}

int main(int argc, char** argv) {
  return ls::run(argc, argv, [&](ls::Session& session) {
    if (argc != 4) throw ls::UsageError("usage: by_hand RUN STEPS one_by_one|flat|bucketed|wrapped");
    const long steps = std::atol(argv[2]);
    const std::string how = argv[3];
    session.set_run({.global_batch = 8 * session.world().size()});  // 8 experiments a rank, as one shard
    Diffusion model;
    std::optional<ls::DataParallel> replicas;
    if (how == "wrapped") replicas.emplace(model, session);
    ls::LocalGradients own(model, session.backend());
    ls::AdamW adamw(replicas ? static_cast<ls::GradientSource&>(*replicas) : own, {.lr = 0.02});
    const Experiments experiments;
    ls::Loader loader(experiments, session);
    ls::Tape tape(session.backend());
    const auto loss_of = [&](ls::Tape& on, const ls::Batch& batch) {
      return ls::mse(model.forward(on, batch), batch["after"]);
    };
    const auto by_hand = [&](const ls::Batch& batch) {
      own.clear();
      tape.begin({.sink = &own});
      const ls::Loss loss = loss_of(tape, batch);
      backward(loss);
      tape.finish_backward();
      const auto params = own.params();
      const std::size_t most = how == "one_by_one" ? 1 : how == "bucketed" ? 2 : params.size();
      for (std::size_t i = 0; i < params.size(); i += most)
        sum_bucket(session, params.subspan(i, std::min(most, params.size() - i)));
      own.add_count(ls::all_reduce(session, loss.read().count));  // the optimizer divides by it
      return ls::all_reduce(session, loss.read().sum) / own.count();
    };

    for (std::int64_t step = 0; step < steps; ++step) {
      const auto& batches = loader.at(step);
      const double loss =
          replicas ? replicas->step(batches, loss_of).mean_loss() : by_hand(batches.shards[0]);
      adamw.step();
      if (step % 10 == 9) session.log().info("step {}  loss {:.6f}", step + 1, loss);
    }
    ls::Store(argv[1], session).save(steps, model, adamw);
  });
}
