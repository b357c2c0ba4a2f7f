// The built-in models take part in a step with no samples at all, on any rank.
#include <boost/test/unit_test.hpp>
#include <memory>

#include "ddp/training.h"
#include "support/model_maker.h"
#include "support/ranks.h"

namespace lockstep::test {
namespace {
BOOST_AUTO_TEST_SUITE(empty_models, *ranks(1, 2, 3, 4))

struct Case {
  ModelMaker model;
  std::vector<std::int64_t> x_extents, y_extents;  ///< of one sample
  std::int64_t classes;
  bool tokens = false;  ///< x is int64
};

constexpr const char* synchronized = "resnet, synchronized";

ModelMaker resnet(const char* name, const char* batch_norm) {
  return ModelMaker::of<models::Resnet>(
      name, {.blocks = {1, 1}, .width = 8, .in_channels = 3, .classes = 3, .batch_norm = batch_norm});
}

std::vector<Case> cases() {
  return {{ModelMaker::of<models::Mlp>("mlp", {.sizes = {12, 16, 3}, .dropout = 0.1}), {3, 2, 2}, {}, 3},
          {resnet("resnet", "plain"), {3, 8, 8}, {}, 3},
          {resnet(synchronized, "sync"), {3, 8, 8}, {}, 3},
          {ModelMaker::of<models::Gpt>(
               "gpt", {.layers = 1, .heads = 2, .channels = 16, .context = 6, .vocab = 11, .dropout = 0.1}),
           {6},
           {6},
           11,
           true}};
}

Tensor with_rows(std::int64_t rows, const std::vector<std::int64_t>& of_sample, DType dtype) {
  std::vector<std::int64_t> extents{rows};
  extents.insert(extents.end(), of_sample.begin(), of_sample.end());
  return Tensor::zeros(Shape(std::span<const std::int64_t>(extents)), dtype);
}

void fill_classes(const Tensor& tensor, std::int64_t classes) {
  for (std::int64_t i = 0; i < tensor.numel(); ++i) tensor.data<std::int64_t>()[i] = (i * i + 1) % classes;
}

ToyShard samples_of(const Case& of, int index, std::int64_t rows) {
  ToyShard made{index, with_rows(rows, of.x_extents, of.tokens ? DType::int64 : DType::float32),
                with_rows(rows, of.y_extents, DType::int64)};
  if (of.tokens) {
    fill_classes(made.x, of.classes);
  } else {
    fill_normal(made.x, {.seed = 41});
  }
  fill_classes(made.y, of.classes);
  return made;
}

struct Run {
  Run(const Case& of, comm::GradientTransport& transport, int shards)
      : model(of.model.make(5)),
        replicas(*model, transport, *backend, {.bucket_mb = 0.001, .shards = shards, .seed = 3}) {}
  ddp::StepResult step(const ToyBatch& batch) {
    return replicas.step(batch, [&](Tape& tape, const ToyShard& shard) {
      return cross_entropy(model->forward(tape, shard.x), shard.y);
    });
  }
  std::unique_ptr<models::Model> model;
  std::unique_ptr<kernels::Backend> backend = kernels::make_cpu_backend();
  ddp::DataParallel replicas;
};

BOOST_AUTO_TEST_CASE(one_rank_with_samples_among_ranks_without_is_one_process) {
  for (const Case& of : cases()) {
    BOOST_TEST_CONTEXT(of.model.name) {
      const auto alone = comm::make_self_communicator();
      // Shard 0 has the samples, so that it draws the same random numbers in both.
      Run many(of, world(), world().size()), one(of, *alone, 1);
      for (std::uint64_t step = 0; step < 2; ++step) {
        const int rank = world().rank();
        const ddp::StepResult found = many.step({step, {samples_of(of, rank, rank == 0 ? 4 : 0)}});
        const ddp::StepResult wanted = one.step({step, {samples_of(of, 0, 4)}});
        BOOST_TEST(found.count == wanted.count);
        BOOST_TEST(found.loss_sum == wanted.loss_sum, boost::test_tools::tolerance(1e-6));
        const auto params = many.replicas.params(), others = one.replicas.params();
        for (std::size_t p = 0; p < params.size(); ++p)
          check_close(elements(params[p]->gradient), elements(others[p]->gradient), params[p]->name, 1e-5f);
      }
      check_close_state(*many.model, *one.model, 1e-5f);
    }
  }
}

BOOST_AUTO_TEST_CASE(a_step_without_samples_on_any_rank_leaves_the_model_as_it_was) {
  for (const Case& of : cases()) {
    BOOST_TEST_CONTEXT(of.model.name) {
      Run run(of, world(), world().size());
      const auto before = of.model.make(5);
      BOOST_TEST(run.step({0, {samples_of(of, world().rank(), 0)}}).count == 0);
      check_same_state(*run.model, *before);
      for (const Param* const param : run.replicas.params()) {
        BOOST_TEST(bool(param->gradient), param->name);
        for (const float value : elements(param->gradient)) BOOST_TEST_REQUIRE(value == 0, param->name);
      }
    }
  }
}

BOOST_AUTO_TEST_SUITE_END()
}  // namespace
}  // namespace lockstep::test
