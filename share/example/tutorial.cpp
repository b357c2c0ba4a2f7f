// A sampler, a loop and a distributed test, as in tutorials for PyTorch. data::Loader and lockstep::evaluate
// do this with less code, and with the same bits at any number of ranks. mpirun -n 2 ./tutorial DIGITS.h5
// EPOCHS
#include <lockstep/lockstep.h>

#include <algorithm>
#include <cstdlib>
#include <nlohmann/json.hpp>

namespace ls = lockstep;
using ls::Tensor;

struct Classifier : ls::nn::Module {
  ls::nn::Linear hidden{*this, "hidden", 64, 64};
  ls::nn::Linear out{*this, "out", 64, 10};
  ls::Var forward(ls::Tape& tape, const ls::Batch& batch) {
    return out(ls::relu(hidden(ls::flatten(tape.batch(batch["x"]), 1))));
  }
};

/// These samples as a batch; `index` tells the ranks of a step apart.
ls::Batch read(const ls::Dataset& data, std::span<const std::int64_t> samples, int index) {
  std::vector<Tensor> tensors;
  for (const ls::Field& field : data.fields())
    tensors.push_back(
        Tensor::empty(ls::data::batch_shape(std::int64_t(samples.size()), field.shape), field.dtype));
  data.read(samples, tensors);
  return ls::data::batch_of(index, data.fields(), tensors);
}

/// The largest logit of each row: int64 [N].
Tensor predictions(const Tensor& logits) {
  const std::int64_t classes = logits.size(1);
  Tensor found = Tensor::empty({logits.size(0)}, ls::DType::int64);
  for (std::int64_t n = 0; n < logits.size(0); ++n) {
    const float* const row = logits.data<float>() + n * classes;
    found.data<std::int64_t>()[n] = std::max_element(row, row + classes) - row;
  }
  return found;
}

int main(int argc, char** argv) {
  return ls::run(argc, argv, [&](ls::Session& session) {
    if (argc != 3) throw ls::UsageError("usage: tutorial DIGITS.h5 EPOCHS");
    const std::uint64_t epochs = std::uint64_t(std::atol(argv[2]));
    const int rank = session.world().rank(), ranks = session.world().size();
    constexpr std::size_t batch_size = 16;  // of each rank

    const ls::Images digits(argv[1]);
    const auto [train, test] = ls::data::split(digits, 0.2, 1);
    ls::DistributedSampler sampler({.length = train.size(), .ranks = ranks, .rank = rank});
    Classifier model;
    ls::DataParallel replicas(model, session);  // one shard a rank
    ls::AdamW adamw(replicas, {.lr = 3e-3});

    std::int64_t step = 0;
    for (std::uint64_t epoch = 0; epoch < epochs; ++epoch) {
      sampler.set_epoch(epoch);
      const std::vector<std::int64_t> samples = sampler.indices();
      double sum = 0, count = 0;
      for (std::size_t first = 0; first < samples.size(); first += batch_size) {
        const std::size_t size = std::min(batch_size, samples.size() - first);
        const ls::Batch mine = read(train, std::span(samples).subspan(first, size), rank);
        const ls::data::StepBatch of_step{.step = step++, .shards_total = ranks, .shards = {&mine, 1}};
        const auto result = replicas.step(of_step, [&](ls::Tape& tape, const ls::Batch& batch) {
          return ls::cross_entropy(model.forward(tape, batch), batch["y"]);
        });
        adamw.step();
        sum += result.loss_sum;
        count += result.count;
      }
      session.log().info("epoch {}  loss {:.4f}", epoch + 1, sum / count);
    }

    // Every rank predicts its part of the test, and all ranks get all predictions.
    ls::DistributedSampler of_test(
        {.length = test.size(), .ranks = ranks, .rank = rank, .shuffle = false, .drop_last = true});
    const ls::Batch mine = read(test, of_test.indices(), rank);
    replicas.tape().begin({.training = false, .record = false});
    const Tensor found = predictions(model.forward(replicas.tape(), mine).value());
    const Tensor all_found = ls::all_gather(session, found), all_labels = ls::all_gather(session, mine["y"]);
    const auto* const labels = all_labels.data<std::int64_t>();
    const auto right = std::inner_product(labels, labels + all_labels.numel(), all_found.data<std::int64_t>(),
                                          std::int64_t{0}, std::plus<>(), std::equal_to<>());
    session.log().info("{} of {} digits were recognized", right, all_labels.numel());

    // The same from objects: what each rank has to tell.
    const std::int64_t* const own = mine["y"].data<std::int64_t>();
    const auto mine_right = std::inner_product(own, own + found.numel(), found.data<std::int64_t>(),
                                               std::int64_t{0}, std::plus<>(), std::equal_to<>());
    std::int64_t told = 0;
    for (const nlohmann::json& report : ls::gather(session, {{"rank", rank}, {"right", mine_right}})) {
      session.log().info("rank {}: {} right", report["rank"].get<int>(), report["right"].get<std::int64_t>());
      told += report["right"].get<std::int64_t>();
    }
    if (rank == 0 && told != right) throw ls::TrainingError("{} and {} differ", told, right);
  });
}
