// Graphs that the emulated cuDNN refuses, as FusedGraph asks for them.
#include <cuda_runtime_api.h>

#include <array>

#include "emulated_gpu/library_numbers.h"
#include "kernels/cuda/fused_graph.h"
#include "lockstep/base/error.h"

namespace lockstep::test {
namespace {

BOOST_AUTO_TEST_SUITE(libraries_graphs_test)

using kernels::CudnnDescriptor;
using kernels::FusedGraph;
using Extents = FusedGraph::Extents;

constexpr Extents matrix{1, 1, 4, 8}, packed{32, 32, 8, 1};
constexpr cudnnDataType_t single = CUDNN_DATA_FLOAT;

struct Handle {
  Handle() { BOOST_REQUIRE(kernels::cudnnCreate(&handle) == CUDNN_STATUS_SUCCESS); }
  ~Handle() { kernels::cudnnDestroy(handle); }

  cudnnHandle_t handle = nullptr;
};

/// y = 2 x, of which x has uid 1, y 2 and the 2 uid 3.
struct Doubled {
  Doubled() {
    graph.pointwise(CUDNN_POINTWISE_MUL, graph.tensor(1, matrix, packed, single),
                    graph.tensor(2, matrix, packed, single), graph.number(3));
    BOOST_REQUIRE(graph.build(kernels::device_properties(0)));
  }

  FusedGraph graph;
  Numbers x{Element::float32, 33, 1.5f}, y{Element::float32, 32, 0.0f},
      workspace{Element::float32, 1024, 0.0f};
  float two = 2;
};

BOOST_FIXTURE_TEST_CASE(compute_what_they_describe_with_the_numbers_of_the_call, Doubled) {
  const Handle on;
  graph.run(on.handle, std::array<std::int64_t, 3>{1, 2, 3}, std::array<void*, 3>{x.data(), y.data(), &two},
            workspace.data());
  two = 7;
  BOOST_REQUIRE(cudaStreamSynchronize(nullptr) == cudaSuccess);
  BOOST_TEST(y[31] == 3.0f);
}

BOOST_FIXTURE_TEST_CASE(do_not_run_without_one_of_their_tensors, Doubled) {
  const Handle on;
  BOOST_CHECK_THROW(graph.run(on.handle, std::array<std::int64_t, 2>{1, 2},
                              std::array<void*, 2>{x.data(), y.data()}, workspace.data()),
                    FailureError);
}

BOOST_FIXTURE_TEST_CASE(do_not_run_without_their_workspace, Doubled) {
  const Handle on;
  BOOST_CHECK_THROW(graph.run(on.handle, std::array<std::int64_t, 3>{1, 2, 3},
                              std::array<void*, 3>{x.data(), y.data(), &two}, nullptr),
                    FailureError);
}

BOOST_FIXTURE_TEST_CASE(do_not_run_on_an_address_less_aligned_than_described, Doubled) {
  const Handle on;
  BOOST_CHECK_THROW(
      graph.run(on.handle, std::array<std::int64_t, 3>{1, 2, 3},
                std::array<void*, 3>{static_cast<float*>(x.data()) + 1, y.data(), &two}, workspace.data()),
      FailureError);
}

BOOST_AUTO_TEST_CASE(of_matrices_that_do_not_fit_are_refused) {
  FusedGraph graph;
  const CudnnDescriptor a = graph.tensor(1, matrix, packed, single),
                        b = graph.tensor(2, matrix, packed, single);
  BOOST_CHECK_THROW(graph.matmul(a, b, graph.between(matrix, single)), FailureError);
}

BOOST_AUTO_TEST_CASE(with_two_elements_of_a_result_in_one_place_are_refused) {
  FusedGraph graph;
  const CudnnDescriptor x = graph.tensor(1, matrix, packed, single);
  BOOST_CHECK_THROW(graph.pointwise(CUDNN_POINTWISE_EXP, x, graph.between(matrix, {32, 32, 4, 1}, single)),
                    FailureError);
}

BOOST_AUTO_TEST_CASE(that_use_a_value_before_it_is_made_are_refused) {
  FusedGraph graph;
  const CudnnDescriptor x = graph.tensor(1, matrix, packed, single),
                        y = graph.tensor(2, matrix, packed, single), between = graph.between(matrix, single);
  graph.pointwise(CUDNN_POINTWISE_EXP, between, y);
  graph.pointwise(CUDNN_POINTWISE_EXP, x, between);
  BOOST_TEST(!graph.build(kernels::device_properties(0)));
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace
}  // namespace lockstep::test
