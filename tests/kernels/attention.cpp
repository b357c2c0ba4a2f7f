// Attention and its gradients against double precision.
#include <algorithm>

#include "kernels/reference.h"
#include "lockstep/ops/attention.h"

namespace lockstep::test {
namespace {
BOOST_AUTO_TEST_SUITE(attention)

using kernels::make_cpu_backend;
using ops::Columns;

struct Sizes {
  int batch, time, heads, width;
  bool causal;
};

constexpr Sizes all_sizes[] = {{1, 1, 1, 1, true},     {2, 5, 3, 4, true},    {2, 5, 3, 4, false},
                               {1, 49, 2, 8, true},    {1, 130, 1, 16, true}, {2, 97, 2, 5, false},
                               {0, 4, 2, 3, true},     {1, 48, 1, 64, true},  {1, 128, 2, 64, true},
                               {1, 128, 2, 64, false}, {3, 256, 1, 7, true},  {1, 200, 1, 9, false},
                               {1, 515, 1, 5, true},   {2, 513, 2, 3, false}, {1, 768, 1, 8, true},
                               {1, 1, 3, 5, false},    {2, 3, 1, 256, true}};

struct Reference {
  std::vector<double> log_sum_exp, y, dq, dk, dv;  // y and gradients: [batch, time, channels]
};

Reference reference(const Sizes& s, const Tensor& qkv, const Tensor& dy) {
  const int channels = s.heads * s.width, stride = 3 * channels;
  const auto at = [&](int part, int b, int t, int h, int d) -> double {
    return qkv.data<float>()[(b * s.time + t) * stride + part * channels + h * s.width + d];
  };
  const auto place = [&](int b, int t, int h, int d) {
    return static_cast<std::size_t>((b * s.time + t) * channels + h * s.width + d);
  };
  const auto size = static_cast<std::size_t>(s.batch * s.time * channels);
  Reference r{std::vector<double>(static_cast<std::size_t>(s.batch * s.heads * s.time)),
              std::vector<double>(size), std::vector<double>(size), std::vector<double>(size),
              std::vector<double>(size)};
  const double scale = 1 / std::sqrt(s.width);
  std::vector<double> probabilities(static_cast<std::size_t>(s.time)), dp(probabilities);
  for (int b = 0; b < s.batch; ++b) {
    for (int h = 0; h < s.heads; ++h) {
      for (int i = 0; i < s.time; ++i) {
        const int keys = s.causal ? i + 1 : s.time;
        double* p = probabilities.data();
        std::fill(probabilities.begin(), probabilities.end(), 0);
        double sum = 0, centre = 0;
        for (int j = 0; j < keys; ++j) {
          for (int d = 0; d < s.width; ++d) p[j] += at(0, b, i, h, d) * at(1, b, j, h, d) * scale;
          sum += p[j] = std::exp(p[j]);
        }
        r.log_sum_exp[static_cast<std::size_t>((b * s.heads + h) * s.time + i)] = std::log(sum);
        for (int j = 0; j < keys; ++j) {
          p[j] /= sum;
          double& upstream = dp[static_cast<std::size_t>(j)] = 0;
          for (int d = 0; d < s.width; ++d) {
            const double up = dy.data<float>()[place(b, i, h, d)];
            r.y[place(b, i, h, d)] += p[j] * at(2, b, j, h, d);
            r.dv[place(b, j, h, d)] += p[j] * up;
            upstream += up * at(2, b, j, h, d);
          }
          centre += p[j] * upstream;
        }
        for (int j = 0; j < keys; ++j) {
          const double ds = scale * p[j] * (dp[static_cast<std::size_t>(j)] - centre);
          for (int d = 0; d < s.width; ++d) {
            r.dq[place(b, i, h, d)] += ds * at(1, b, j, h, d);
            r.dk[place(b, j, h, d)] += ds * at(0, b, i, h, d);
          }
        }
      }
    }
  }
  return r;
}

struct Results {
  explicit Results(const Sizes& s)
      : y(Tensor::empty({s.batch, s.time, s.heads * s.width})),
        saved(Tensor::empty(make_cpu_backend()->attention_saved_shape(s.batch, s.heads, s.time, s.time))),
        dqkv(Tensor::empty({s.batch, s.time, 3 * s.heads * s.width})) {}

  Tensor part(int number) const {
    const std::int64_t width = y.size(2), rows = y.size(0) * y.size(1);
    Tensor out = Tensor::empty(y.shape());
    for (std::int64_t r = 0; r < rows; ++r) {
      std::copy_n(dqkv.data<float>() + r * 3 * width + number * width, width, out.data<float>() + r * width);
    }
    return out;
  }

