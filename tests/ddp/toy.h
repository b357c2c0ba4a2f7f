// A small network on made-up data, and the serial reference: every shard's gradient by itself, folded along
// the tree.
#pragma once

#include <algorithm>
#include <boost/test/unit_test.hpp>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/autograd/functions.h"
#include "lockstep/autograd/gradient_sink.h"
#include "lockstep/base/random.h"
#include "lockstep/comm/reduction_tree.h"
#include "lockstep/ddp/data_parallel.h"
#include "lockstep/kernels/backend.h"
#include "support/mentions.h"
#include "support/world.h"

namespace lockstep::test {

inline void fill_normal(const Tensor& tensor, const RandomKey& key) {
  const Random random(key);
  for (std::int64_t i = 0; i < tensor.numel(); ++i)
    tensor.data<float>()[i] = random.normal(static_cast<std::uint64_t>(i));
}

inline Param make_param(const std::string& name, Shape shape, std::uint64_t seed = 1) {
  Param param;
  param.name = name;
  param.value = Tensor::zeros(shape);
  fill_normal(param.value, {.seed = seed, .purpose = purpose_of(name)});
  return param;
}

/// 5 -> 7 -> 7 -> 4, the middle layer used twice.
struct Net {
  explicit Net(std::uint64_t seed = 1)
      : params{make_param("in.weight", {7, 5}, seed),   make_param("in.bias", {7}, seed),
               make_param("tied.weight", {7, 7}, seed), make_param("out.weight", {4, 7}, seed),
               make_param("out.bias", {4}, seed),       make_param("nothing", {0, 3}, seed)} {}
  Net(const Net&) = delete;
  Net& operator=(const Net&) = delete;

  ModelState state() {
    ModelState state;
    for (Param& param : params) state.params.push_back(&param);
    return state;
  }
  void to(kernels::Backend& backend) {
    for (Param& param : params) param.value = kernels::on_device(param.value, backend);
  }
  Param& operator[](const std::string& name) {
    return *std::find_if(params.begin(), params.end(),
                         [&](const Param& param) { return param.name == name; });
  }
  Loss loss(Tape& tape, const Tensor& x, const Tensor& y) {
    return loss(tape, x, y, tape.parameter(params[0]));
  }
  /// With something else in the place of in.weight.
  Loss loss(Tape& tape, const Tensor& x, const Tensor& y, const Var& in_weight) {
    Var h = relu(linear(tape.constant(x), in_weight, tape.parameter(params[1])));
    h = relu(linear(h, tape.parameter(params[2])));
    h = h + linear(h, tape.parameter(params[2]));
    return mse(linear(with_nothing(tape, h), tape.parameter(params[3]), tape.parameter(params[4])), y);
  }
  /// x itself, by way of the parameter that has no elements.
  Var with_nothing(Tape& tape, const Var& x) {
    const Var nothing = tape.parameter(params[5]);
    return tape.record(x.value(), {&x, &nothing}, [x, nothing](Tape& t, const Tensor& dy) {
      t.add_gradient(x, dy);
      t.add_gradient(nothing, t.backend().empty(nothing.shape()));
    });
  }

