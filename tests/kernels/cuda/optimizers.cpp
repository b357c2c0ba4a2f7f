// Optimizer steps of many tensors, averages, and the norm's blocks.
#include "kernels/cuda/twins.h"
#include "lockstep/ops/elementwise.h"
#include "lockstep/ops/update.h"

namespace lockstep::test {
namespace {

BOOST_FIXTURE_TEST_SUITE(optimizers, Twins)

using kernels::Backend;
using ops::EmaTarget;

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
                std::vector<ops::ParameterUpdate<ops::AdamW>> updates;
                std::vector<std::vector<EmaTarget>> targets(in.size());
                for (std::size_t i = 0; i < in.size(); ++i) {
                  const auto part = [&](const Tensor& t) { return t.rows(i % 3 ? 1 : 0, t.size(0)); };
                  const std::size_t at = i * (3 + averages);
                  for (std::size_t a = 0; a < averages; ++a)
                    targets[i].push_back({part(out[at + 3 + a]), 0.9 + 0.01 * static_cast<double>(a)});
                  updates.push_back({.rule = ops::AdamW::of({.lr = 1e-2,
                                                             .weight_decay = i % 2 ? 0.05 : 0.0,
                                                             .step = step,
                                                             .gradient_factor = 0.5f}),
                                     .value = part(out[at]),
                                     .gradient = part(in[i]),
                                     .state = {part(out[at + 1]), part(out[at + 2])},
                                     .ema = targets[i]});
                }
                on.run(ops::Update<ops::AdamW>{updates});
              }
            },
            {plain_float});
  }
}

template <class Rule>
void compare_sgd(Twins& twins, const Rule& rule) {
  Draw draw;
  std::vector<Operand> gradients, state;
  for (const std::int64_t count : sizes) {
    gradients.push_back(fixed(draw.normal({count})));
    state.push_back(fixed(draw.normal({count})));
    state.push_back(fixed(draw.normal({count})));
    state.push_back(fixed(draw.normal({count})));
  }
  twins.compare(Rule::name, gradients, state,
                [=](Backend& on, const Tensors& in, const Tensors& out) {
                  for (int step = 0; step < 2; ++step) {
                    std::vector<ops::ParameterUpdate<Rule>> updates;
                    std::vector<EmaTarget> targets;
                    for (std::size_t i = 0; i < in.size(); ++i) targets.push_back({out[3 * i + 2], 0.99});
                    for (std::size_t i = 0; i < in.size(); ++i) {
                      ops::ParameterUpdate<Rule> update{rule, out[3 * i], in[i], {}, {&targets[i], 1}};
                      update.state.fill(out[3 * i + 1]);
                      updates.push_back(update);
                    }
                    on.run(ops::Update<Rule>{updates});
                  }
                },
                {plain_float});
}

BOOST_AUTO_TEST_CASE(sgd_over_steps_is_that_of_the_cpu) {
  compare_sgd(*this, ops::Sgd{.rate = 0.1f, .decay = 0.01f, .gradient_factor = 2});
  compare_sgd(*this,
              ops::SgdMomentum<false>{.rate = 0.1f, .momentum = 0.9f, .decay = 0.01f, .gradient_factor = 2});
  compare_sgd(*this,
              ops::SgdMomentum<true>{.rate = 0.1f, .momentum = 0.9f, .decay = 0.01f, .gradient_factor = 2});
  compare_sgd(*this, ops::Lion{.rate = 0.1f,
                               .decay = 0.99f,
                               .beta1 = 0.9f,
                               .fresh1 = 0.1f,
                               .beta2 = 0.99f,
                               .fresh2 = 0.01f,
                               .gradient_factor = 2});
}

BOOST_AUTO_TEST_CASE(averages_and_block_sums_are_those_of_the_cpu) {
  Draw draw;
  for (const std::int64_t count : sizes) {
    compare("ema", {fixed(draw.normal({count}))}, {fixed(draw.normal({count}))},
            [](Backend& on, const Tensors& in, const Tensors& out) {
              on.run(ops::Ema{in[0], out[0], 0.9999});
            },
            {plain_float});
    compare("block_sums_of_squares", {fixed(draw.normal({count}))},
            {fixed(unwritten({(count + 4095) / 4096}, DType::float64))},
            [](Backend& on, const Tensors& in, const Tensors& out) {
              const ops::BlockSumsOfSquares::Part part{in[0], out[0]};
              on.run(ops::BlockSumsOfSquares{{&part, 1}});
            },
            {plain_float});
  }
}

BOOST_AUTO_TEST_CASE(block_sums_of_more_tensors_than_a_launch_takes_are_those_of_the_cpu) {
  Draw draw;
  std::vector<Operand> tensors, blocks;
  for (int i = 0; i < 800; ++i) {
    const std::int64_t count = i < 16 ? sizes[i % 8] : 1 + i % 7;  // none of 0, which takes no place
    tensors.push_back(fixed(draw.normal({count})));
    blocks.push_back(fixed(unwritten({(count + 4095) / 4096}, DType::float64)));
  }
  compare("block_sums_of_squares", tensors, blocks,
          [](Backend& on, const Tensors& in, const Tensors& out) {
            std::vector<ops::BlockSumsOfSquares::Part> parts;
            for (std::size_t i = 0; i < in.size(); ++i) parts.push_back({in[i], out[i]});
            on.run(ops::BlockSumsOfSquares{parts});
          },
          {plain_float});
}

