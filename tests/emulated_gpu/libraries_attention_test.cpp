// Attention's graphs, run by the emulated cuDNN, against sums written out.
#include <cuda_runtime_api.h>

#include "emulated_gpu/library_numbers.h"
#include "kernels/cuda/attention_plan.h"

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
        rows(static_cast<std::size_t>(p.batch * p.heads * p.time)),
        time(static_cast<std::size_t>(p.time)),
        width(static_cast<std::size_t>(p.width)),
        channels(static_cast<std::size_t>(p.heads * p.width)) {}

  /// Row t of head h of image b, in a matrix with all heads side by side.
  std::size_t place(std::size_t bh, std::size_t t) const {
    const auto heads = static_cast<std::size_t>(problem.heads);
    return (bh / heads * time + t) * channels + bh % heads * width;
  }
  double product(Numbers& a, std::size_t a_row, Numbers& b, std::size_t b_row) const {
    double sum = 0;
    for (std::size_t c = 0; c < width; ++c)
      sum += static_cast<double>(a[a_row + c]) * static_cast<double>(b[b_row + c]);
    return sum;
  }
  bool sees(std::size_t i, std::size_t j) const { return !problem.causal || i >= j; }
  double scale() const { return 1 / std::sqrt(static_cast<double>(width)); }

  AttentionSizes problem;
  std::size_t rows, time, width, channels;
};

void check_attention(const AttentionSizes& problem) {
  const Attention a(problem);
  const std::size_t count = a.rows * a.width;
  Numbers q(half, count, 1u), k(half, count, 2u), v(half, count, 3u), dy(half, count, 4u),
      y(half, count, 0.0f), logs(Element::float32, a.rows, 0.0f), delta(Element::float32, a.rows, 0.0f),
      dq(half, count, 0.0f), dk(half, count, 0.0f), dv(half, count, 0.0f), workspace(half, 4096, 0.0f);
  const auto matrix = [&](Numbers& numbers) {
    return HeadMatrix{numbers.data(), static_cast<std::int64_t>(a.channels)};
  };
  kernels::FlashAttention attention(0, nullptr);
  const kernels::AttentionMatrices matrices{matrix(q), matrix(k), matrix(v), matrix(y),
                                            static_cast<float*>(logs.data())};
  const kernels::AttentionGradients gradients{matrix(dy), matrix(dq), matrix(dk), matrix(dv),
                                              static_cast<float*>(delta.data())};
  kernels::FusedGraph* graph = attention.forward(problem, matrices);
  BOOST_REQUIRE(graph);
  attention.run(*graph, problem, matrices, workspace.data());
  graph = attention.backward(problem, matrices, gradients);
  BOOST_REQUIRE(graph);
  attention.run(*graph, problem, matrices, gradients, workspace.data());
  BOOST_REQUIRE(cudaStreamSynchronize(nullptr) == cudaSuccess);

  for (std::size_t bh = 0; bh < static_cast<std::size_t>(problem.batch * problem.heads); ++bh) {
    std::vector<double> wanted_dq(a.time * a.width), wanted_dk(a.time * a.width), wanted_dv(a.time * a.width);
    for (std::size_t i = 0; i < a.time; ++i) {
      std::vector<double> p(a.time);
      double sum = 0;
      for (std::size_t j = 0; j < a.time; ++j) {
        p[j] = a.sees(i, j) ? std::exp(a.scale() * a.product(q, a.place(bh, i), k, a.place(bh, j))) : 0;
        sum += p[j];
      }
      check_near(logs[bh * a.time + i], std::log(sum), 1e-3, i);
      double row_delta = 0;
      for (std::size_t c = 0; c < a.width; ++c) {
        double wanted = 0;
        for (std::size_t j = 0; j < a.time; ++j)
          wanted += p[j] / sum * static_cast<double>(v[a.place(bh, j) + c]);
        check_near(y[a.place(bh, i) + c], wanted, 1e-2, c);
        row_delta += wanted * static_cast<double>(dy[a.place(bh, i) + c]);
      }
      for (std::size_t j = 0; j < a.time; ++j) {
        const double ds =
            a.scale() * p[j] / sum * (a.product(dy, a.place(bh, i), v, a.place(bh, j)) - row_delta);
        for (std::size_t c = 0; c < a.width; ++c) {
          wanted_dq[i * a.width + c] += ds * static_cast<double>(k[a.place(bh, j) + c]);
          wanted_dk[j * a.width + c] += ds * static_cast<double>(q[a.place(bh, i) + c]);
          wanted_dv[j * a.width + c] += p[j] / sum * static_cast<double>(dy[a.place(bh, i) + c]);
        }
      }
    }
    for (std::size_t i = 0; i < a.time; ++i) {
      for (std::size_t c = 0; c < a.width; ++c) {
        const std::size_t at = i * a.width + c;
        check_near(dq[a.place(bh, i) + c], wanted_dq[at], 5e-3, at);
        check_near(dk[a.place(bh, i) + c], wanted_dk[at], 5e-3, at);
        check_near(dv[a.place(bh, i) + c], wanted_dv[at], 5e-3, at);
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(is_the_softmax_of_scores_times_values_and_its_gradients) {
  for (const bool causal : {false, true}) {
    check_attention({1, 8, 1, 8, causal, 2});
    check_attention({2, 20, 2, 16, causal, 2});
    check_attention({1, 33, 3, 64, causal, 2});
  }
}

BOOST_AUTO_TEST_CASE(has_no_engine_for_rows_that_are_not_packs_of_sixteen_bytes) {
  kernels::FusedGraph graph =
      kernels::attention_graph({1, 8, 1, 12, false, 2}, {.q = 12, .k = 12, .v = 12, .y = 12});
  BOOST_TEST(!graph.build(kernels::device_properties(0)));
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace
}  // namespace lockstep::test
