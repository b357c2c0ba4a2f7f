// Elementwise operations, rows, activations and dropout.
#include "lockstep/ops/elementwise.h"
#include "kernels/cuda/twins.h"
#include "lockstep/kernels/backend.h"
#include "lockstep/ops/random.h"

namespace lockstep::test {
namespace {

BOOST_FIXTURE_TEST_SUITE(elementwise, Twins)

using kernels::Backend;
using ops::Activation;

constexpr std::int64_t counts[] = {0, 1, 3, 7, 8, 255, 4096, 100003};

BOOST_AUTO_TEST_CASE(sums_multiples_and_fills_are_those_of_the_cpu) {
  Draw draw;
  for (const std::int64_t count : counts) {
    const Operand a = activation(draw.normal({count})), b = activation(draw.normal({count})),
                  y = activation(unwritten({count}));
    compare("add", {a, b}, {y}, [](Backend& on, const Tensors& in, const Tensors& out) {
      on.run(ops::add(in[0], in[1], out[0]));
    });
    compare("scale", {a}, {y}, [](Backend& on, const Tensors& in, const Tensors& out) {
      on.run(ops::scale(in[0], -1.5f, out[0]));
    });
    compare("fill", {}, {y}, [](Backend& on, const Tensors&, const Tensors& out) { on.fill(out[0], 2.5); });
    compare("accumulate", {fixed(a.value)}, {fixed(b.value)},
            [](Backend& on, const Tensors& in, const Tensors& out) {
              on.run(ops::Accumulate{out[0], in[0]});
            },
            {plain_float});
  }
}

BOOST_AUTO_TEST_CASE(what_begins_between_packs_is_computed_all_the_same) {
  Draw draw;
  compare("add", {fixed(draw.normal({41})), fixed(draw.normal({41}))}, {fixed(draw.normal({41}))},
          [](Backend& on, const Tensors& in, const Tensors& out) {
            on.run(ops::add(in[0].rows(3, 40), in[1].rows(2, 39), out[0].rows(1, 38)));
          },
          {plain_float});
}

BOOST_AUTO_TEST_CASE(activations_and_their_slopes_are_those_of_the_cpu) {
  Draw draw;
  for (const Activation kind :
       {Activation::relu, Activation::silu, Activation::gelu_erf, Activation::gelu_tanh}) {
    for (const std::int64_t count : counts) {
      const Operand x = activation(draw.normal({count}, 4)), dy = activation(draw.normal({count})),
                    out = activation(unwritten({count}));
      compare("activation " + std::to_string(static_cast<int>(kind)), {x}, {out},
              [=](Backend& on, const Tensors& in, const Tensors& to) {
                on.run(ops::Activate{kind, in[0], to[0]});
              });
      compare("activation_backward " + std::to_string(static_cast<int>(kind)), {x, dy}, {out},
              [=](Backend& on, const Tensors& in, const Tensors& to) {
                on.run(ops::ActivateBackward{kind, in[0], in[1], to[0]});
              });
    }
  }
}

BOOST_AUTO_TEST_CASE(dropout_draws_the_cpus_numbers_in_every_layout) {
  Draw draw;
  const RandomKey key{.seed = 5, .purpose = purpose_of("dropout"), .step = 9, .shard = 2};
  const auto drop = [&](Backend& on, const Tensors& in, const Tensors& out) {
    on.run(ops::Dropout{in[0], 0.3f, key, out[0]});
  };
  for (const std::int64_t count : counts)
    compare("dropout", {activation(draw.normal({count}))}, {activation(unwritten({count}))}, drop);
  for (const Shape& images : {Shape{3, 5, 7, 2}, Shape{3, 16, 6, 2}, Shape{2, 12, 4, 4}})
    compare("dropout", {activation(draw.normal(images))}, {activation(unwritten(images))}, drop,
            {plain_float, plain_bf16, last_float, last_bf16});
}

BOOST_AUTO_TEST_CASE(random_numbers_are_those_of_the_cpu) {
  const RandomKey key{.seed = 5, .purpose = purpose_of("noise"), .step = 1ull << 40, .shard = 2};
  const Tensor sums = Tensor::empty({3}, DType::float64);
  for (int i = 0; i < 3; ++i) sums.data<double>()[i] = 0.5 * (i + 1);
  using enum ops::Distribution;
  for (const std::int64_t count : counts) {
    for (const auto& [distribution, dtype, parameter] : {std::tuple{normal, DType::float32, 0.0},
                                                         {integer, DType::int64, 1000.0},
                                                         {coin, DType::uint8, 0.3},
                                                         {weighted, DType::int64, 0.0}})
      compare("draw " + std::to_string(static_cast<int>(distribution)), {fixed(sums)},
              {fixed(Tensor::zeros({count}, dtype))},
              [&](Backend& on, const Tensors& in, const Tensors& out) {
                on.run(ops::Draw{distribution, key, parameter, distribution == weighted ? in[0] : Tensor{},
                                 out[0]});
              },
              {plain_float});
  }
}

BOOST_AUTO_TEST_CASE(rows_are_added_and_summed_as_on_the_cpu) {
  Draw draw;
  for (const auto& [rows, width] :
       {std::pair<int, int>{0, 4}, {1, 1}, {3, 7}, {64, 96}, {1000, 33}, {70, 2056}}) {
    const Operand x = activation(draw.normal({rows, width})), row = fixed(draw.normal({width}));
    compare("add_rows", {x, row}, {activation(unwritten({rows, width}))},
            [](Backend& on, const Tensors& in, const Tensors& out) {
              on.run(ops::add_rows(in[0], in[1], out[0]));
            });
    for (const bool accumulate : {false, true}) {
      compare("sum_rows", {x}, {fixed(accumulate ? draw.normal({width}) : unwritten({width}))},
              [=](Backend& on, const Tensors& in, const Tensors& out) {
                on.run(ops::SumRows{in[0], out[0], accumulate});
              });
    }
  }
}

BOOST_AUTO_TEST_CASE(inputs_of_other_shapes_and_types_are_repeated_as_on_the_cpu) {
  Draw draw;
  const std::array<Shape, 3> cases[] = {{{{3, 5, 7}, {7}, {3, 5, 7}}},
                                        {{{3, 5, 8}, {5, 1}, {3, 5, 8}}},
                                        {{{3, 1, 7}, {1, 5, 1}, {3, 5, 7}}},
                                        {{{3, 1, 16}, {1, 5, 1}, {3, 5, 16}}},
                                        {{{1}, {2000}, {2000}}},
                                        {{{}, {4, 3}, {4, 3}}},
                                        {{{2, 3000}, {3000}, {2, 3000}}},
                                        {{{}, {100003}, {100003}}},
                                        {{{2, 1, 4, 1}, {3, 1, 8}, {2, 3, 4, 8}}},
                                        {{{0, 4}, {4}, {0, 4}}},
                                        {{{1, 1}, {1}, {1, 1}}},
                                        {{{4, 1, 3, 1, 2, 1}, {2, 1, 5, 1, 8}, {4, 2, 3, 5, 2, 8}}}};
  for (const auto& [a, b, y] : cases) {
    const auto add = [](Backend& on, const Tensors& in, const Tensors& out) {
      on.run(ops::Map<ops::Sum>{{}, {in[0], in[1]}, out[0]});
    };
    compare("add " + to_string(b), {activation(draw.normal(a)), fixed(draw.normal(b))},
            {activation(unwritten(y))}, add);
    compare("add to float32 " + to_string(b), {activation(draw.normal(a)), activation(draw.normal(b))},
            {fixed(unwritten(y))}, add);
  }
  const Shape images{3, 5, 7, 2};
  compare("slope of squares",
          {activation(draw.normal(images)), activation(draw.normal(images)), fixed(scalar(0.5f))},
          {activation(unwritten(images))},
          [](Backend& on, const Tensors& in, const Tensors& out) {
            on.run(ops::squared_error_backward(in[0], in[1], in[2], out[0]));
          },
          {plain_float, plain_bf16, last_float, last_bf16});
}

BOOST_AUTO_TEST_CASE(copies_convert_and_read_back) {
  Draw draw;
  for (const std::int64_t count : counts) {
    const Tensor x = draw.normal({count}), half = gpu().empty({count}, DType::bfloat16),
                 single = gpu().empty({count}), back = unwritten({count});
    gpu().copy(x, half);
    gpu().copy(half, single);
    gpu().copy(single, back);
    BOOST_TEST((count == 0 || std::memcmp(x.raw(), back.raw(), x.bytes()) == 0));
    gpu().copy(half, back);
    BOOST_TEST((count == 0 || std::memcmp(x.raw(), back.raw(), x.bytes()) == 0));
  }
  const Tensor sums = gpu().empty({2}, DType::float64), rounded = gpu().empty({2}), back = unwritten({2});
  gpu().fill(sums, 0.1);
  gpu().copy(sums, rounded);
  gpu().copy(rounded, back);
  BOOST_TEST(back.data<float>()[1] == 0.1f);
  gpu().run(ops::Accumulate{rounded, sums});
  gpu().copy(rounded, back);
  BOOST_TEST(back.data<float>()[0] == 0.1f + 0.1f);
}

BOOST_AUTO_TEST_CASE(a_large_copy_to_the_device_may_be_followed_by_another_at_once) {
  constexpr std::int64_t count = 9 << 20;  // more than all pinned pieces together
  const Tensor x = Tensor::empty({count}, DType::int32), there = gpu().empty({count}, DType::int32),
               back = Tensor::empty({count}, DType::int32);
  for (std::int32_t round = 0; round < 3; ++round) {
    for (std::int64_t i = 0; i < count; ++i)
      x.data<std::int32_t>()[i] = static_cast<std::int32_t>(i) * 7 + round;
    gpu().copy(x, there);
  }
  gpu().copy(there, back);
  BOOST_TEST(std::memcmp(x.raw(), back.raw(), x.bytes()) == 0);
}

BOOST_AUTO_TEST_CASE(layouts_and_images_are_those_of_the_cpu) {
  Draw draw;
  for (const Shape& shape :
       {Shape{0, 3, 4, 4}, Shape{1, 1, 1, 1}, Shape{2, 3, 5, 7}, Shape{3, 40, 9, 9}, Shape{2, 64, 33, 31}}) {
    const Tensor x = draw.normal(shape);
    for (const Form& form : {last_float, last_bf16}) {
      const Tensor back = to_cpu(to_gpu(activation(x), form));
      BOOST_TEST((x.bytes() == 0 || std::memcmp(x.raw(), back.raw(), x.bytes()) == 0), to_string(shape));
    }
    const Tensor bytes = Tensor::empty(shape, DType::uint8);
    for (std::int64_t i = 0; i < bytes.numel(); ++i)
      bytes.data<std::uint8_t>()[i] = static_cast<std::uint8_t>(draw.below(256));
    compare("normalize_images",
            {fixed(bytes), fixed(draw.normal({shape[1]}, 0.01f)), fixed(draw.normal({shape[1]}))},
            {activation(unwritten(shape))},
            [](Backend& on, const Tensors& in, const Tensors& out) {
              on.run(ops::NormalizeImages{in[0], in[1], in[2], out[0]});
            },
            {plain_float, plain_bf16, last_float, last_bf16});
  }
}

/// Empty ones, and more than a pinned piece of 4 MiB holds.
BOOST_AUTO_TEST_CASE(one_read_brings_several_tensors) {
  Draw draw;
  Tensors wanted, found;
  std::vector<kernels::Transfer> transfers;
  for (const std::int64_t count : {3, 0, (1 << 20) - 5, 4097, 3 << 20, 1}) {
    wanted.push_back(draw.normal({count}));
    found.push_back(unwritten({count}));
    transfers.push_back({kernels::on_device(wanted.back(), gpu()), found.back()});
  }
  gpu().read(transfers);
  for (std::size_t i = 0; i < wanted.size(); ++i)
    BOOST_TEST(std::memcmp(found[i].raw(), wanted[i].raw(), wanted[i].bytes()) == 0);
  BOOST_CHECK_THROW(gpu().read(std::vector<kernels::Transfer>{{wanted[0], found[0]}}), UsageError);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace
}  // namespace lockstep::test
