// What the emulated cuBLASLt and cuDNN refuse, as the GPU half calls them, and the bits of products. That
// their results are right is seen by the cases of a real GPU (kernels/cuda/products.cpp), which compare with
// the CPU.
#include <cuda_runtime_api.h>

#include <array>
#include <boost/test/unit_test.hpp>
#include <cstdint>
#include <span>
#include <vector>

#include "emulated_gpu/cudnn_graph.h"
#include "emulated_gpu/library_memory.h"
#include "kernels/cuda/attention.h"
#include "kernels/cuda/convolution.h"
#include "kernels/cuda/fused_graph.h"
#include "kernels/cuda/matmul.h"
#include "lockstep/base/error.h"

namespace lockstep::test {
namespace {

using emulated_gpu::Element;

/// Numbers of a fixed sequence, or all the same, in memory that is aligned as a GPU's.
class Numbers {
 public:
  Numbers(Element type, std::size_t count, std::uint32_t seed) : type_(type), blocks_(count / 64 + 1) {
    std::uint32_t state = seed * 2654435761u + 1u;
    for (std::size_t i = 0; i < count; ++i) {
      state = state * 1664525u + 1013904223u;
      emulated_gpu::store(type, data(), i, static_cast<float>(state >> 8) / 8388608.0f - 1.0f);
    }
  }
  Numbers(Element type, std::size_t count, float value) : type_(type), blocks_(count / 64 + 1) {
    for (std::size_t i = 0; i < count; ++i) emulated_gpu::store(type, data(), i, value);
  }
  /// The address of element i.
  void* data(std::size_t i = 0) { return &blocks_[0].numbers[i]; }
  float operator[](std::size_t i) { return emulated_gpu::load(type_, data(), i); }

 private:
  struct alignas(256) Block {
    float numbers[64];
  };
  Element type_;
  std::vector<Block> blocks_;
};

// --- cuBLASLt -----------------------------------------------------------------------------------------
struct ProductsGpu {
  ProductsGpu() : pool(0), matmul(0, pool) {}
  /// Of 5 x 13 by 13 x 16 elements.
  kernels::Product product(DType in, DType out) {
    return {.m = 5,
            .n = 16,
            .k = 13,
            .in = in,
            .a = {a.data(), 13},
            .b = {b.data(), 16},
            .out = out,
            .c = c.data()};
  }
  void multiply(const kernels::Product& product) {
    BOOST_REQUIRE(matmul.try_multiply(product));
    BOOST_REQUIRE(cudaStreamSynchronize(pool.stream()) == cudaSuccess);
  }

