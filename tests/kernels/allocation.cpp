// Steady state: repeated operations take no memory from the system. Every allocation of the process is
// counted; oneDNN's own workspaces (one at most per run of rows, freed within the call) are counted apart by
// running the same product directly.
#include <dnnl.h>

#include "kernels/reference.h"
#include "lockstep/ops/attention.h"
#include "lockstep/ops/convolution.h"
#include "lockstep/ops/gather.h"
#include "lockstep/ops/loss.h"
#include "lockstep/ops/pooling.h"
#include "lockstep/ops/random.h"
#include "lockstep/ops/update.h"
#include "ops/matmul.h"
#include "ops/norm.h"
#include "support/allocations.h"

namespace lockstep::test {
namespace {
BOOST_AUTO_TEST_SUITE(allocation)

using namespace kernels;

template <class Operation>
long allocations_of(const Operation& operation) {
  operation();
  operation();
  const AllocationCount count;
  operation();
  return count.made().all();
}

struct Step {
  explicit Step(int threads) : backend(make_cpu_backend(threads)) {}

  void without_products() {
    backend->run(ops::LayerNorm{x, {}, weight, bias, 1e-5f, {}, y, mean, inv_std});
    backend->run(ops::LayerNormBackward{dy, x, weight, mean, inv_std, {}, dx, dweight, dbias, true});
    backend->run(ops::GroupNorm{image, 4, channel, channel, 1e-5f, dimage, group, group_inverse});
    backend->run(ops::GroupNormBackward{image, image, 4, channel, group, group_inverse, dimage, dchannel,
                                        dchannel2, false});
    for (const ops::Activation kind : {ops::Activation::relu, ops::Activation::silu,
                                       ops::Activation::gelu_erf, ops::Activation::gelu_tanh}) {
      backend->run(ops::Activate{kind, x, y});
      backend->run(ops::ActivateBackward{kind, x, dy, dx});
    }
    backend->run(ops::AddChannels{channel, dimage});
    backend->run(ops::ResizeBilinear{image, resized});
    backend->run(ops::ResizeBilinearBackward{resized, dimage});
    backend->run(ops::Dropout{x, 0.1f, {}, y});
    backend->run(ops::add(x, y, y));
    backend->run(ops::add_rows(x, bias, y));
    backend->run(ops::SumRows{dy, dbias, true});
    backend->copy(x, y);
    backend->run(ops::Embedding{tokens, table, y});
    backend->run(ops::EmbeddingBackward{dy, tokens, dtable, false});
    backend->run(ops::CrossEntropy{x, tokens, {}, mean, total});
    backend->run(ops::CrossEntropyBackward{x, tokens, {}, mean, one, dx});
    backend->run(ops::CountCorrect{x, tokens, count});
    backend->run(ops::CrossEntropyInPlace{dx, tokens, {}, total});
    backend->run(ops::ScaleUnlessOne{dx, one});
    backend->run(ops::squared_error(x, y, total));
    backend->run(ops::Accumulate{dx, dy});
    const ops::BlockSumsOfSquares::Part squares{x, blocks};
    backend->run(ops::BlockSumsOfSquares{{&squares, 1}});
    const ops::EmaTarget targets[] = {{average, 0.99}};
    const ops::ParameterUpdate<ops::AdamW> adamw{
        ops::AdamW::of({.lr = 1e-3}), table, dtable, {exp_avg, exp_avg_sq}, targets};
    backend->run(ops::Update<ops::AdamW>{{&adamw, 1}});
    const ops::ParameterUpdate<ops::SgdMomentum<false>> sgd{
        {1e-3f, 0.9f, 0, 1}, table, dtable, {exp_avg}, targets};
    backend->run(ops::Update<ops::SgdMomentum<false>>{{&sgd, 1}});
    const Tensor temporary = backend->empty({96, 64});
    backend->run(ops::scale(x, 2, temporary));
  }