  std::vector<Param> params;
};

struct ToyShard {
  int index = 0;
  Tensor x, y;
  std::array<Tensor, 2> tensors() const { return {x, y}; }
};

struct ToyBatch {
  std::uint64_t step = 0;
  std::vector<ToyShard> shards;
  auto begin() const { return shards.begin(); }
  auto end() const { return shards.end(); }
};

/// 6 samples, made from (step, shard) alone.
inline ToyShard toy_shard(std::uint64_t step, int shard) {
  ToyShard made{shard, Tensor::empty({6, 5}), Tensor::empty({6, 4})};
  const RandomKey key{
      .seed = 3, .purpose = purpose_of("x"), .step = step, .shard = static_cast<std::uint32_t>(shard)};
  fill_normal(made.x, key);
  fill_normal(made.y, {.seed = 4, .purpose = key.purpose, .step = step, .shard = key.shard});
  return made;
}

inline ToyBatch toy_batch(std::uint64_t step, comm::ShardRange block) {
  ToyBatch batch{step, {}};
  for (int shard = block.first; shard < block.end(); ++shard) batch.shards.push_back(toy_shard(step, shard));
  return batch;
}

inline ToyBatch toy_batch(std::uint64_t step, const ddp::DataParallel& replicas) {
  return toy_batch(step, replicas.shard_map().block(replicas.group().rank()));
}

using Gradients = std::vector<std::vector<float>>;  // by parameter; empty: none

/// `backend`: that of the device on which it is.
inline std::vector<float> elements(const Tensor& tensor, kernels::Backend* backend = nullptr) {
  if (!tensor) return {};
  const Tensor here = kernels::on_cpu(tensor, backend);
  return std::vector<float>(here.data<float>(), here.data<float>() + here.numel());
}

inline ToyShard on_device(const ToyShard& shard, kernels::Backend& backend) {
  return {shard.index, kernels::on_device(shard.x, backend), kernels::on_device(shard.y, backend)};
}

using LossOf = std::function<Loss(Net&, Tape&, const ToyShard&)>;

inline Loss plain_loss(Net& net, Tape& tape, const ToyShard& shard) {
  return net.loss(tape, shard.x, shard.y);
}

/// x -> in -> out, without the tied layer and the parameter that has no elements.
inline Loss shallow(Net& net, Tape& tape, const ToyShard& shard) {
  const Var h =
      relu(linear(tape.constant(shard.x), tape.parameter(net["in.weight"]), tape.parameter(net["in.bias"])));
  return mse(linear(h, tape.parameter(net["out.weight"]), tape.parameter(net["out.bias"])), shard.y);
}

/// The plain loss with in.weight behind one more operation, whose backward is the last to run: it calls
/// before(shard), adds the gradient and calls after(shard).
inline LossOf watched(const std::function<void(int)>& before, const std::function<void(int)>& after = {}) {
  return [=](Net& net, Tape& tape, const ToyShard& shard) {
    const Var w = tape.parameter(net["in.weight"]);
    const Var same = tape.record(w.value(), {&w}, [=, index = shard.index](Tape& t, const Tensor& dy) {
      if (before) before(index);
      t.add_gradient(w, dy);
      if (after) after(index);
    });
    return net.loss(tape, shard.x, shard.y, same);
  };
}

/// The gradients of one shard, run in `pieces` pieces; zeros where there are none.
inline Gradients shard_gradients(Net& net, kernels::Backend& backend, const ToyShard& shard, int pieces,
                                 const LossOf& loss_of) {
  LocalGradients sink(net.state(), backend);
  Tape tape(backend);
  for (int piece = 0; piece < pieces; ++piece) {
    tape.begin({.sink = &sink});
    const ddp::MicroBatch part{.index = piece, .count = pieces};
    backward(loss_of(net, tape, {shard.index, part.rows(shard.x), part.rows(shard.y)}));
    tape.finish_backward();
  }
  Gradients gradients;
  for (Param& param : net.params) {
    gradients.push_back(elements(param.gradient, &backend));
    gradients.back().resize(static_cast<std::size_t>(param.value.numel()));
  }
  sink.clear();
  return gradients;
}

inline Gradients add(Gradients a, const Gradients& b) {
  for (std::size_t p = 0; p < a.size(); ++p) {
    for (std::size_t i = 0; i < a[p].size(); ++i) a[p][i] += b[p][i];
  }
  return a;
}

/// What a step over `shards` shards must give, computed by `backend`.
inline Gradients reference_on(kernels::Backend& backend, std::uint64_t step, int shards, int pieces = 1,
                              const LossOf& loss_of = plain_loss, std::uint64_t seed = 1) {
  Net net(seed);
  net.to(backend);
  return comm::fold_tree(
      {0, shards},
      [&](int shard) {
        return shard_gradients(net, backend, on_device(toy_shard(step, shard), backend), pieces, loss_of);
      },
      add);
}

inline Gradients reference(std::uint64_t step, int shards, int pieces = 1, const LossOf& loss_of = plain_loss,
                           std::uint64_t seed = 1) {
  return reference_on(*kernels::make_cpu_backend(), step, shards, pieces, loss_of, seed);
}

inline bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() &&
         (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0);
}

