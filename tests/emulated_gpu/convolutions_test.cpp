// Convolutions by cuDNN's graphs and without them, in parts, and how many kernels they launch.
#include <array>
#include <cstring>
#include <vector>

#include "emulated_gpu/runtime.h"
#include "kernels/cuda/twins.h"
#include "lockstep/autograd/tape.h"
#include "lockstep/ops/convolution.h"

namespace lockstep::test {
namespace {

using emulated_gpu::counts;
using emulated_gpu::faults;
using kernels::Backend;
using ops::ConvolutionGeometry;

/// A backend whose plans are made under the faults of a case.
struct ConvolutionTwins : emulated_gpu::WithFaults, Twins {};

BOOST_FIXTURE_TEST_SUITE(convolutions_test, ConvolutionTwins)

/// images: of one part.
struct Sizes {
  std::int64_t images, in, size, out, kernel;
  ConvolutionGeometry geometry;
};
/// The bytes of one part's images are no multiple of 16 in the second and the last.
constexpr Sizes all_sizes[] = {{2, 16, 8, 32, 3, {1, 1}},
                               {1, 3, 5, 7, 3, {1, 1}},
                               {2, 8, 9, 8, 3, {2, 1, 4, 2}},
                               {2, 16, 6, 8, 1, {2}},
                               {1, 3, 11, 5, 7, {2, 3}}};

/// The operands of one convolution of several parts, channels last.
struct Problem {
  Problem(ConvolutionTwins& twins, const Sizes& s, int parts, DType dtype)
      : gpu(twins.gpu()), geometry(s.geometry) {
    Draw draw;
    const auto extent = [&] {
      return ops::convolved_extent("test", s.size, s.kernel, geometry.stride.height, geometry.padding.height,
                                   geometry.dilation.height);
    };
    const Form form{dtype, true};
    const std::int64_t all = parts * s.images;
    x = twins.to_gpu(activation(draw.normal({all, s.in, s.size, s.size})), form);
    dy = twins.to_gpu(activation(draw.normal({all, s.out, extent(), extent()})), form);
    weight = twins.to_gpu(fixed(draw.normal({s.out, s.in / geometry.groups, s.kernel, s.kernel}, 0.2f)));
    bias = twins.to_gpu(fixed(draw.normal({s.out})));
    const auto like = [&](const Tensor& tensor) {
      return gpu.empty(tensor.shape(), dtype, tensor.channel_block());
    };
    y = like(dy);
    plain_y = like(dy);
    sum_y = like(dy);
    dx = like(x);
    dweight = twins.to_gpu(fixed(draw.normal({parts, s.out, s.in / geometry.groups, s.kernel, s.kernel})));
    sum = gpu.empty(dweight.shape());
    gpu.copy(dweight, sum);
  }

  /// Calls run(operation) for each.
  template <class Run>
  void each(const Run& run) const {
    run(ops::Convolution{x, weight, bias, geometry, y});
    run(ops::Convolution{x, weight, {}, geometry, plain_y});
    run(ops::Convolution{x, weight, bias, geometry, sum_y, dy});
    run(ops::ConvolutionBackwardInput{dy, weight, geometry, dx});
    run(ops::ConvolutionBackwardWeight{x, dy, geometry, dweight});
    run(ops::ConvolutionBackwardWeight{x, dy, geometry, sum, true});
  }
  Tensors results() const { return {y, plain_y, sum_y, dx, dweight, sum}; }