  Draw draw{121};
  std::unique_ptr<Backend> backend;
  Tensor x = draw.normal({96, 64}), y = draw.normal({96, 64}), dy = draw.normal({96, 64}),
         dx = draw.normal({96, 64});
  Tensor weight = draw.normal({64}), bias = draw.normal({64}), dweight = draw.normal({64}),
         dbias = draw.normal({64});
  Tensor mean = draw.normal({96}), inv_std = draw.normal({96});
  Tensor image = draw.normal({2, 8, 5, 5}), dimage = draw.normal({2, 8, 5, 5}), channel = draw.normal({8});
  Tensor resized = draw.normal({2, 8, 3, 9});
  Tensor dchannel = draw.normal({8}), dchannel2 = draw.normal({8});
  Tensor group = draw.normal({2, 4}), group_inverse = draw.normal({2, 4});
  Tensor tokens = draw.indices({96}, 64), table = draw.normal({64, 64}), dtable = draw.normal({64, 64});
  Tensor exp_avg = Tensor::zeros({64, 64}), exp_avg_sq = Tensor::zeros({64, 64}),
         average = Tensor::zeros({64, 64});
  Tensor blocks = Tensor::zeros({2}, DType::float64), total = Tensor::zeros({2}, DType::float64);
  Tensor count = Tensor::zeros({}, DType::int64), one = draw.normal({});
};

BOOST_AUTO_TEST_CASE(what_onednn_allocates_is_told_apart) {
  const AllocationCount count;
  dnnl_engine_t engine = nullptr;
  BOOST_TEST(dnnl_engine_create(&engine, dnnl_cpu, 0) == dnnl_success);
  dnnl_engine_destroy(engine);
  BOOST_TEST(count.made().own == 0);
  BOOST_TEST(count.made().onednn > 0);
}

BOOST_AUTO_TEST_CASE(operations_without_products_allocate_nothing) {
  for (const int threads : {1, 2}) {
    Step step(threads);
    BOOST_TEST(allocations_of([&] { step.without_products(); }) == 0, threads << " threads");
  }
}

BOOST_AUTO_TEST_CASE(a_product_of_one_run_allocates_no_more_than_onednn_does) {
  Draw draw(122);
  for (const std::array<int, 3>& size : {std::array{48, 64, 64}, {42, 256, 64}, {47, 64, 10}}) {
    const int rows = size[0], in = size[1], out = size[2];
    const auto backend = make_cpu_backend();
    const Tensor x = draw.normal({rows, in}), weight = draw.normal({out, in}), bias = draw.normal({out}),
                 y = draw.normal({rows, out}), dx = draw.normal({rows, in}), dweight = draw.normal({out, in});
    const long direct = allocations_of([&] {
      dnnl_sgemm('N', 'T', rows, out, in, 1, x.data<float>(), in, weight.data<float>(), in, 0,
                 y.data<float>(), out);
      dnnl_sgemm('N', 'N', rows, in, out, 1, y.data<float>(), out, weight.data<float>(), in, 0,
                 dx.data<float>(), in);
      dnnl_sgemm('N', 'N', out, in, rows, 1, y.data<float>(), rows, x.data<float>(), in, 0,
                 dweight.data<float>(), in);  // as with y turned
    });
    const long ours = allocations_of([&] {
      backend->run(ops::linear(x, weight, bias, y));
      backend->run(ops::linear_backward_input(y, weight, dx));
      backend->run(ops::linear_backward_weight(x, y, dweight, false));
    });
    BOOST_TEST_MESSAGE("oneDNN allocates " << direct << " times for three products");
    BOOST_TEST(ours <= direct);
  }
}

BOOST_AUTO_TEST_CASE(batched_products_allocate_nothing_of_their_own) {
  Draw draw(124);
  for (const std::int64_t size : {5, 150}) {
    const auto backend = make_cpu_backend();
    const Tensor a = draw.normal({4, size, size}), b = draw.normal({4, size, size}),
                 y = draw.normal({4, size, size}), sum = draw.normal({1, size, size});
    const auto run = [&] {
      backend->run(ops::MatMul{a, b, ops::Transposed::none, y});
      backend->run(ops::MatMul{a, b, ops::Transposed::b, y, true});
      backend->run(ops::MatMul{a, b, ops::Transposed::a, sum});
    };
    run();
    const AllocationCount count;
    run();
    BOOST_TEST(count.made().own == 0);
  }
}

BOOST_AUTO_TEST_CASE(attention_reserves_nothing_once_warm) {
  Draw draw(123);
  for (const int threads : {1, 2}) {
    const auto backend = make_cpu_backend(threads);
    const Tensor qkv = draw.normal({2, 60, 96}), dqkv = Tensor::empty({2, 60, 96}),
                 y = draw.normal({2, 60, 32}), saved = Tensor::empty({2, 4, 60, 60});
    const auto part = [](const Tensor& matrix, int number) { return ops::Columns{matrix, number * 32, 32}; };
    const auto run = [&] {
      backend->run(ops::Attention{part(qkv, 0), part(qkv, 1), part(qkv, 2), 4, true, y, saved});
      backend->run(ops::AttentionBackward{y, part(qkv, 0), part(qkv, 1), part(qkv, 2), 4, true, y, saved,
                                          part(dqkv, 0), part(dqkv, 1), part(dqkv, 2)});
    };
    run();
    const std::size_t reserved = backend->reserved_bytes();
    for (int i = 0; i < 3; ++i) run();
    BOOST_TEST(backend->reserved_bytes() == reserved);
    // For each thread and direction a strip of 48 rows, and copies of a few heads' columns.
    const std::size_t strips = 2 * 48 * 64, copies = 6 * 64 * 8;
    BOOST_TEST(reserved <= static_cast<std::size_t>(threads) * (strips + copies) * sizeof(float));
  }
}

BOOST_AUTO_TEST_SUITE_END()
}  // namespace
}  // namespace lockstep::test
