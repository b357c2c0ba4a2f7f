// Folds over segments: against float64 on drawn graphs, at any number of threads, of nothing, and errors.
#include <boost/test/unit_test.hpp>
#include <cstring>
#include <map>

#include "autograd/drawn_cases.h"
#include "autograd/gradient_check.h"
#include "lockstep/autograd/functions.h"
#include "support/mentions.h"

namespace lockstep::test {
namespace {
BOOST_AUTO_TEST_SUITE(segments)

using SegmentFunction = Var (*)(const Var&, const Tensor&, std::int64_t);
const std::map<std::string, SegmentFunction> functions{
    {"sum", segment_sum}, {"mean", segment_mean}, {"max", segment_max}, {"softmax", segment_softmax}};

std::vector<double> column_of(const Tensor& rows, std::int64_t column) {
  std::vector<double> values;
  for (std::int64_t row = 0; row < rows.size(0); ++row)
    values.push_back(rows.data<float>()[row * rows.size(1) + column]);
  return values;
}

/// Value and gradient of one column, whose rows belong to `segments` segments.
struct Column {
  std::vector<double> y, dx;
};
Column reference(const std::string& name, const std::vector<double>& x, const std::int64_t* indices,
                 std::int64_t segments, const std::vector<double>& dy) {
  const auto of = [&](const std::vector<double>& values, std::size_t row) {
    return values[static_cast<std::size_t>(indices[row])];
  };
  const auto n = static_cast<std::size_t>(segments);
  std::vector<double> sums(n), counts(n), most(n, -std::numeric_limits<double>::infinity()), equal(n);
  const auto add = [&](std::vector<double>& to, const auto& value) {
    for (std::size_t row = 0; row < x.size(); ++row) to[static_cast<std::size_t>(indices[row])] += value(row);
  };
  add(sums, [&](std::size_t row) { return x[row]; });
  add(counts, [&](std::size_t) { return 1.0; });
  for (std::size_t row = 0; row < x.size(); ++row) {
    double& largest = most[static_cast<std::size_t>(indices[row])];
    largest = std::max(largest, x[row]);
  }
  add(equal, [&](std::size_t row) { return x[row] == of(most, row) ? 1.0 : 0.0; });
  Column column;
  if (name == "softmax") {
    std::vector<double> total(n), along(n);
    const auto exponential = [&](std::size_t row) { return std::exp(x[row] - of(most, row)); };
    add(total, exponential);
    for (std::size_t row = 0; row < x.size(); ++row) column.y.push_back(exponential(row) / of(total, row));
    add(along, [&](std::size_t row) { return column.y[row] * dy[row]; });
    for (std::size_t row = 0; row < x.size(); ++row)
      column.dx.push_back(column.y[row] * (dy[row] - of(along, row)));
    return column;
  }
  for (std::size_t s = 0; s < n; ++s)
    column.y.push_back(counts[s] == 0   ? 0
                       : name == "sum"  ? sums[s]
                       : name == "mean" ? sums[s] / counts[s]
                                        : most[s]);
  for (std::size_t row = 0; row < x.size(); ++row)
    column.dx.push_back(name == "sum"             ? of(dy, row)
                        : name == "mean"          ? of(dy, row) / of(counts, row)
                        : x[row] == of(most, row) ? of(dy, row) / of(equal, row)
                                                  : 0);
  return column;
}

BOOST_AUTO_TEST_CASE(drawn_graphs_agree_with_float64_and_have_the_same_bits_at_any_number_of_threads) {
  for_drawn_cases([](Draws& draws) {
    const std::int64_t rows = draws.between(0, 60), width = draws.one_of<std::int64_t>({1, 3, 16, 40}),
                       segments = draws.between(1, 20);
    const bool ties = draws.between(0, 1) == 0, sorted = draws.between(0, 1) == 0;
    const Tensor x = draws.tensor({rows, width}, ties), indices = Tensor::empty({rows}, DType::int64);
    auto* const index = indices.data<std::int64_t>();
    for (std::int64_t row = 0; row < rows; ++row) index[row] = draws.between(0, segments - 1);
    if (sorted) std::sort(index, index + rows);
    for (const auto& [name, function] : functions) {
      const std::int64_t results = name == "softmax" ? rows : segments;
      const Tensor dy = draws.tensor({results, width});
      BOOST_TEST_CONTEXT("segment_" << name << " of " << rows << " x " << width << " in " << segments) {
        const auto run = [&, f = function](Tape&, const std::vector<Var>& in) {
          return f(in[0], indices, segments);
        };
        const Outcome found = same_at_any_threads(run, {x}, dy);
        for (std::int64_t c = 0; c < width; ++c) {
          const Column wanted = reference(name, column_of(x, c), index, segments, column_of(dy, c));
          check_near(column_of(found.y, c), wanted.y, "y");
          check_near(column_of(found.gradients[0], c), wanted.dx, "dx");
        }
      }
    }
  });
}

BOOST_AUTO_TEST_CASE(segments_without_rows_are_zeros) {
  const auto backend = kernels::make_cpu_backend();
  Tape tape(*backend);
  tape.begin({});
  const Tensor none = Tensor::zeros({0}, DType::int64), one = Tensor::zeros({1}, DType::int64);
  for (const auto& [name, function] : functions) {
    if (name == "softmax") continue;
    const Var empty = function(tape.input(Tensor::zeros({0, 2})), none, 3);
    BOOST_TEST((empty.shape() == Shape{3, 2}), name);
    const Var few = function(tape.input(normal_tensor({1, 2}, 1)), one, 3);
    for (const Var& y : {empty, narrow(few, 0, 1, 2)}) {
      for (std::int64_t i = 0; i < y.value().numel(); ++i)
        BOOST_TEST(y.value().data<float>()[i] == 0.0f, name);
    }
  }
  BOOST_TEST((segment_softmax(tape.input(Tensor::zeros({0, 2})), none, 0).shape() == Shape{0, 2}));
}

BOOST_AUTO_TEST_CASE(indices_that_do_not_fit_are_told_by_name) {
  const auto backend = kernels::make_cpu_backend();
  Tape tape(*backend);
  tape.begin({});
  const Var x = tape.input(normal_tensor({3, 2}, 1));
  const Tensor outside = Tensor::zeros({3}, DType::int64);
  outside.data<std::int64_t>()[2] = 7;
  for (const auto& [name, function] : functions) {
    const std::string call = "segment_" + name;
    BOOST_CHECK_EXCEPTION(function(x, outside, 7), DataError,
                          mentions(call + ": index 7 (number 2) is outside [0, 7)"));
    BOOST_CHECK_EXCEPTION(function(x, Tensor::zeros({4}, DType::int64), 7), UsageError,
                          mentions(call, "one index for each row"));
    BOOST_CHECK_EXCEPTION(function(x, outside, -1), UsageError, mentions(call));
    BOOST_CHECK_THROW(function(x, Tensor::zeros({3}), 7), UsageError);
  }
}

BOOST_AUTO_TEST_SUITE_END()
}  // namespace
}  // namespace lockstep::test