inline void check_gradients(const Net& net, const Gradients& wanted, kernels::Backend* backend = nullptr) {
  for (std::size_t p = 0; p < net.params.size(); ++p) {
    BOOST_TEST(bool(net.params[p].gradient), net.params[p].name << " has no gradient");
    BOOST_TEST(same_bits(elements(net.params[p].gradient, backend), wanted[p]),
               net.params[p].name << " differs");
  }
}

/// Buckets of one gradient each.
inline constexpr double tiny_mb = 1e-6;

inline constexpr ddp::Mode all_modes[] = {ddp::Mode::overlapped, ddp::Mode::flat, ddp::Mode::per_parameter};

inline ddp::Options tiny(ddp::Options options = {}) {
  options.bucket_mb = options.first_bucket_mb = tiny_mb;
  return options;
}

/// What a ToyRun is made of.
struct ToyParts {
  std::uint64_t seed = 1;
  comm::GradientTransport* transport = &world();
  std::shared_ptr<kernels::Backend> backend = kernels::make_cpu_backend();
  std::function<void(ModelState&)> change = {};  ///< of the model, before it is wrapped
};

/// The toy network in training.
struct ToyRun {
  explicit ToyRun(const ddp::Options& options = tiny(), const ToyParts& parts = {})
      : net(parts.seed),
        backend(parts.backend),
        replicas(state(parts.change), *parts.transport, *backend, options) {}
  ModelState state(const std::function<void(ModelState&)>& change) {
    net.to(*backend);
    ModelState state = net.state();
    if (change) change(state);
    return state;
  }
  ddp::StepResult step(std::uint64_t step, const LossOf& loss_of = plain_loss) {
    return replicas.step(toy_batch(step, replicas),
                         [&](Tape& tape, const ToyShard& shard, const ddp::MicroBatch& piece) {
                           const ToyShard here = on_device(shard, *backend);
                           return loss_of(net, tape, {shard.index, piece.rows(here.x), piece.rows(here.y)});
                         });
  }
  /// A step, whose gradients must have the bits of the same shards run here alone.
  void check_step(std::uint64_t number, const LossOf& loss_of = plain_loss) {
    step(number, loss_of);
    check_gradients(net,
                    reference_on(*backend, number, replicas.shard_map().shards(),
                                 replicas.options().micro_batches, loss_of),
                    backend.get());
  }

  Net net;
  std::shared_ptr<kernels::Backend> backend;
  ddp::DataParallel replicas;
};

/// A statistic that nobody reads.
class ToyStatistic final : public Statistic {
 public:
  const std::string& name() const override { return name_; }
  std::int64_t elements() const override { return 3; }
  void apply(kernels::Backend&, const Tensor&) override {}

 private:
  std::string name_ = "sum";
};

/// "rank R: ", unless that is all ranks: with what an error of that rank begins on all.
inline std::string by(int rank) { return world().size() == 1 ? "" : "rank " + std::to_string(rank) + ": "; }

/// The text of the Error that `action` throws; all ranks must throw the same with this code.
template <class Action>
std::string same_error(ExitCode code, const Action& action) {
  std::string text = "nothing was thrown";
  try {
    action();
  } catch (const Error& error) {
    text = error.what();
    BOOST_TEST(static_cast<int>(error.code()) == static_cast<int>(code));
  }
  for (const std::string& other : world().all_gather_texts(text)) BOOST_TEST(other == text);
  return text;
}

}  // namespace lockstep::test
