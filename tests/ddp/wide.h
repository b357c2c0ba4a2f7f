// A wider network than toy.h's, trained by whole updates or in parts, and what must not differ.
#pragma once

#include <algorithm>
#include <array>
#include <boost/test/unit_test.hpp>
#include <memory>
#include <string>
#include <vector>

#include "ddp/toy.h"
#include "lockstep/optim/adamw.h"
#include "lockstep/optim/muon.h"
#include "lockstep/optim/sgd.h"

namespace lockstep::test {

/// Parameters of several blocks that no number of ranks divides, tensors far below a block, one without
/// elements, a frozen one, and one that only even shards of even steps use.
struct Wide {
  static constexpr std::int64_t width = 131;
  /// undivided_matrices: each is owned by one rank in a sharded run.
  explicit Wide(bool undivided_matrices = false)
      : params{make_param("in.weight", {width, 5}),
               make_param("in.bias", {width}),
               make_param("middle.weight", {width, width}),
               make_param("fixed.weight", {width, width}),
               make_param("nothing", {0, 3}),
               make_param("rare.weight", {width, width}),
               make_param("out.weight", {4, width}),
               make_param("out.bias", {4})} {
    for (Param& param : params) {
      for (std::int64_t i = 0; i < param.value.numel(); ++i) param.value.data<float>()[i] *= 0.1f;
    }
    for (Param& param : params) param.undivided = undivided_matrices && param.value.shape().rank() == 2;
    params[3].trainable = false;
  }
  Wide(const Wide&) = delete;
  Wide& operator=(const Wide&) = delete;

  ModelState state() {
    ModelState state;
    for (Param& param : params) state.params.push_back(&param);
    return state;
  }
  void to(kernels::Backend& backend) {
    for (Param& param : params) param.value = kernels::on_device(param.value, backend);
  }
  Loss loss(Tape& tape, const ToyShard& shard, const ddp::MicroBatch& piece) {
    Var h = relu(
        linear(tape.constant(piece.rows(shard.x)), tape.parameter(params[0]), tape.parameter(params[1])));
    h = relu(linear(h, tape.parameter(params[2])));
    if (shard.index % 2 == 0 && tape.pass().step % 2 == 0) h = h + linear(h, tape.parameter(params[5]));
    h = h + linear(h, tape.parameter(params[3]));
    return mse(linear(h, tape.parameter(params[6]), tape.parameter(params[7])), piece.rows(shard.y));
  }
  std::vector<std::vector<float>> values(kernels::Backend* backend = nullptr) const {
    std::vector<std::vector<float>> all;
    for (const Param& param : params) {
      param.wait_ready();
      all.push_back(elements(param.value, backend));
    }
    return all;
  }
  std::vector<Param> params;
};

/// adamw_undivided: AdamW, and in a sharded run each matrix has one owner, as it has with Muon.
enum class Algorithm { adamw, sgd, adamw_undivided, muon };
inline constexpr std::array all_algorithms{Algorithm::adamw, Algorithm::sgd, Algorithm::adamw_undivided,
                                           Algorithm::muon};

inline std::unique_ptr<optim::Optimizer> make_optimizer(Algorithm algorithm, GradientSource& source) {
  if (algorithm == Algorithm::sgd)
    return std::make_unique<optim::Sgd>(
        source, optim::SgdOptions{.lr = 0.01, .momentum = 0.9, .nesterov = true, .weight_decay = 0.01});
  if (algorithm == Algorithm::muon)
    return std::make_unique<optim::Muon>(source, optim::MuonOptions{.lr = 0.01, .patterns = {"*.weight"}});
  return std::make_unique<optim::AdamW>(
      source, optim::AdamWOptions{.lr = 0.01,
                                  .weight_decay = 0.1,
                                  .groups = {{.pattern = "out.*", .lr_factor = 0.5, .decay_factor = 2},
                                             {.pattern = "in.bias", .lr_factor = 2}}});
}

/// A training run.
struct WideRun {
  explicit WideRun(const ddp::Options& options, Algorithm algorithm = Algorithm::adamw,
                   comm::GradientTransport& transport = world())
      : WideRun(options, algorithm, transport, kernels::make_cpu_backend()) {}
  WideRun(const ddp::Options& options, Algorithm algorithm, comm::GradientTransport& transport,
          std::shared_ptr<kernels::Backend> of)
      : model(algorithm == Algorithm::adamw_undivided || algorithm == Algorithm::muon),
        backend((model.to(*of), std::move(of))),
        replicas(model.state(), transport, *backend, options),
        optimizer(make_optimizer(algorithm, replicas)),
        ema(model.state(), *backend, {0.5, 0.9}, {.partition = replicas.partition()}) {
    optimizer->attach(ema);
  }
  /// Returns the gradient norm.
  double step(std::uint64_t number) {
    replicas.step(toy_batch(number, replicas),
                  [&](Tape& tape, const ToyShard& shard, const ddp::MicroBatch& piece) {
                    return model.loss(tape, on_device(shard, *backend), piece);
                  });
    return optimizer->step({.clip = 0.5}).gradient_norm;
  }

  Wide model;
  std::shared_ptr<kernels::Backend> backend;
  ddp::DataParallel replicas;
  std::unique_ptr<optim::Optimizer> optimizer;
  optim::Ema ema;
};

inline ddp::Options wide_options(bool sharded) {
  return {.bucket_mb = 0.02,
          .first_bucket_mb = 0.005,
          .shards = 7,
          .unused = ddp::Unused::allow,
          .sharded_optimizer = sharded};
}

/// Values, averages and slots. Collective.
inline void check_same(WideRun& a, WideRun& b) {
  const auto here = [](WideRun& run, const Tensor& tensor) {
    return kernels::on_cpu(tensor, run.backend.get());
  };
  BOOST_TEST((a.model.values(a.backend.get()) == b.model.values(b.backend.get())));
  const auto shadows_a = a.ema.tensors(), shadows_b = b.ema.tensors();
  BOOST_REQUIRE(shadows_a.size() == shadows_b.size());
  for (std::size_t i = 0; i < shadows_a.size(); ++i)
    BOOST_TEST(same_bits(elements(here(a, shadows_a[i].tensor)), elements(here(b, shadows_b[i].tensor))),
               shadows_a[i].name);
  const auto slots_a = a.optimizer->slots(), slots_b = b.optimizer->slots();
  BOOST_REQUIRE(slots_a.size() == slots_b.size());
  for (std::size_t s = 0; s < slots_a.size(); ++s) {
    for (std::size_t e = 0; e < slots_a[s].entries.size(); ++e) {
      const Tensor left = here(a, slots_a[s].entries[e].tensor),
                   right = here(b, slots_b[s].entries[e].tensor);
      BOOST_TEST(left.bytes() == right.bytes());
      BOOST_TEST(std::equal(static_cast<const char*>(left.raw()),
                            static_cast<const char*>(left.raw()) + left.bytes(),
                            static_cast<const char*>(right.raw())),
                 slots_a[s].name << " of " << slots_a[s].entries[e].name);
    }
  }
}

}  // namespace lockstep::test
