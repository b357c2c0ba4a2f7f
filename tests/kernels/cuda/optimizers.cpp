// Optimizer steps of many tensors, averages, and the norm's blocks.
#include "kernels/cuda/twins.h"

namespace lockstep::test {
namespace {

BOOST_FIXTURE_TEST_SUITE(optimizers, Twins)

using kernels::AdamWUpdate;
using kernels::Backend;
using kernels::EmaTarget;
using kernels::SgdUpdate;

// More tensors than one launch takes, more averages than one pass takes, and views that begin between packs.
constexpr std::int64_t sizes[] = {1, 3, 4096, 0, 4097, 20011, 64, 12290};

BOOST_AUTO_TEST_CASE(adamw_over_steps_is_that_of_the_cpu) {
  Draw draw;
  for (const std::size_t averages : {0, 1, 6}) {
    std::vector<Operand> gradients, state;
    for (int i = 0; i < 130; ++i) {
      const std::int64_t count = sizes[i % 8] + 1;  // the first is left out
      gradients.push_back(fixed(draw.normal({count})));
      state.push_back(fixed(draw.normal({count})));
      state.push_back(fixed(draw.normal({count}, 0.1f)));
      state.push_back(fixed(draw.positive({count})));
      for (std::size_t a = 0; a < averages; ++a) state.push_back(fixed(draw.normal({count})));
    }
    compare("adamw", gradients, state,
            [=](Backend& on, const Tensors& in, const Tensors& out) {
              for (std::int64_t step = 1; step <= 2; ++step) {
                std::vector<AdamWUpdate> updates;
                std::vector<std::vector<EmaTarget>> targets(in.size());
                for (std::size_t i = 0; i < in.size(); ++i) {
                  const auto part = [&](const Tensor& t) { return t.rows(i % 3 ? 1 : 0, t.size(0)); };
                  const std::size_t at = i * (3 + averages);
                  for (std::size_t a = 0; a < averages; ++a)
                    targets[i].push_back({part(out[at + 3 + a]), 0.9 + 0.01 * static_cast<double>(a)});
                  updates.push_back({.step = {.lr = 1e-2,
                                              .weight_decay = i % 2 ? 0.05 : 0.0,
                                              .step = step,
                                              .gradient_factor = 0.5f},
                                     .value = part(out[at]),
                                     .gradient = part(in[i]),
                                     .exp_avg = part(out[at + 1]),
                                     .exp_avg_sq = part(out[at + 2]),
                                     .ema = targets[i]});
                }
                on.adamw(updates);
              }
            },
            {plain_float});
  }
}

BOOST_AUTO_TEST_CASE(sgd_over_steps_is_that_of_the_cpu) {
  Draw draw;
  for (const double momentum : {0.0, 0.9}) {
    for (const bool nesterov : {false, true}) {
      std::vector<Operand> gradients, state;
      for (const std::int64_t count : sizes) {
        gradients.push_back(fixed(draw.normal({count})));
        state.push_back(fixed(draw.normal({count})));
        state.push_back(fixed(unwritten({count})));  // not read at the first step
        state.push_back(fixed(draw.normal({count})));
      }
      compare("sgd", gradients, state,
              [=](Backend& on, const Tensors& in, const Tensors& out) {
                for (const bool first : {true, false}) {
                  std::vector<SgdUpdate> updates;
                  std::vector<EmaTarget> targets;
                  for (std::size_t i = 0; i < in.size(); ++i) targets.push_back({out[3 * i + 2], 0.99});
                  for (std::size_t i = 0; i < in.size(); ++i) {
                    updates.push_back({.step = {.lr = 0.1,
                                                .momentum = momentum,
                                                .weight_decay = 0.01,
                                                .nesterov = nesterov && momentum > 0,
                                                .first = first,
                                                .gradient_factor = 2},
                                       .value = out[3 * i],
                                       .gradient = in[i],
                                       .momentum_buffer = momentum > 0 ? out[3 * i + 1] : Tensor(),
                                       .ema = {&targets[i], 1}});
                  }
                  on.sgd(updates);
                }
              },
              {plain_float});
    }
  }
}

BOOST_AUTO_TEST_CASE(averages_and_block_sums_are_those_of_the_cpu) {
  Draw draw;
  for (const std::int64_t count : sizes) {
    compare("ema", {fixed(draw.normal({count}))}, {fixed(draw.normal({count}))},
            [](Backend& on, const Tensors& in, const Tensors& out) {
              on.ema(in[0], {out[0], 0.9999});
            },
            {plain_float});
    compare(
        "block_sums_of_squares", {fixed(draw.normal({count}))},
        {fixed(unwritten({(count + 4095) / 4096}, DType::float64))},
        [](Backend& on, const Tensors& in, const Tensors& out) { on.block_sums_of_squares(in[0], out[0]); },
        {plain_float});
  }
}

BOOST_AUTO_TEST_CASE(memory_goes_round_and_outlives_its_backend) {
  Tensor survivor;
  {
    const auto backend = kernels::make_cuda_backend(0);
    for (int i = 0; i < 3; ++i) backend->fill(backend->empty({1 << 20}), i);
    const std::size_t reserved = backend->reserved_bytes();
    for (int i = 0; i < 100; ++i) backend->fill(backend->empty({1 << 20}), i);
    BOOST_TEST(backend->reserved_bytes() == reserved);
    survivor = backend->empty({16});
    backend->fill(survivor, 3);
  }
  BOOST_TEST(survivor.numel() == 16);
}

BOOST_AUTO_TEST_CASE(wrong_arguments_are_refused) {
  const Tensor here = gpu().empty({4}), there = Tensor::zeros({4});
  BOOST_CHECK_THROW(gpu().add(here, here, there), UsageError);
  BOOST_CHECK_THROW(gpu().add(here, here, gpu().empty({5})), UsageError);
  BOOST_CHECK_THROW(gpu().add(here, here, gpu().empty({4}, DType::bfloat16)), UsageError);
  BOOST_CHECK_THROW(gpu().accumulate(gpu().empty({4}, DType::float64), here), UsageError);
  BOOST_CHECK_THROW(
      gpu().to_layout(gpu().empty({1, 16, 2, 2}), gpu().empty({1, 16, 2, 2}, DType::float32, 8)), UsageError);
  BOOST_CHECK_THROW(kernels::make_cuda_backend(99), UsageError);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace
}  // namespace lockstep::test
