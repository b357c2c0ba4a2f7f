// Training with SyncBatchNorm over ranks next to training with BatchNorm on their batches in one.
#pragma once

#include <algorithm>
#include <boost/test/unit_test.hpp>
#include <functional>
#include <memory>

#include "ddp/training.h"
#include "lockstep/nn/layers.h"
#include "lockstep/nn/norm.h"
#include "lockstep/optim/sgd.h"

namespace lockstep::test {

inline constexpr float momentum = 0.3f;

/// Between dense layers: x is [N, C]. With `plain` the same network whose norm sees its own batch alone.
struct Dense : nn::Module {
  explicit Dense(bool plain) : norm(*this, "norm", 7, {.momentum = momentum, .sync = !plain}) {}
  Var forward(Tape& tape, const Tensor& x) { return out(relu(norm(in(tape.constant(x))))); }
  nn::Linear in{*this, "in", 5, 7, false};
  nn::BatchNorm2d norm;
  nn::Linear out{*this, "out", 7, 4};
};

/// Between convolutions: x is [N, C, H, W], which convolutions keep in channel blocks.
struct Images : nn::Module {
  explicit Images(bool plain) : norm(*this, "norm", 6, {.momentum = momentum, .sync = !plain}) {}
  Var forward(Tape& tape, const Tensor& x) {
    const std::int64_t n = x.size(0);
    const Var h = relu(norm(first(tape.constant(x.reshape({n, 5, 1, 1})))));
    return reshape(global_avg_pool2d(second(h)), {n, 4});
  }
  nn::Conv2d first{*this, "first", 5, 6, 1, {.bias = false}};
  nn::BatchNorm2d norm;
  nn::Conv2d second{*this, "second", 6, 4, 1};
};

/// What a rank has of a step: any number of samples that depend on (step, rank) only.
inline ToyShard samples_of(std::uint64_t step, int rank, std::int64_t rows) {
  ToyShard made{rank, Tensor::empty({rows, 5}), Tensor::empty({rows, 4})};
  const RandomKey key{.seed = 21, .step = step, .shard = static_cast<std::uint32_t>(rank)};
  fill_normal(made.x, key);
  for (std::int64_t i = 0; i < made.x.numel(); ++i)
    made.x.data<float>()[i] += static_cast<float>(rank);  // ranks see different distributions
  fill_normal(made.y, {.seed = 22, .step = step, .shard = key.shard});
  return made;
}

using RowsOf = std::function<std::int64_t(int rank)>;

template <class Model>
struct NormRun {
  NormRun(comm::GradientTransport& transport, bool plain,
          std::shared_ptr<kernels::Backend> of = kernels::make_cpu_backend())
      : model(plain),
        backend((model.to(*of), std::move(of))),
        replicas(model, transport, *backend, {.bucket_mb = tiny_mb, .first_bucket_mb = tiny_mb}),
        sgd(replicas, {.lr = 0.05}) {}
  ddp::StepResult step(const ToyBatch& batch) {
    outputs.clear();
    return replicas.step(batch, [&](Tape& tape, const ToyShard& shard) {
      const ToyShard there = on_device(shard, *backend);
      const Var out = model.forward(tape, there.x);
      outputs = elements(out.value(), backend.get());
      return mse(out, there.y);
    });
  }
  Model model;
  std::shared_ptr<kernels::Backend> backend;
  ddp::DataParallel replicas;
  optim::Sgd sgd;
  std::vector<float> outputs;
};

/// Trains some steps on the ranks of `transport` and next to it, on this rank alone, on their batches in
/// one on the CPU; everything must agree. Ranks are told apart by `first_rank`, so that parts of a split
/// differ.
template <class Model>
void check_training(comm::GradientTransport& transport, const RowsOf& rows_of, int first_rank = 0,
                    const std::shared_ptr<kernels::Backend>& backend = kernels::make_cpu_backend()) {
  const auto alone = comm::make_self_communicator();
  NormRun<Model> many(transport, false, backend), one(*alone, true);
  for (std::uint64_t step = 0; step < 3; ++step) {
    std::vector<Tensor> x, y;
    std::int64_t before_mine = 0;
    for (int rank = 0; rank < transport.group().size(); ++rank) {
      const ToyShard samples = samples_of(step, first_rank + rank, rows_of(rank));
      x.push_back(samples.x);
      y.push_back(samples.y);
      if (rank < transport.group().rank()) before_mine += samples.x.size(0);
    }
    ToyBatch mine{
        step, {samples_of(step, first_rank + transport.group().rank(), rows_of(transport.group().rank()))}};
    mine.shards[0].index = transport.group().rank();
    const ddp::StepResult found = many.step(mine);
    const ddp::StepResult wanted = one.step({step, {{0, stacked(x), stacked(y)}}});

    BOOST_TEST(found.count == wanted.count);
    BOOST_TEST(found.loss_sum == wanted.loss_sum, boost::test_tools::tolerance(1e-5));
    const auto first = one.outputs.begin() + before_mine * 4;
    check_close(many.outputs, {first, first + mine.shards[0].x.size(0) * 4}, "output", 1e-4f);
    const auto params = many.replicas.params(), others = one.replicas.params();
    for (std::size_t p = 0; p < params.size(); ++p)
      check_close(elements(params[p]->gradient, backend.get()), elements(others[p]->gradient),
                  params[p]->name, 1e-4f, 0.1f);
    if (wanted.count > 0) {
      many.sgd.step();
      one.sgd.step();
    }
    check_close_state(many.model, one.model, 1e-4f, backend.get());
    many.replicas.check_replicas();
  }
}

}  // namespace lockstep::test
