// Embeddings and losses, and what is wrong with data.
#include "kernels/cuda/twins.h"
#include "lockstep/ops/elementwise.h"
#include "lockstep/ops/gather.h"
#include "lockstep/ops/loss.h"

namespace lockstep::test {
namespace {

BOOST_FIXTURE_TEST_SUITE(losses, Twins)

using kernels::Backend;
using ops::CrossEntropyOptions;

BOOST_AUTO_TEST_CASE(embeddings_are_those_of_the_cpu) {
  Draw draw;
  struct Sizes {
    int uses, rows, width;
  };
  for (const Sizes& s :
       {Sizes{0, 5, 4}, {1, 1, 1}, {7, 3, 5}, {1000, 50, 96}, {4096, 2, 33}, {300, 70000, 8}}) {
    const Operand indices = fixed(draw.indices({s.uses}, s.rows)),
                  table = fixed(draw.normal({s.rows, s.width})),
                  dy = activation(draw.normal({s.uses, s.width}));
    const std::string what = " of " + std::to_string(s.uses) + " in " + to_string(table.value.shape());
    compare("embedding" + what, {indices, table}, {activation(unwritten({s.uses, s.width}))},
            [](Backend& on, const Tensors& in, const Tensors& out) {
              on.run(ops::Embedding{in[0], in[1], out[0]});
            });
    for (const bool accumulate : {false, true}) {
      compare("embedding_backward" + what, {dy, indices},
              {fixed(accumulate ? draw.normal({s.rows, s.width}) : unwritten({s.rows, s.width}))},
              [=](Backend& on, const Tensors& in, const Tensors& out) {
                on.run(ops::EmbeddingBackward{in[0], in[1], out[0], accumulate});
              });
    }
  }
}

BOOST_AUTO_TEST_CASE(embedding_gradients_are_summed_in_the_order_of_the_indices) {
  Draw draw;
  const Tensor indices = draw.indices({5000}, 3), dy = draw.normal({5000, 17}), wanted = unwritten({3, 17});
  cpu().run(ops::EmbeddingBackward{dy, indices, wanted, false});
  const Tensor result = to_gpu(fixed(unwritten({3, 17})));
  gpu().run(ops::EmbeddingBackward{to_gpu(fixed(dy)), to_gpu(fixed(indices)), result, false});
  BOOST_TEST(std::memcmp(to_cpu(result).raw(), wanted.raw(), wanted.bytes()) == 0);
}

BOOST_AUTO_TEST_CASE(columns_that_are_no_classes_do_not_count_and_become_zeros) {
  Draw draw;
  for (const auto& [rows, classes, columns] :
       {std::tuple<int, int, int>{5, 10, 16}, {3, 9000, 9024}, {4, 10, 10}, {2, 1, 8}, {0, 3, 8}}) {
    const Operand logits = activation(draw.normal({rows, columns}, 4)),
                  targets = fixed(draw.indices({rows}, classes));
    if (rows > 2) targets.value.data<std::int64_t>()[1] = -100;
    for (const float smoothing : {0.0f, 0.1f})
      compare("cross_entropy_in_place of " + std::to_string(classes), {targets},
              {logits, fixed(unwritten({2}, DType::float64))},
              [=](Backend& on, const Tensors& in, const Tensors& out) {
                on.run(ops::CrossEntropyInPlace{
                    out[0], in[0], {.label_smoothing = smoothing, .ignore_index = -100}, out[1], classes});
              });
  }
}

BOOST_AUTO_TEST_CASE(cross_entropy_is_that_of_the_cpu) {
  Draw draw;
  for (const auto& [rows, classes] : {std::pair<int, int>{0, 3},
                                      {1, 1},
                                      {5, 10},
                                      {300, 33},
                                      {7, 1500},
                                      {1100, 8},
                                      {4, 50304},
                                      {4, 50257}}) {
    for (const float smoothing : {0.0f, 0.1f}) {
      const Operand logits = activation(draw.normal({rows, classes}, 4)),
                    targets = fixed(draw.indices({rows}, classes));
      for (int r = 0; r < rows; r += 4) {
        if (r % 8) targets.value.data<std::int64_t>()[r] = -100;
      }
      const CrossEntropyOptions options{.label_smoothing = smoothing, .ignore_index = -100};
      const std::string what = " of [" + std::to_string(rows) + ", " + std::to_string(classes) + "]";
      compare("cross_entropy" + what, {logits, targets},
              {fixed(unwritten({rows})), fixed(unwritten({2}, DType::float64))},
              [=](Backend& on, const Tensors& in, const Tensors& out) {
                on.run(ops::CrossEntropy{in[0], in[1], options, out[0], out[1]});
              });
      compare("cross_entropy_backward" + what, {logits, targets, fixed(scalar(0.37f))},
              {activation(unwritten({rows, classes}))},
              [=](Backend& on, const Tensors& in, const Tensors& out) {
                const Tensor logs = on.empty({in[0].size(0)}), total = on.empty({2}, DType::float64);
                on.run(ops::CrossEntropy{in[0], in[1], options, logs, total});
                on.copy(in[0], out[0]);
                on.run(ops::CrossEntropyBackward{out[0], in[1], options, logs, in[2], out[0]});  // in place
              });
      compare("cross_entropy_in_place" + what, {logits, targets, fixed(scalar(0.37f))},
              {activation(unwritten({rows, classes})), fixed(unwritten({2}, DType::float64))},
              [=](Backend& on, const Tensors& in, const Tensors& out) {
                on.copy(in[0], out[0]);
                on.run(ops::CrossEntropyInPlace{out[0], in[1], options, out[1]});
                on.run(ops::ScaleUnlessOne{out[0], in[2]});
              });
      compare("count_correct" + what, {logits, targets}, {fixed(unwritten({}, DType::int64))},
              [](Backend& on, const Tensors& in, const Tensors& out) {
                on.run(ops::CountCorrect{in[0], in[1], out[0]});
              });
    }
  }
}

BOOST_AUTO_TEST_CASE(gradients_may_lie_at_other_distances_to_16_bytes_than_the_logits) {
  Draw draw;
  compare("cross_entropy_backward of rows from the second on",
          {activation(draw.normal({9, 33})), fixed(draw.indices({8}, 33)), fixed(scalar(0.37f))},
          {activation(unwritten({8, 33}))}, [](Backend& on, const Tensors& in, const Tensors& out) {
            const Tensor logits = in[0].rows(1, 9), logs = on.empty({8}),
                         total = on.empty({2}, DType::float64);
            on.run(ops::CrossEntropy{logits, in[1], {}, logs, total});
            on.run(ops::CrossEntropyBackward{logits, in[1], {}, logs, in[2], out[0]});
          });
}

BOOST_AUTO_TEST_CASE(cross_entropy_survives_huge_logits) {
  const Tensor logits = Tensor::zeros({1, 3}), targets = Tensor::zeros({1}, DType::int64);
  logits.data<float>()[0] = 1e30f;
  logits.data<float>()[1] = -1e30f;
  const auto loss = [&] {
    const Tensor logs = gpu().empty({1}), total = gpu().empty({2}, DType::float64);
    gpu().run(ops::CrossEntropy{to_gpu(fixed(logits)), to_gpu(fixed(targets)), {}, logs, total});
    return to_cpu(total).data<double>()[0];
  };
  BOOST_TEST(loss() == 0);
  targets.data<std::int64_t>()[0] = 2;
  BOOST_TEST(loss() == 1e30, boost::test_tools::tolerance(1e-6));
  logits.data<float>()[2] = std::numeric_limits<float>::quiet_NaN();
  BOOST_TEST(std::isnan(loss()));
}

BOOST_AUTO_TEST_CASE(the_first_of_equal_logits_counts) {
  const Tensor logits = Tensor::zeros({3, 40}), targets = Tensor::zeros({3}, DType::int64);
  logits.data<float>()[40 + 4] = logits.data<float>()[40 + 36] = 2;
  logits.data<float>()[80 + 10] = 1;
  targets.data<std::int64_t>()[1] = 4;
  targets.data<std::int64_t>()[2] = 10;
  compare("count_correct", {fixed(logits), fixed(targets)}, {fixed(unwritten({}, DType::int64))},
          [](Backend& on, const Tensors& in, const Tensors& out) {
            on.run(ops::CountCorrect{in[0], in[1], out[0]});
          });
}

BOOST_AUTO_TEST_CASE(squared_errors_are_those_of_the_cpu) {
  Draw draw;
  for (const std::int64_t count : {0, 1, 7, 4096, 9001}) {
    const Operand x = activation(draw.normal({count})), target = activation(draw.normal({count}));
    compare("squared_error", {x, target}, {fixed(unwritten({2}, DType::float64))},
            [](Backend& on, const Tensors& in, const Tensors& out) {
              on.run(ops::squared_error(in[0], in[1], out[0]));
            });
    compare("squared_error_backward", {x, target, fixed(scalar(0.3f))}, {activation(unwritten({count}))},
            [](Backend& on, const Tensors& in, const Tensors& out) {
              on.run(ops::squared_error_backward(in[0], in[1], in[2], out[0]));
            });
  }
}

/// The text of the DataError that an operation and a read throw.
std::string fault_of(Backend& on, const std::function<void()>& operation) {
  try {
    operation();
    const Tensor anything = on.empty({1});
    on.fill(anything, 0);
    on.copy(anything, unwritten({1}));
  } catch (const DataError& error) {
    return error.what();
  }
  return "nothing was thrown";
}

BOOST_AUTO_TEST_CASE(bad_data_is_told_at_the_next_read_in_the_cpus_words_and_once) {
  Draw draw;
  const Tensor indices = draw.indices({3000}, 10), table = draw.normal({10, 4}),
               logits = draw.normal({3000, 10});
  indices.data<std::int64_t>()[2100] = -3;
  indices.data<std::int64_t>()[1234] = 10;
  const Tensor here[] = {to_gpu(fixed(indices)), to_gpu(fixed(table)), to_gpu(fixed(logits))};
  const auto embed = [](Backend& on, const Tensor& i, const Tensor& t) {
    on.run(ops::Embedding{i, t, on.empty({3000, 4})});
  };
  const auto lose = [](Backend& on, const Tensor& x, const Tensor& t) {
    on.run(ops::CrossEntropy{x, t, {}, on.empty({3000}), on.empty({2}, DType::float64)});
  };
  const std::string wanted = fault_of(cpu(), [&] { embed(cpu(), indices, table); });
  BOOST_TEST(wanted.find("index 10 (number 1234)") != std::string::npos);
  BOOST_TEST(fault_of(gpu(), [&] {
               embed(gpu(), here[0], here[1]);
               lose(gpu(), here[2], here[0]);  // a later fault is not told
             }) == wanted);
  BOOST_TEST(fault_of(gpu(), [] {}) == "nothing was thrown");
  BOOST_TEST(fault_of(gpu(), [&] { lose(gpu(), here[2], here[0]); }) ==
             fault_of(cpu(), [&] { lose(cpu(), logits, indices); }));
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace
}  // namespace lockstep::test