  Tensor y, saved, dqkv;
};

ops::Columns part_of(const Tensor& matrix, int number) {
  const std::int64_t width = matrix.size(2) / 3;
  return {matrix, number * width, width};
}

Results compute(int threads, const Sizes& s, const Tensor& qkv, const Tensor& dy) {
  Results out(s);
  const auto backend = make_cpu_backend(threads);
  for (const Tensor& tensor : {out.y, out.saved, out.dqkv})
    backend->fill(tensor, NAN);  // all of it is overwritten
  const ops::Columns q = part_of(qkv, 0), k = part_of(qkv, 1), v = part_of(qkv, 2);
  backend->run(ops::Attention{q, k, v, s.heads, s.causal, out.y, out.saved});
  backend->run(ops::AttentionBackward{dy, q, k, v, s.heads, s.causal, out.y, out.saved, part_of(out.dqkv, 0),
                                      part_of(out.dqkv, 1), part_of(out.dqkv, 2)});
  return out;
}

BOOST_AUTO_TEST_CASE(equals_double_precision) {
  Draw draw(71);
  for (const Sizes& s : all_sizes) {
    BOOST_TEST_CONTEXT("batch " << s.batch << ", time " << s.time << ", heads " << s.heads << ", width "
                                << s.width) {
      const int channels = s.heads * s.width;
      const Tensor qkv = draw.normal({s.batch, s.time, 3 * channels}),
                   dy = draw.normal({s.batch, s.time, channels});
      const Reference expected = reference(s, qkv, dy);
      const Results out = compute(1, s, qkv, dy);
      if (s.time > 512) check_close(out.saved, expected.log_sum_exp, "log_sum_exp");
      check_close(out.y, expected.y, "y");
      check_close(out.part(0), expected.dq, "dq");
      check_close(out.part(1), expected.dk, "dk");
      check_close(out.part(2), expected.dv, "dv");
    }
  }
}

BOOST_AUTO_TEST_CASE(does_not_depend_on_threads) {
  Draw draw(72);
  for (const int time : {70, 530}) {
    const Sizes s{2, time, 3, 8, true};
    const Tensor qkv = draw.normal({2, time, 72}), dy = draw.normal({2, time, 24});
    const Results one = compute(1, s, qkv, dy), three = compute(3, s, qkv, dy);
    BOOST_TEST(same_bits(one.y, three.y));
    BOOST_TEST(same_bits(one.dqkv, three.dqkv));
  }
}

BOOST_AUTO_TEST_CASE(an_image_does_not_depend_on_the_batch_it_is_in) {
  Draw draw(75);
  for (const int time : {101, 520}) {
    const Sizes all{3, time, 2, 24, true}, one{1, time, 2, 24, true};
    const Tensor qkv = draw.normal({3, time, 144}), dy = draw.normal({3, time, 48});
    const Results together = compute(2, all, qkv, dy);
    for (int i = 0; i < 3; ++i) {
      const Results alone = compute(1, one, qkv.rows(i, i + 1), dy.rows(i, i + 1));
      BOOST_TEST(same_bits(alone.y, together.y.rows(i, i + 1)));
      BOOST_TEST(same_bits(alone.dqkv, together.dqkv.rows(i, i + 1)));
    }
  }
}

BOOST_AUTO_TEST_CASE(large_scores_do_not_overflow) {
  Draw draw(73);
  for (const int time : {20, 514}) {
    const Sizes s{1, time, 1, 4, false};
    const Tensor qkv = draw.normal({1, time, 12}, 1e3f), dy = draw.normal({1, time, 4});
    const Results out = compute(1, s, qkv, dy);
    const auto finite = [](const Tensor& tensor) {
      return std::ranges::all_of(floats(tensor), [](float value) { return std::isfinite(value); });
    };
    BOOST_TEST(finite(out.y));
    BOOST_TEST(finite(out.saved));
    BOOST_TEST(finite(out.dqkv));
  }
}

BOOST_AUTO_TEST_CASE(only_its_own_columns_are_written) {
  Draw draw(74);
  const Sizes s{1, 3, 1, 2, true};
  const auto backend = make_cpu_backend();
  const Tensor q = draw.normal({1, 3, 2}), dy = draw.normal({1, 3, 2}), wide = Tensor::empty({1, 3, 10});
  Results out(s);
  backend->fill(wide, 5);
  backend->run(ops::Attention{{q, 0, 2}, {q, 0, 2}, {q, 0, 2}, 1, true, out.y, out.saved});
  backend->run(ops::AttentionBackward{dy,
                                      {q, 0, 2},
                                      {q, 0, 2},
                                      {q, 0, 2},
                                      1,
                                      true,
                                      out.y,
                                      out.saved,
                                      {wide, 1, 2},
                                      {wide, 4, 2},
                                      {wide, 7, 2}});
  for (int t = 0; t < 3; ++t) {
    for (const int column : {0, 3, 6, 9}) BOOST_TEST(wide.data<float>()[t * 10 + column] == 5.0f);
  }
}

BOOST_AUTO_TEST_CASE(columns_outside_the_matrix_are_refused) {
  const auto backend = make_cpu_backend();
  const Tensor q = Tensor::zeros({1, 3, 4}), y = Tensor::zeros({1, 3, 4}),
               saved = Tensor::zeros({1, 2, 3, 3});
  const ops::Columns good{q, 0, 4}, bad{q, 1, 4};
  BOOST_CHECK_THROW(backend->run(ops::Attention{good, bad, good, 2, true, y, saved}), UsageError);
  BOOST_CHECK_THROW(backend->run(ops::Attention{good, good, good, 3, true, y, saved}), UsageError);
}

BOOST_AUTO_TEST_SUITE_END()
}  // namespace
}  // namespace lockstep::test