  kernels::StreamPool pool;
  kernels::Matmul matmul;
  Numbers a{Element::float32, 5 * 13 + 8, 1u}, b{Element::float32, 13 * 16, 2u},
      c{Element::float32, 5 * 16, 3u};
};

BOOST_FIXTURE_TEST_SUITE(products_of_cublaslt, ProductsGpu)

// 1030 ones: in parts of 257 and 258 that are rounded to bf16, 1024.
BOOST_AUTO_TEST_CASE(are_rounded_once_however_long_the_sum) {
  constexpr std::int64_t length = 1030;
  Numbers ones(Element::bfloat16, length, 1.0f), sum(Element::bfloat16, 1, 0.0f);
  multiply({.m = 1,
            .n = 1,
            .k = length,
            .in = DType::bfloat16,
            .a = {ones.data(), length},
            .b = {ones.data(), 1},
            .out = DType::bfloat16,
            .c = sum.data()});
  BOOST_TEST(sum[0] == 1032.0f);
}

// The problem is the same: 16 bytes is the least alignment in both.
BOOST_AUTO_TEST_CASE(find_an_algorithm_that_serves_every_bias_of_the_problem) {
  Numbers biases(Element::float32, 16 + 4, 4u);
  const auto multiply_by = [&](void* left, void* bias) {
    kernels::Product one = product(DType::float32, DType::float32);
    one.a.data = left;
    one.epilogue = {.kind = kernels::Epilogue::Kind::bias, .bias = bias};
    multiply(one);
  };
  multiply_by(a.data(4), biases.data());
  BOOST_CHECK_NO_THROW(multiply_by(a.data(), biases.data(4)));
}

// A flat buffer places tensors at multiples of 64 bytes, the pool at those of 256.
BOOST_AUTO_TEST_CASE(have_the_same_bits_wherever_a_tensor_lies) {
  kernels::Product one = product(DType::float32, DType::float32);
  multiply(one);
  for (const std::size_t elsewhere : {16, 32}) {
    Numbers room(Element::float32, elsewhere + 5 * 16, 6u);
    one.c = room.data(elsewhere);
    multiply(one);
    for (std::size_t i = 0; i < 5 * 16; ++i) BOOST_TEST(room[elsewhere + i] == c[i]);
  }
}

BOOST_AUTO_TEST_CASE(are_refused_where_the_table_lacks_their_types_or_a_gelu_its_packs_of_eight) {
  BOOST_TEST(!matmul.try_multiply(product(DType::float32, DType::bfloat16)));
  kernels::Product one = product(DType::bfloat16, DType::bfloat16);
  one.epilogue = {.kind = kernels::Epilogue::Kind::gelu, .before = b.data()};
  multiply(one);
  one.n = one.c_stride = 15;
  BOOST_TEST(!matmul.try_multiply(one));
}

BOOST_AUTO_TEST_SUITE_END()

// --- cuDNN --------------------------------------------------------------------------------------------
BOOST_AUTO_TEST_SUITE(graphs_of_cudnn)

using kernels::CudnnDescriptor;
using kernels::FusedGraph;
using Extents = FusedGraph::Extents;

constexpr Extents matrix{1, 1, 4, 8}, packed{32, 32, 8, 1};
constexpr cudnnDataType_t single = CUDNN_DATA_FLOAT;

BOOST_AUTO_TEST_CASE(do_not_run_without_a_tensor_their_workspace_or_alignment) {
  FusedGraph graph;  // y = 2 x: x has uid 1, y 2 and the 2 uid 3
  graph.pointwise(CUDNN_POINTWISE_MUL, graph.tensor(1, matrix, packed, single),
                  graph.tensor(2, matrix, packed, single), graph.number(3));
  BOOST_REQUIRE(graph.build(kernels::device_properties(0)));
  Numbers x(Element::float32, 33, 1.5f), y(Element::float32, 32, 0.0f),
      workspace(Element::float32, 1024, 0.0f);
  float two = 2;
  cudnnHandle_t handle = nullptr;
  BOOST_REQUIRE(kernels::cudnnCreate(&handle) == CUDNN_STATUS_SUCCESS);
  const auto run = [&](std::size_t tensors, void* from, void* room) {
    const std::array<std::int64_t, 3> uids{1, 2, 3};
    const std::array<void*, 3> data{from, y.data(), &two};
    graph.run(handle, std::span(uids).first(tensors), std::span(data).first(tensors), room);
  };
  BOOST_CHECK_THROW(run(2, x.data(), workspace.data()), FailureError);
  BOOST_CHECK_THROW(run(3, x.data(), nullptr), FailureError);
  BOOST_CHECK_THROW(run(3, x.data(1), workspace.data()), FailureError);
  run(3, x.data(), workspace.data());
  two = 7;  // the call has read it
  BOOST_REQUIRE(cudaStreamSynchronize(nullptr) == cudaSuccess);
  BOOST_TEST(y[31] == 3.0f);
  kernels::cudnnDestroy(handle);
}

BOOST_AUTO_TEST_CASE(
    are_refused_whose_values_do_not_fit_lie_upon_each_other_or_are_used_before_they_are_made) {
  FusedGraph graph;
  const CudnnDescriptor x = graph.tensor(1, matrix, packed, single),
                        y = graph.tensor(2, matrix, packed, single), between = graph.between(matrix, single);
  BOOST_CHECK_THROW(graph.matmul(x, y, graph.between(matrix, single)), FailureError);
  BOOST_CHECK_THROW(
      graph.pointwise(CUDNN_POINTWISE_EXP, x, graph.between(matrix, Extents{32, 32, 4, 1}, single)),
      FailureError);
  graph.pointwise(CUDNN_POINTWISE_EXP, between, y);
  graph.pointwise(CUDNN_POINTWISE_EXP, x, between);
  BOOST_TEST(!graph.build(kernels::device_properties(0)));
}

BOOST_AUTO_TEST_CASE(of_attention_have_no_engine_for_rows_that_are_not_packs_of_sixteen_bytes) {
  const auto builds = [](std::int64_t width) {
    const ops::HeadStrides strides{8 * width, width, width};
    FusedGraph graph = kernels::attention_graph({1, 8, 8, 1, 1, width, false, 2},
                                                {.q = strides, .k = strides, .v = strides, .y = strides});
    return graph.build(kernels::device_properties(0));
  };
  BOOST_TEST(builds(16));
  BOOST_TEST(!builds(12));
}

BOOST_AUTO_TEST_CASE(of_convolutions_take_the_layout_that_has_an_algorithm_and_no_result_of_another_size) {
  kernels::Convolutions convolutions(0, nullptr);
  kernels::CudnnConvolution grouped;
  grouped.sizes = {.images = 1,
                   .in_channels = 4,
                   .height = 8,
                   .width = 8,
                   .out_channels = 8,
                   .out_height = 4,
                   .out_width = 4,
                   .kernel_height = 3,
                   .kernel_width = 3,
                   .geometry = {2, 1, 2}};
  grouped.dtype = DType::bfloat16;
  BOOST_TEST(convolutions.plan(grouped).channels_last);
  ++grouped.sizes.out_width;
  BOOST_CHECK_THROW(convolutions.plan(grouped), FailureError);
}

BOOST_AUTO_TEST_CASE(of_convolutions_have_the_engine_and_the_knobs_that_a_program_names_or_no_plan) {
  kernels::CudnnConvolution problem;
  problem.sizes = {.images = 2,
                   .in_channels = 4,
                   .height = 8,
                   .width = 8,
                   .out_channels = 8,
                   .out_height = 8,
                   .out_width = 8,
                   .kernel_height = 3,
                   .kernel_width = 3,
                   .geometry = {1, 1}};
  problem.channels_last = true;
  for (const DType dtype : {DType::float32, DType::bfloat16}) {
    problem.dtype = dtype;
    const auto build = [&](const kernels::CudnnEngine* engine, std::int64_t images) {
      problem.sizes.images = images;
      FusedGraph graph = kernels::convolution_graph(problem);
      kernels::PlanRules rules = kernels::convolution_rules(dtype);
      rules.engine = engine;
      return graph.build(kernels::device_properties(0), rules) ? graph.engine() : kernels::CudnnEngine{};
    };
    kernels::CudnnEngine engine = build(nullptr, 2);
    BOOST_TEST(engine.number == emulated_gpu::good_engine);
    BOOST_TEST((build(&engine, 3) == engine));
    BOOST_TEST((build(nullptr, 3) == engine) == false);  // the heuristics take other knobs
    engine.knobs.at(0).second = 99;
    BOOST_TEST(build(&engine, 3).number == -1);
    engine = {.number = 1, .knobs = {}};  // its bits depend on time
    BOOST_TEST(build(&engine, 3).number == -1);
    engine.number = 1000;
    BOOST_TEST(build(&engine, 3).number == -1);
  }
}

BOOST_AUTO_TEST_CASE(of_convolutions_are_refused_whose_types_layouts_or_sizes_do_not_fit) {
  const auto builds = [](const Extents& x, const Extents& w, const Extents& y, const Extents& y_strides,
                         cudnnDataType_t y_type, bool has_padding) {
    const auto last = [](const Extents& e) { return Extents{e[1] * e[2] * e[3], 1, e[1] * e[3], e[1]}; };
    FusedGraph graph;
    graph.convolution(ops::ConvolutionPass::forward, {.padding = has_padding ? 1 : 0}, false,
                      graph.tensor(1, x, last(x), single), graph.tensor(2, w, last(w), single),
                      graph.tensor(3, y, y_strides, y_type));
    return graph.build(kernels::device_properties(0), kernels::convolution_rules(DType::float32));
  };
  constexpr Extents x{2, 4, 6, 6}, w{8, 4, 3, 3}, y{2, 8, 6, 6}, y_strides{288, 1, 48, 8};
  BOOST_TEST(builds(x, w, y, y_strides, single, true));
  BOOST_TEST(!builds(x, w, y, y_strides, single, false));
  BOOST_TEST(!builds(x, {8, 3, 3, 3}, y, y_strides, single, true));
  BOOST_TEST(!builds(x, w, y, y_strides, CUDNN_DATA_BFLOAT16, true));
  BOOST_TEST(!builds(x, w, y, {576, 1, 96, 16}, single, true));  // gaps
  BOOST_TEST(!builds(x, w, y, {288, 36, 6, 1}, single, true));   // channels first
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace
}  // namespace lockstep::test