  Backend& gpu;
  ConvolutionGeometry geometry;
  Tensor x, dy, weight, bias, y, plain_y, sum_y, dx, dweight, sum;
};

void check_parts(ConvolutionTwins& twins) {
  constexpr int parts = 3;
  for (const DType dtype : {DType::float32, DType::bfloat16}) {
    for (const Sizes& s : all_sizes) {
      const Problem together(twins, s, parts, dtype), apart(twins, s, parts, dtype);
      together.each([&](const auto& op) { twins.gpu().run_parts(op, parts); });
      apart.each([&](const auto& op) {
        for (int part = 0; part < parts; ++part) {
          ops::AnyOperation(op).with_part(part, parts,
                                          [&](const ops::AnyOperation& one) { twins.gpu().run(one); });
        }
      });
      for (std::size_t i = 0; i < together.results().size(); ++i) {
        const Tensor a = twins.to_cpu(together.results()[i]), b = twins.to_cpu(apart.results()[i]);
        BOOST_TEST(std::memcmp(a.raw(), b.raw(), a.bytes()) == 0,
                   "result " << i << " of " << s.in << " to " << s.out << " channels by " << s.kernel
                             << " in " << to_string(dtype));
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(parts_have_the_bits_of_single_runs) { check_parts(*this); }

BOOST_AUTO_TEST_CASE(parts_have_the_bits_of_single_runs_where_cudnn_refuses_their_plan_for_all_images) {
  faults().chosen_engines = false;
  check_parts(*this);
}

BOOST_AUTO_TEST_CASE(parts_have_the_bits_of_single_runs_without_graphs) {
  faults().convolution_graphs = false;
  check_parts(*this);
}

BOOST_AUTO_TEST_CASE(images_of_all_parts_are_one_call_and_weight_gradients_one_each) {
  const int parts = 4;
  const Problem problem(*this, all_sizes[0], parts, DType::bfloat16);
  std::vector<int> calls;
  problem.each([&](const auto& op) {
    counts().graph_runs = 0;
    gpu().run_parts(op, parts);
    calls.push_back(counts().graph_runs);
  });
  BOOST_TEST(calls == (std::vector{1, 1, 1, 1, parts, parts}), boost::test_tools::per_element());
}

/// The own kernels that body() launches.
template <class Body>
int launches(const Body& body) {
  constexpr int many = 1 << 20;
  faults().good_launches = many;
  body();
  const int count = many - faults().good_launches;
  faults().good_launches = -1;
  return count;
}

BOOST_AUTO_TEST_CASE(one_kernel_follows_the_weight_gradients_and_none_the_rest) {
  for (const int parts : {1, 4}) {
    Problem problem(*this, all_sizes[0], parts, DType::bfloat16);
    const Tensor packed = gpu().empty(problem.weight.shape(), DType::bfloat16, 16);
    const ops::PackedWeight one{problem.weight, packed};
    gpu().run(ops::PackWeights{{&one, 1}});
    problem.weight = packed;
    if (parts == 1) {
      const Shape shape = {32, 16, 3, 3};
      problem.dweight = problem.dweight.reshape(shape);
      problem.sum = problem.sum.reshape(shape);
    }
    to_cpu(packed);  // nothing is pending
    std::vector<int> kernels;
    problem.each([&](const auto& op) {
      kernels.push_back(launches([&] {
        gpu().run_parts(op, parts);
        to_cpu(problem.bias);
      }));
    });
    BOOST_TEST(kernels == (std::vector{0, 0, 0, 0, 1, 1}), boost::test_tools::per_element());
  }
}

void compare_with_cpu(ConvolutionTwins& twins) {
  Draw draw;
  const Sizes& s = all_sizes[0];
  const ConvolutionGeometry geometry = s.geometry;
  twins.compare(
      "convolution",
      {activation(draw.normal({2, s.in, s.size, s.size})),
       fixed(draw.normal({s.out, s.in, s.kernel, s.kernel}, 0.2f)), fixed(draw.normal({s.out})),
       activation(draw.normal({2, s.out, s.size, s.size}))},
      {activation(unwritten({2, s.out, s.size, s.size})), activation(unwritten({2, s.out, s.size, s.size}))},
      [=](Backend& on, const Tensors& in, const Tensors& out) {
        on.run(ops::Convolution{in[0], in[1], in[2], geometry, out[0]});
        on.run(ops::Convolution{in[0], in[1], in[2], geometry, out[1], in[3]});
      },
      {last_float, last_bf16});
}

BOOST_AUTO_TEST_CASE(a_bias_is_added_where_cudnn_has_no_graph_with_it) {
  faults().fused_bias = false;
  compare_with_cpu(*this);
}

BOOST_AUTO_TEST_CASE(without_graphs_the_older_interface_serves) {
  faults().convolution_graphs = false;
  counts().graph_runs = 0;
  compare_with_cpu(*this);
  BOOST_TEST(counts().graph_runs == 0);
}

BOOST_AUTO_TEST_CASE(weights_are_packed_by_a_launch_for_hundreds_of_them) {
  Draw draw;
  std::vector<ops::PackedWeight> weights;
  for (int i = 0; i < 700; ++i) {
    const Shape shape = i % 3 == 0 ? Shape{3, 5, 3, 3} : i % 3 == 1 ? Shape{2, 300, 2, 3} : Shape{2, 4, 9, 9};
    if (i > 9 && i % 3 == 1) continue;
    weights.push_back(
        {to_gpu(fixed(draw.normal(shape))),
         gpu().empty(shape, i % 2 == 0 ? DType::bfloat16 : DType::float32, static_cast<int>(shape[1]))});
  }
  to_cpu(weights[0].value);
  const int count = launches([&] {
    gpu().run(ops::PackWeights{weights});
    to_cpu(weights[0].value);
  });
  BOOST_TEST(count == 2);  // one for each type
  for (const auto& [value, packed] : weights) {
    const Tensor wanted = to_cpu(value), plain = to_cpu(packed);
    BOOST_TEST(std::memcmp(plain.raw(), wanted.raw(), wanted.bytes()) == 0);
  }
  const ops::PackedWeight wrong{weights[0].value, gpu().empty({3, 5, 3, 3})};
  BOOST_CHECK_EXCEPTION(gpu().run(ops::PackWeights{{&wrong, 1}}), UsageError, [](const UsageError& error) {
    return std::string(error.what()).find("must be in blocks of C") != std::string::npos;
  });
}

BOOST_AUTO_TEST_CASE(a_tape_packs_all_weights_that_were_written_in_one_launch) {
  Draw draw;
  std::array<Param, 3> params;
  std::vector<Param*> all;
  for (Param& param : params) {
    param.name = "weight";
    param.value = to_gpu(fixed(draw.normal({4, 8, 3, 3})));
    all.push_back(&param);
  }
  params[2].value = to_gpu(fixed(draw.normal({4, 8, 1, 1})));  // both layouts are the same
  Tape tape(gpu());
  const auto weights = [&] {
    tape.begin({.record = false, .compute = DType::bfloat16});
    Tensors used;
    for (Param& param : params) used.push_back(tape.convolution_weight(param).value());
    return used;
  };
  weights();
  for (const Param& param : params) gpu().fill(param.value, 1.5);
  to_cpu(params[0].value);
  const int refreshing = launches([&] {
    tape.refresh_weights(all);
    to_cpu(params[0].value);
  });
  BOOST_TEST(refreshing == 2);  // the third is a cast
  Tensors used;
  const int using_them = launches([&] {
    used = weights();
    to_cpu(params[0].value);
  });
  BOOST_TEST(using_them == 0);
  BOOST_TEST(used[0].channel_block() == 8);
  BOOST_TEST(used[2].channel_block() == 1);
  BOOST_TEST(tape.weight(params[0]).value().channel_block() == 1);  // any operation may read it
  for (const Tensor& weight : used) {
    const Tensor here = to_cpu(weight);
    for (std::int64_t i = 0; i < here.numel(); ++i) BOOST_TEST(here.data<float>()[i] == 1.5f);
  }
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace
}  // namespace lockstep::test
