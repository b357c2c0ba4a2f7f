// On a GPU: what comes between steps, next to them and after them. Models wrapped again, parts of a world,
// hooks, statistics, passes outside steps, parts computed again.
#include <boost/test/unit_test.hpp>
#include <cmath>
#include <memory>

#include "ddp/gpu.h"
#include "ddp/plain_sums.h"
#include "ddp/training.h"
#include "ddp/wide.h"
#include "lockstep/autograd/recompute.h"
#include "lockstep/ddp/collectives.h"
#include "lockstep/ops/elementwise.h"
#include "support/context.h"
#include "support/ranks.h"

namespace lockstep::test {
namespace {

BOOST_AUTO_TEST_SUITE(lifetime_on_a_gpu, *ranks(1, 2, 3, 4))

constexpr int shards = 6;

BOOST_AUTO_TEST_CASE(two_models_take_steps_side_by_side) {
  Gpu gpu;
  GpuRun one(gpu, {.bucket_mb = tiny_mb, .shards = shards}), other(gpu, {.shards = shards + 1});
  for (std::uint64_t step = 0; step < 3; ++step) {
    one.step(step);
    other.check_step(step + 7);
    check_gradients(one.net, reference_on(*one.backend, step, shards), one.backend.get());
  }
}

BOOST_AUTO_TEST_CASE(the_halves_of_a_split_take_steps_of_their_own) {
  Gpu gpu;
  const int half = world().rank() % 2;
  const auto ranks = world().split(half, world().rank());
  {
    Gpu part(true, *ranks);
    GpuRun run(part, {.bucket_mb = tiny_mb, .shards = shards});
    for (int step = 0; step < 3; ++step) run.check_step(static_cast<std::uint64_t>(10 * half + step));
  }
  GpuRun together(gpu, {.shards = shards});
  together.check_step(0);
}

BOOST_AUTO_TEST_CASE(collectives_take_tensors_that_the_gpu_is_still_writing) {
  const int rank = world().rank(), size = world().size();
  for (const bool reproducible : {true, false}) {
    auto gpu = kernels::make_cuda_backend(own_gpu());
    auto sums = comm::make_nccl_transport(
        world(), {.device = own_gpu(), .stream = gpu->stream(), .reproducible = reproducible});
    TestContext context(std::move(gpu), std::move(sums));
    kernels::Backend& backend = context.backend();
    const auto filled = [&](const Shape& shape, double value, DType dtype = DType::float32) {
      const Tensor tensor = backend.empty(shape, dtype);
      backend.fill(tensor, value);
      return tensor;
    };
    const auto check = [&](const Tensor& tensor, const auto& wanted_of_row) {
      BOOST_TEST_REQUIRE((tensor.device() == backend.device()));
      const Tensor found = kernels::on_cpu(backend.in_type(tensor, DType::float32), &backend);
      const std::int64_t width = found.numel() / found.size(0);
      for (std::int64_t i = 0; i < found.numel(); ++i)
        BOOST_TEST_REQUIRE(found.data<float>()[i] == static_cast<float>(wanted_of_row(i / width)));
    };
    const auto all = [](double value) { return [=](std::int64_t) { return value; }; };
    const double sum = size * (size + 1) / 2.0;

    for (const DType dtype : {DType::float32, DType::float64, DType::bfloat16, DType::int64}) {
      BOOST_TEST_CONTEXT(to_string(dtype) << (reproducible ? ", reproducible" : "")) {
        const auto reduced = [&](ReduceOp op) {
          const Tensor tensor = filled({1000}, rank + 1, dtype);
          all_reduce(context, tensor, op);
          return tensor;
        };
        check(reduced(ReduceOp::sum), all(sum));
        check(reduced(ReduceOp::min), all(1));
        check(reduced(ReduceOp::max), all(size));
        if (is_floating(dtype)) check(reduced(ReduceOp::mean), all((size + 1) / 2.0));
      }
    }
    const int last = size - 1;
    const Tensor of_root = filled({4, 3}, rank + 1);
    reduce(context, of_root, last);
    check(of_root, all(rank == last ? sum : rank + 1));
    const Tensor sent = filled({5}, rank);
    broadcast(context, sent, last);
    check(sent, all(last));
    check(all_gather(context, filled({2, 3}, rank)), [](std::int64_t row) { return row / 2; });
    const Tensor gathered = gather(context, filled({2, 3}, rank), last);
    BOOST_TEST(bool(gathered) == (rank == last));
    if (gathered) check(gathered, [](std::int64_t row) { return row / 2; });
    check(scatter(context, filled({2 * size, 3}, rank), last), all(last));
  }
}

/// A step and a plain update.
void train(Wide& model, ddp::DataParallel& replicas, optim::Optimizer& sgd, std::uint64_t step) {
  replicas.step(toy_batch(step, replicas),
                [&](Tape& tape, const ToyShard& shard, const ddp::MicroBatch& piece) {
                  return model.loss(tape, on_device(shard, tape.backend()), piece);
                });
  sgd.step();
}

BOOST_AUTO_TEST_CASE(a_model_is_wrapped_again_while_its_parameters_are_on_their_way) {
  Gpu gpu;
  Wide straight, wrapped;
  for (Wide* const model : {&straight, &wrapped}) model->to(*gpu.backend);
  {
    ddp::DataParallel replicas(straight.state(), *gpu.sums, *gpu.backend, wide_options(false));
    optim::Sgd sgd(replicas, {.lr = 0.05});
    for (std::uint64_t step = 0; step < 4; ++step) train(straight, replicas, sgd, step);
  }
  std::unique_ptr<ddp::DataParallel> before;
  for (std::uint64_t step = 0; step < 4; ++step) {
    auto replicas = std::make_unique<ddp::DataParallel>(wrapped.state(), *gpu.sums, *gpu.backend,
                                                        wide_options(step % 2 == 0));
    before = std::move(replicas);  // the one before goes, after another has taken over
    optim::Sgd sgd(*before, {.lr = 0.05});
    train(wrapped, *before, sgd, step);
  }
  BOOST_TEST((wrapped.values(gpu.backend.get()) == straight.values(gpu.backend.get())));
}

BOOST_AUTO_TEST_CASE(a_failed_step_leaves_a_sharded_optimizer_as_it_was) {
  Gpu gpu;
  WideRun whole(wide_options(false), Algorithm::adamw, *gpu.sums, gpu.backend),
      parts(wide_options(true), Algorithm::adamw, *gpu.sums, gpu.backend);
  for (std::uint64_t step = 0; step < 4; ++step) {
    BOOST_TEST(whole.step(step) == parts.step(step));
    same_error(ExitCode::data, [&] {
      parts.replicas.step(toy_batch(9, parts.replicas),
                          [&](Tape& tape, const ToyShard& shard, const ddp::MicroBatch& piece) {
                            if (shard.index == 3) throw DataError("sample 3 cannot be read");
                            return parts.model.loss(tape, on_device(shard, *gpu.backend), piece);
                          });
    });
  }
  check_same(whole, parts);
}

BOOST_AUTO_TEST_CASE(an_error_in_the_middle_of_a_backward_is_thrown_by_all_and_the_next_step_works) {
  Gpu gpu;
  GpuRun run(gpu, {.bucket_mb = tiny_mb, .shards = shards});
  for (const int bad : {0, shards - 1}) {
    const std::string text = same_error(ExitCode::training, [&] {
      run.step(0, watched([bad](int shard) {
                 if (shard == bad) throw TrainingError("the backward of in.weight broke");
               }));
    });
    BOOST_TEST(contains(text, "the backward of in.weight broke"));
    run.check_step(static_cast<std::uint64_t>(bad + 1));
  }
}

BOOST_AUTO_TEST_CASE(passes_between_steps_change_no_gradient) {
  Gpu gpu;
  GpuRun run(gpu, {.shards = shards});
  for (std::uint64_t step = 0; step < 2; ++step) {
    run.step(step);
    Tape& tape = run.replicas.tape();
    tape.begin({.training = false, .record = false});
    const ToyShard shard = on_device(toy_shard(9, world().rank()), *run.backend);
    BOOST_TEST(run.net.loss(tape, shard.x, shard.y).read().count == 24.0);
    check_gradients(run.net, reference_on(*run.backend, step, shards), run.backend.get());
  }
}

BOOST_AUTO_TEST_CASE(parts_that_are_computed_again_have_the_same_bits) {
  Gpu gpu;
  GpuRun run(gpu, {.bucket_mb = tiny_mb, .shards = shards, .micro_batches = 2});
  for (std::uint64_t step = 0; step < 3; ++step) {
    run.step(step, [](Net& net, Tape& tape, const ToyShard& shard) {
      const Var x =
          relu(linear(tape.constant(shard.x), tape.parameter(net.params[0]), tape.parameter(net.params[1])));
      const Var h = recomputed(tape, [&net, &tape, x] {
        const Var once = relu(linear(x, tape.parameter(net.params[2])));
        return once + linear(once, tape.parameter(net.params[2]));
      });
      return mse(
          linear(net.with_nothing(tape, h), tape.parameter(net.params[3]), tape.parameter(net.params[4])),
          shard.y);
    });
    check_gradients(run.net, reference_on(*run.backend, step, shards, 2), run.backend.get());
  }
}

BOOST_AUTO_TEST_CASE(a_hook_that_sums_plainly_changes_no_bit) {
  Gpu gpu;
  ddp::Options options = wide_options(true);
  options.hook = std::make_shared<PlainSums>();
  WideRun whole(wide_options(false), Algorithm::sgd, *gpu.sums, gpu.backend),
      hooked(options, Algorithm::sgd, *gpu.sums, gpu.backend);
  for (std::uint64_t step = 0; step < 4; ++step) BOOST_TEST(whole.step(step) == hooked.step(step));
  check_same(whole, hooked);
}

/// Not inlined, lest a compiler fuse its product with the sums that are compared.
[[gnu::noinline]] double term(int shard) { return std::sin(1.0 + shard) * std::pow(10.0, shard % 5); }

BOOST_AUTO_TEST_CASE(statistics_are_summed_over_shards_along_the_tree) {
  class Sum final : public Statistic {
   public:
    const std::string& name() const override { return name_; }
    std::int64_t elements() const override { return 3; }
    void apply(kernels::Backend& backend, const Tensor& sum) override {
      const Tensor here = kernels::on_cpu(sum, &backend);
      totals.assign(here.data<double>(), here.data<double>() + here.numel());
    }
    std::vector<double> totals;

   private:
    std::string name_ = "sum";
  } sum;
  for (const int count : {4, 7, 12}) {
    Gpu gpu;
    Net net;
    net.to(*gpu.backend);
    ModelState state = net.state();
    state.statistics = {&sum};
    ddp::DataParallel replicas(state, *gpu.sums, *gpu.backend, {.shards = count});
    for (std::uint64_t step = 0; step < 2; ++step) {
      replicas.step(toy_batch(step, replicas), [&](Tape& tape, const ToyShard& shard) {
        for (const int call : {1, 2}) {  // a module that is called twice
          const GradientView view = tape.pass().sink->gradient_view(sum);
          const Tensor addend = gpu.backend->empty(view.memory.shape(), DType::float64);
          gpu.backend->fill(addend, term(call * shard.index));
          if (!view.accumulate) gpu.backend->fill(view.memory, 0);
          gpu.backend->run(ops::Accumulate{view.memory, addend});
          tape.pass().sink->contributed(sum);
        }
        return plain_loss(net, tape, on_device(shard, *gpu.backend));
      });
      const double wanted = comm::fold_tree(
          {0, count}, [&](int shard) { return term(shard) + term(2 * shard); },
          [](double a, double b) { return a + b; });
      for (const double total : sum.totals) BOOST_TEST(total == wanted);
      check_gradients(net, reference_on(*gpu.backend, step, count), gpu.backend.get());
    }
  }
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace
}  // namespace lockstep::test
