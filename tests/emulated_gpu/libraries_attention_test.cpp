// Attention's graphs, run by the emulated cuDNN, against sums written out.
#include <cuda_runtime_api.h>

#include "emulated_gpu/library_numbers.h"
#include "kernels/cuda/attention.h"

namespace lockstep::test {
namespace {

BOOST_AUTO_TEST_SUITE(libraries_attention_test)

using kernels::HeadMatrix;
using ops::AttentionSizes;

constexpr Element half = Element::bfloat16;

/// One problem, and what it gives by sums in double.
struct Attention {
  explicit Attention(const AttentionSizes& p)
      : problem(p),
        heads(static_cast<std::size_t>(p.batch * p.heads)),
        queries(static_cast<std::size_t>(p.queries)),
        keys(static_cast<std::size_t>(p.keys)),
        width(static_cast<std::size_t>(p.width)),
        channels(static_cast<std::size_t>(p.heads * p.width)) {}

  /// Row t of a head, in a matrix with an image's heads side by side and `time` rows.
  std::size_t place(std::size_t bh, std::size_t t, std::size_t time) const {
    const auto of_image = static_cast<std::size_t>(problem.heads);
    return (bh / of_image * time + t) * channels + bh % of_image * width;
  }
  std::size_t query(std::size_t bh, std::size_t t) const { return place(bh, t, queries); }
  std::size_t key(std::size_t bh, std::size_t t) const { return place(bh, t, keys); }
  double product(Numbers& a, std::size_t a_row, Numbers& b, std::size_t b_row) const {
    double sum = 0;
    for (std::size_t c = 0; c < width; ++c)
      sum += static_cast<double>(a[a_row + c]) * static_cast<double>(b[b_row + c]);
    return sum;
  }
  bool sees(std::size_t i, std::size_t j) const { return !problem.causal || i >= j; }
  double scale() const { return 1 / std::sqrt(static_cast<double>(width)); }

  AttentionSizes problem;
  std::size_t heads, queries, keys, width, channels;
};

void check_attention(const AttentionSizes& problem) {
  const Attention a(problem);
  const std::size_t rows = a.heads * a.queries, count = rows * a.width, of_keys = a.heads * a.keys * a.width;
  Numbers q(half, count, 1u), k(half, of_keys, 2u), v(half, of_keys, 3u), dy(half, count, 4u),
      y(half, count, 0.0f), logs(Element::float32, rows, 0.0f), delta(Element::float32, rows, 0.0f),
      dq(half, count, 0.0f), dk(half, of_keys, 0.0f), dv(half, of_keys, 0.0f), workspace(half, 4096, 0.0f);
  const auto side_by_side = [&](Numbers& numbers, std::int64_t time) {
    const auto row = static_cast<std::int64_t>(a.channels);
    return HeadMatrix{numbers.data(), {time * row, problem.width, row}};
  };
  const auto matrix = [&](Numbers& numbers) { return side_by_side(numbers, problem.queries); };
  const auto key_matrix = [&](Numbers& numbers) { return side_by_side(numbers, problem.keys); };
  kernels::FlashAttention attention(0, nullptr);
  const kernels::AttentionMatrices matrices{matrix(q), key_matrix(k), key_matrix(v), matrix(y),
                                            static_cast<float*>(logs.data())};
  const kernels::AttentionGradients gradients{matrix(dy), matrix(dq), key_matrix(dk), key_matrix(dv),
                                              static_cast<float*>(delta.data())};
  kernels::FusedGraph* graph = attention.forward(problem, matrices);
  BOOST_REQUIRE(graph);
  attention.run(*graph, problem, matrices, workspace.data());
  graph = attention.backward(problem, matrices, gradients);
  BOOST_REQUIRE(graph);
  attention.run(*graph, problem, matrices, gradients, workspace.data());
  BOOST_REQUIRE(cudaStreamSynchronize(nullptr) == cudaSuccess);

  for (std::size_t bh = 0; bh < a.heads; ++bh) {
    std::vector<double> wanted_dq(a.queries * a.width), wanted_dk(a.keys * a.width),
        wanted_dv(a.keys * a.width);
    for (std::size_t i = 0; i < a.queries; ++i) {
      std::vector<double> p(a.keys);
      double sum = 0;
      for (std::size_t j = 0; j < a.keys; ++j) {
        p[j] = a.sees(i, j) ? std::exp(a.scale() * a.product(q, a.query(bh, i), k, a.key(bh, j))) : 0;
        sum += p[j];
      }
      check_near(logs[bh * a.queries + i], std::log(sum), 1e-3, i);
      double row_delta = 0;
      for (std::size_t c = 0; c < a.width; ++c) {
        double wanted = 0;
        for (std::size_t j = 0; j < a.keys; ++j)
          wanted += p[j] / sum * static_cast<double>(v[a.key(bh, j) + c]);
        check_near(y[a.query(bh, i) + c], wanted, 1e-2, c);
        row_delta += wanted * static_cast<double>(dy[a.query(bh, i) + c]);
      }
      for (std::size_t j = 0; j < a.keys; ++j) {
        const double ds =
            a.scale() * p[j] / sum * (a.product(dy, a.query(bh, i), v, a.key(bh, j)) - row_delta);
        for (std::size_t c = 0; c < a.width; ++c) {
          wanted_dq[i * a.width + c] += ds * static_cast<double>(k[a.key(bh, j) + c]);
          wanted_dk[j * a.width + c] += ds * static_cast<double>(q[a.query(bh, i) + c]);
          wanted_dv[j * a.width + c] += p[j] / sum * static_cast<double>(dy[a.query(bh, i) + c]);
        }
      }
    }
    for (std::size_t c = 0; c < a.width; ++c) {
      for (std::size_t i = 0; i < a.queries; ++i)
        check_near(dq[a.query(bh, i) + c], wanted_dq[i * a.width + c], 5e-3, i);
      for (std::size_t j = 0; j < a.keys; ++j) {
        check_near(dk[a.key(bh, j) + c], wanted_dk[j * a.width + c], 5e-3, j);
        check_near(dv[a.key(bh, j) + c], wanted_dv[j * a.width + c], 5e-3, j);
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(is_the_softmax_of_scores_times_values_and_its_gradients) {
  for (const bool causal : {false, true}) {
    check_attention({1, 8, 8, 1, 1, 8, causal, 2});
    check_attention({2, 20, 20, 2, 2, 16, causal, 2});
    check_attention({1, 33, 33, 3, 3, 64, causal, 2});
  }
  check_attention({2, 20, 7, 2, 2, 16, false, 2});
  check_attention({1, 5, 33, 3, 3, 8, false, 2});
}

BOOST_AUTO_TEST_CASE(has_no_engine_for_rows_that_are_not_packs_of_sixteen_bytes) {
  const ops::HeadStrides strides{96, 12, 12};
  kernels::FusedGraph graph = kernels::attention_graph(
      {1, 8, 8, 1, 1, 12, false, 2}, {.q = strides, .k = strides, .v = strides, .y = strides});
  BOOST_TEST(!graph.build(kernels::device_properties(0)));
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace
}  // namespace lockstep::test
