#include "lockstep/train/evaluate.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <vector>

#include "base/progress.h"
#include "lockstep/autograd/functions.h"
#include "lockstep/comm/agreement.h"
#include "lockstep/data/loader.h"
#include "lockstep/kernels/backend.h"
#include "lockstep/ops/loss.h"

namespace lockstep::train {
namespace {

/// Chunks of about this many tokens or samples: large enough to be fast, small enough to share between ranks.
constexpr std::int64_t rows_per_chunk = 1024;

enum : std::size_t { loss_sum, count, correct, samples, width };

double correct_of(kernels::Backend& backend, const Tensor& logits, const Tensor& targets) {
  const Tensor count = backend.empty({}, DType::int64);
  backend.run(ops::CountCorrect{logits, targets, count});
  std::int64_t read = 0;
  backend.copy(count, Tensor::view(&read, {}, DType::int64));
  return static_cast<double>(read);
}

/// The requests of all ranks. Collective.
std::uint64_t requests_of_any(comm::HostGroup& world, std::uint64_t mine) {
  std::vector<std::uint64_t> all(static_cast<std::size_t>(world.size()));
  world.all_gather(&mine, sizeof mine, all.data());
  return std::accumulate(all.begin(), all.end(), std::uint64_t{0}, std::bit_or<>());
}

}  // namespace

Evaluation evaluate(models::Model& model, Tape& tape, const data::Dataset& dataset, comm::HostGroup& world,
                    DType compute) {
  return *evaluate(model, tape, dataset, world, compute, {});
}

std::optional<Evaluation> evaluate(models::Model& model, Tape& tape, const data::Dataset& dataset,
                                   comm::HostGroup& world, DType compute, const EvaluationWatch& watch) {
  const bool classifies = model.context() == 0;
  const std::int64_t rows_per_sample =
      std::max<std::int64_t>(1, data::field_named(dataset, "y").shape.numel());
  std::vector<double> sums;
  data::EvalBatches batches(dataset, std::clamp<std::int64_t>(rows_per_chunk / rows_per_sample, 1, 64),
                            world);
  const auto add_chunk = [&](int chunk) {
    progress::tick();
    tape.begin({.training = false,
                .record = false,
                .compute = compute,
                .same_parameters = chunk != batches.mine().first});
    const Batch batch = batches.read(chunk).map(
        [&](const Tensor& field) { return kernels::on_device(field, tape.backend()); });
    const Var logits = model.forward(tape, batch);
    const Loss loss = cross_entropy(logits, batch["y"]);
    const std::size_t at = sums.size();
    sums.resize(at + width);
    const ops::CountedSum total = loss.read();
    sums[at + loss_sum] = total.sum;
    sums[at + count] = total.count;
    sums[at + correct] = classifies ? correct_of(tape.backend(), logits.value(), batch["y"]) : 0.0;
    sums[at + samples] = static_cast<double>(batch.samples());
  };
  const comm::ShardRange mine = batches.mine();
  // With a watch, a batch at a time: all ranks take as many rounds as rank 0, which has the most batches.
  const int chunks_a_round = watch.act ? 1 : batches.most_chunks();
  const int rounds = watch.act ? batches.most_chunks() : 1;
  for (int round = 0; round < rounds; ++round) {
    comm::run_on_all(world, [&] {
      for (int i = round; i < std::min(round + chunks_a_round, mine.count); ++i) add_chunk(mine.first + i);
    });
    if (!watch.act) break;
    tape.begin({.training = false, .record = false});  // the watch may change the weights
    const bool continues =
        watch.act(requests_of_any(world, watch.requests()), static_cast<double>(round + 1) / rounds);
    if (!continues && round + 1 < rounds) return std::nullopt;
  }
  tape.begin({.training = false, .record = false});
  const std::vector<double> total = batches.sum(world, sums, static_cast<int>(width));
  Evaluation evaluation;
  evaluation.loss = total[loss_sum] / total[count];
  if (classifies) evaluation.accuracy = total[correct] / total[count];
  evaluation.samples = static_cast<std::int64_t>(total[samples]);
  return evaluation;
}

}  // namespace lockstep::train