/// All bits of new values are those of a conversion, in packs and outside of them.
template <class Rule>
void check_rounded_values(Twins& twins, const Rule& rule) {
  Draw draw;
  for (Backend* const on : {&twins.cpu(), &twins.gpu()}) {
    for (const std::int64_t begin : {0, 1, 2}) {
      const auto part = [&](DType dtype) {
        const Tensor whole = on->empty({9001}, dtype);
        on->fill(whole, 0.1);
        return whole.rows(begin, 9001);
      };
      const Tensor value = part(DType::float32), gradient = part(DType::float32),
                   rounded = part(DType::bfloat16);
      on->copy(kernels::on_device(draw.normal({9001 - begin}), *on), gradient);
      ops::ParameterUpdate<Rule> update{.rule = rule, .value = value, .gradient = gradient, .state = {}};
      update.state.fill(part(DType::float32));
      update.rounded = rounded;
      on->run(ops::Update<Rule>{{&update, 1}});
      const Tensor wanted = on->in_type(value, DType::bfloat16);
      const auto bits = [&](const Tensor& tensor) {
        const Tensor here = kernels::on_cpu(tensor, on);
        const auto* const first = static_cast<const std::uint16_t*>(here.raw());
        return std::vector<std::uint16_t>(first, first + here.numel());
      };
      BOOST_TEST((bits(rounded) == bits(wanted)), Rule::name << " from element " << begin);
    }
  }
}

BOOST_AUTO_TEST_CASE(a_step_also_rounds_its_values_as_a_conversion_would) {
  check_rounded_values(*this, ops::AdamW::of({.lr = 1e-2}));
  check_rounded_values(*this, ops::Sgd{.rate = 0.1f, .decay = 0.01f, .gradient_factor = 2});
  const Tensor float32 = gpu().empty({4});
  ops::ParameterUpdate<ops::Sgd> update{.rule = {}, .value = float32, .gradient = float32, .state = {}};
  for (const Tensor& wrong : {gpu().empty({4}), gpu().empty({5}, DType::bfloat16)}) {
    update.rounded = wrong;
    BOOST_CHECK_THROW(gpu().run(ops::Update<ops::Sgd>{{&update, 1}}), UsageError);
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
  BOOST_CHECK_THROW(gpu().run(ops::add(here, here, there)), UsageError);
  BOOST_CHECK_THROW(gpu().run(ops::add(here, here, gpu().empty({5}))), UsageError);
  BOOST_CHECK_THROW(gpu().run(ops::add(here, here, gpu().empty({4}, DType::int64))), UsageError);
  BOOST_CHECK_THROW(gpu().run(ops::Accumulate{gpu().empty({4}, DType::float64), here}), UsageError);
  BOOST_CHECK_THROW(kernels::make_cuda_backend(99), UsageError);
}

BOOST_AUTO_TEST_CASE(only_plain_activations_and_those_with_their_channels_last_are_taken) {
  const Tensor plain = gpu().empty({1, 16, 2, 2}), blocked = gpu().empty({1, 16, 2, 2}, DType::float32, 8);
  const auto is_said = [](const UsageError& error) {
    return std::string(error.what())
        .ends_with("is stored in channel blocks of 8; only 1 and 16 are supported");
  };
  BOOST_CHECK_EXCEPTION(gpu().run(ops::ToLayout{plain, blocked}), UsageError, is_said);
  BOOST_CHECK_EXCEPTION(gpu().fill(blocked, 0), UsageError, is_said);
  BOOST_CHECK_EXCEPTION(gpu().run(ops::scale(blocked, 2, blocked)), UsageError, is_said);
}

/// y = x, another way at every step.
struct Moody {
  static constexpr const char* name = "moody";
  Tensor x, y;
  static void operands(auto& op, auto&& each) { each(ops::in("x", op.x), ops::out("y", op.y)); }
  const char* changes_between_runs() const { return "moods change"; }
};

void moody(Backend& backend, const Moody& op) { backend.copy(op.x, op.y); }

BOOST_AUTO_TEST_CASE(an_operation_that_changes_between_runs_is_refused_while_recording_and_only_then) {
  gpu().enter<&moody>();
  const Tensor x = to_gpu(fixed(Draw().normal({8}))), y = gpu().empty({8});
  const auto capture = gpu().capture_graph(0);
  BOOST_CHECK_EXCEPTION(gpu().run(Moody{x, y}), UsageError, [](const UsageError& error) {
    return std::string(error.what()) == "moods change, which a graph cannot repeat";
  });
  (void)capture->finish();
  BOOST_CHECK_NO_THROW(gpu().run(Moody{x, y}));
}

BOOST_AUTO_TEST_CASE(a_function_for_float32_alone_is_not_given_bf16) {
  gpu().enter<&moody>(kernels::Computes::in_float32);
  const Tensor x = gpu().empty({8}, DType::bfloat16);
  BOOST_CHECK_THROW(gpu().run(Moody{x, x}), UsageError);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace
}  // namespace lockstep::test
