// What the GPU half does where a library, a GPU or a driver has a limit: it refuses by name, or uses its own
// kernels.
#include <algorithm>
#include <boost/test/unit_test.hpp>
#include <string>
#include <utility>
#include <vector>

#include "base/cores.h"
#include "comm/nccl.h"
#include "emulated_gpu/cudnn_graph.h"
#include "emulated_gpu/runtime.h"
#include "kernels/cuda/attention.h"
#include "kernels/gpus.h"
#include "lockstep/autograd/functions.h"
#include "lockstep/base/error.h"
#include "lockstep/base/random.h"
#include "lockstep/ops/attention.h"
#include "lockstep/ops/elementwise.h"
#include "ops/matmul.h"
#include "train/infer/generate.h"
#include "train/on_a_device.h"

namespace lockstep::test {
namespace {

BOOST_AUTO_TEST_SUITE(limits_test)

using emulated_gpu::counts;
using emulated_gpu::faults;
using emulated_gpu::WithFaults;

bool says(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

struct Graphs {
  bool forward = false, backward = false;
  bool operator==(const Graphs&) const = default;
};
std::ostream& operator<<(std::ostream& out, const Graphs& graphs) {
  return out << "forward " << graphs.forward << ", backward " << graphs.backward;
}

/// Which graphs cuDNN is asked for: of 2 heads side by side in rows of q, k and v.
Graphs graphs_for(std::int64_t positions, std::int64_t width) {
  const std::int64_t heads = 2, row = 3 * heads * width;
  std::vector<double> memory(1024);  // of which only the address matters
  void* const aligned = memory.data();
  const kernels::HeadMatrix matrix{aligned, {positions * row, width, row}},
      single{aligned, {positions * heads * width, width, heads * width}};
  const ops::AttentionSizes sizes{1, positions, positions, heads, heads, width, true, 2};
  const kernels::AttentionMatrices matrices{matrix, matrix, matrix, single, nullptr};
  kernels::FlashAttention attention(0, nullptr);
  return {attention.forward(sizes, matrices) != nullptr,
          attention.backward(sizes, matrices, {single, matrix, matrix, matrix, nullptr}) != nullptr};
}

constexpr Graphs both{true, true}, forward_only{true, false}, none{false, false};

BOOST_AUTO_TEST_CASE(a_cudnn_that_reads_past_odd_lengths_in_graphs_gets_no_backward_of_them) {
  const WithFaults end;
  BOOST_TEST(graphs_for(100, 64) == both);
  faults().cudnn_version = 91500;
  BOOST_TEST(graphs_for(100, 64) == forward_only);
  BOOST_TEST(graphs_for(128, 64) == both);
  faults().cudnn_version = 91501;
  BOOST_TEST(graphs_for(100, 64) == both);
}

BOOST_AUTO_TEST_CASE(heads_that_are_no_packs_or_too_wide_for_the_gpu_are_computed_by_own_kernels) {
  const WithFaults end;
  faults().any_width = true;
  for (const std::int64_t width : {4, 12, 20, 100})
    BOOST_TEST(graphs_for(64, width) == none, "width " << width);
  for (const std::int64_t width : {8, 64, 128, 256})
    BOOST_TEST(graphs_for(64, width) == both, "width " << width);
  BOOST_TEST(graphs_for(64, 264) == none);
  for (const int major : {8, 10}) {
    faults().major = major;
    BOOST_TEST(graphs_for(64, 128) == both);
    BOOST_TEST(graphs_for(64, 136) == none);
  }
}

BOOST_AUTO_TEST_CASE(a_graph_whose_working_memory_is_more_than_a_quarter_of_the_gpu_is_not_used) {
  const WithFaults end;
  faults().free_bytes = 4 * static_cast<std::size_t>(emulated_gpu::graph_workspace_bytes);
  BOOST_TEST(graphs_for(64, 64) == both);
  faults().free_bytes -= 1;
  BOOST_TEST(graphs_for(64, 64) == none);
}

BOOST_AUTO_TEST_CASE(a_single_position_has_no_backward_graph) {
  BOOST_TEST(graphs_for(1, 64) == forward_only);
}

/// On the GPU, and the same each time.
Tensor normals(kernels::Backend& gpu, Shape shape, std::uint64_t key, DType dtype = DType::float32) {
  const Random random({key, purpose_of("limits")});
  const Tensor here = Tensor::empty(shape), there = gpu.empty(shape, dtype);
  for (std::int64_t i = 0; i < here.numel(); ++i)
    here.data<float>()[i] = random.normal(static_cast<std::uint64_t>(i));
  gpu.copy(here, there);
  return there;
}

/// y, dq, dk and dv of a head, one after the other.
std::vector<float> attend_on_gpu(std::int64_t width) {
  const std::unique_ptr<kernels::Backend> gpu = kernels::make_cuda_backend(0);
  const Shape shape{1, 70, width};
  const auto drawn = [&](std::uint64_t key) { return ops::all_columns(normals(*gpu, shape, key)); };
  const ops::Columns q = drawn(1), k = drawn(2), v = drawn(3), dy = drawn(4);
  const std::vector<Tensor> found{gpu->empty(shape), gpu->empty(shape), gpu->empty(shape), gpu->empty(shape)};
  const Tensor saved = gpu->empty(gpu->attention_saved_shape(1, 1, 70, 70));
  gpu->run(ops::Attention{q, k, v, 1, true, found[0], saved});
  gpu->run(ops::AttentionBackward{dy.matrix, q, k, v, 1, true, found[0], saved, ops::all_columns(found[1]),
                                  ops::all_columns(found[2]), ops::all_columns(found[3])});
  std::vector<float> all;
  for (const Tensor& tensor : found) {
    const Tensor here = on_cpu(tensor, gpu.get());
    all.insert(all.end(), here.data<float>(), here.data<float>() + here.numel());
  }
  return all;
}

BOOST_AUTO_TEST_CASE(a_block_of_99_KiB_has_room_for_the_tiles_of_every_width) {
  const WithFaults end;
  for (const std::int64_t width : {192, 196, 197, 250, 256}) {
    faults().shared_bytes = 227 * 1024;
    const std::vector<float> wanted = attend_on_gpu(width);
    faults().shared_bytes = 99 * 1024;  // as on GPUs of sm_86, sm_89 and sm_120
    BOOST_TEST_CONTEXT("width " << width) { BOOST_TEST((attend_on_gpu(width) == wanted)); }
  }
}

BOOST_AUTO_TEST_CASE(heads_whose_tiles_a_block_has_no_room_for_are_refused_by_name) {
  const WithFaults end;
  faults().shared_bytes = 64 * 1024;
  BOOST_CHECK_NO_THROW(attend_on_gpu(112));
  BOOST_CHECK_EXCEPTION(attend_on_gpu(256), UsageError, [](const UsageError& error) {
    return says(error.what(), "heads of width 256") && says(error.what(), "KiB of shared memory");
  });
}

/// Products with such rows that cuBLASLt is asked for by a layer of 257 outputs, and its gradients.
int ragged_products(std::int64_t rows) {
  const std::unique_ptr<kernels::Backend> gpu = kernels::make_cuda_backend(0);
  const auto matrix = [&](std::int64_t height, std::int64_t width, DType dtype) {
    const Tensor made = gpu->empty({height, width}, dtype);
    gpu->fill(made, 0);
    return made;
  };
  const Tensor x = matrix(rows, 256, DType::bfloat16), y = matrix(rows, 257, DType::bfloat16),
               weight = matrix(257, 256, DType::float32);
  counts().ragged_products = 0;
  gpu->run(ops::linear(x, weight, {}, y));
  gpu->run(ops::linear_backward_input(y, weight, x));
  gpu->run(ops::linear_backward_weight(x, y, weight));
  return counts().ragged_products;
}

BOOST_AUTO_TEST_CASE(large_products_of_rows_that_are_no_packs_are_made_with_padded_copies) {
  BOOST_TEST(ragged_products(256) == 0);
  BOOST_TEST(ragged_products(8) == 3);  // where copies would cost more
}

/// What the backward of a linear layer makes, and takes.
struct LayerBackward {
  std::vector<float> dx, dweight;
  int launches = 0;           ///< of own kernels
  bool copy_is_free = false;  ///< the memory of a padded copy of dy
};

enum class Layer { plain, activated, feed_forward };

/// Of 256 rows and inputs.
LayerBackward backward_of_layer(std::int64_t outputs, Layer layer, bool input_has_gradient) {
  constexpr int many = 1000;
  const std::unique_ptr<kernels::Backend> gpu = kernels::make_cuda_backend(0);
  const auto numbers = [&](const Tensor& of) {
    const Tensor here = Tensor::empty(of.shape());
    gpu->copy(of, here);
    return std::vector<float>(here.data<float>(), here.data<float>() + here.numel());
  };
  const Tensor x = normals(*gpu, {256, 256}, 1, DType::bfloat16),
               dy = normals(*gpu, {256, outputs}, 3, DType::bfloat16);
  Tape tape(*gpu);
  tape.begin({.compute = DType::bfloat16});
  const Var input = input_has_gradient ? tape.input(x) : tape.constant(x),
            weight = tape.input(normals(*gpu, {outputs, 256}, 2));
  const auto bias = [&](std::int64_t width) { return tape.input(normals(*gpu, {width}, 4)); };
  const Var y = layer == Layer::plain ? linear(input, weight, {})
                : layer == Layer::activated
                    ? linear(input, weight, {}, ops::Activation::gelu_erf)
                    : feed_forward(input, tape.input(normals(*gpu, {256, 256}, 5)), bias(256),
                                   ops::Activation::gelu_erf, weight, bias(outputs));
  numbers(y.value());  // the forward is done
  faults().good_launches = many;
  tape.backward(y, dy);
  LayerBackward found{.dx = {}, .dweight = numbers(tape.gradient(weight))};
  if (input_has_gradient) found.dx = numbers(tape.gradient(input));
  found.launches = many - faults().good_launches;
  faults().good_launches = -1;
  const std::size_t reserved = gpu->reserved_bytes();
  // The weight of the product was in a block of the same size.
  const Tensor of_weight = gpu->empty({256, 264}, DType::bfloat16),
               of_copy = gpu->empty({256, 264}, DType::bfloat16);
  found.copy_is_free = gpu->reserved_bytes() == reserved;
  return found;
}

BOOST_AUTO_TEST_CASE(both_gradients_of_a_layer_read_one_padded_copy_which_goes_with_the_layer) {
  const WithFaults end;
  for (const Layer layer : {Layer::plain, Layer::activated, Layer::feed_forward}) {
    for (const bool input_has_gradient : {true, false}) {
      const LayerBackward ragged = backward_of_layer(257, layer, input_has_gradient),
                          packs = backward_of_layer(264, layer, input_has_gradient);
      BOOST_TEST(ragged.launches == packs.launches + 1);
      BOOST_TEST(ragged.copy_is_free);
    }
  }
}

BOOST_AUTO_TEST_CASE(a_shared_padded_copy_gives_the_bits_of_separate_ones) {
  const LayerBackward found = backward_of_layer(257, Layer::plain, true);
  const std::unique_ptr<kernels::Backend> gpu = kernels::make_cuda_backend(0);
  const Tensor x = normals(*gpu, {256, 256}, 1, DType::bfloat16), weight = normals(*gpu, {257, 256}, 2),
               dy = normals(*gpu, {256, 257}, 3, DType::bfloat16), dx = gpu->empty(x.shape(), x.dtype()),
               dweight = gpu->empty(weight.shape());
  gpu->run(ops::linear_backward_weight(x, dy, dweight));
  gpu->run(ops::linear_backward_input(dy, weight, dx));
  const Tensor dx_here = Tensor::empty(dx.shape()), dweight_here = Tensor::empty(dweight.shape());
  gpu->copy(dx, dx_here);
  gpu->copy(dweight, dweight_here);
  BOOST_TEST(std::equal(found.dx.begin(), found.dx.end(), dx_here.data<float>()));
  BOOST_TEST(std::equal(found.dweight.begin(), found.dweight.end(), dweight_here.data<float>()));
}

/// A head of 300 classes on a GPU: with padded columns, or a product and its loss apart.
struct HeadLoss {
  double loss = 0;
  std::vector<float> dx, dweight;
  int ragged_products = 0;
};

HeadLoss head_loss(bool together) {
  const std::unique_ptr<kernels::Backend> gpu = kernels::make_cuda_backend(0);
  const auto numbers = [&](const Tensor& of) {
    const Tensor here = kernels::on_cpu(gpu->in_type(of, DType::float32), gpu.get());
    return std::vector<float>(here.data<float>(), here.data<float>() + here.numel());
  };
  const Tensor targets = Tensor::zeros({64}, DType::int64);
  for (std::int64_t i = 0; i < 64; ++i) targets.data<std::int64_t>()[i] = i * 7 % 300;
  targets.data<std::int64_t>()[3] = -100;
  const Tensor there = kernels::on_device(targets, *gpu);
  Tape tape(*gpu);
  tape.begin({.compute = DType::bfloat16});
  const Var x = tape.input(normals(*gpu, {64, 32}, 1, DType::bfloat16)),
            weight = tape.input(normals(*gpu, {300, 32}, 2));
  const ops::CrossEntropyOptions options{.label_smoothing = 0.1f};
  counts().ragged_products = 0;
  const Loss loss = together ? linear_cross_entropy(x, weight, there, options)
                             : cross_entropy(linear(x, weight), there, options);
  backward(loss, 0.5f);
  return {loss.read().sum, numbers(tape.gradient(x)), numbers(tape.gradient(weight)),
          counts().ragged_products};
}

BOOST_AUTO_TEST_CASE(a_head_of_classes_that_are_no_packs_has_the_loss_and_gradients_of_its_parts) {
  const HeadLoss found = head_loss(true), wanted = head_loss(false);
  BOOST_TEST(found.ragged_products == 0);
  BOOST_TEST(wanted.ragged_products > 0);
  BOOST_TEST(found.loss == wanted.loss, boost::test_tools::tolerance(1e-4));
  BOOST_REQUIRE(found.dweight.size() == wanted.dweight.size());
  for (std::size_t i = 0; i < wanted.dx.size(); ++i)
    BOOST_REQUIRE(std::abs(found.dx[i] - wanted.dx[i]) <= 0.02 + 0.02 * std::abs(wanted.dx[i]));
  for (std::size_t i = 0; i < wanted.dweight.size(); ++i)
    BOOST_REQUIRE(std::abs(found.dweight[i] - wanted.dweight[i]) <=
                  0.02 + 0.02 * std::abs(wanted.dweight[i]));
}

BOOST_AUTO_TEST_CASE(padded_copies_are_part_of_a_graph) {
  const std::unique_ptr<kernels::Backend> gpu = kernels::make_cuda_backend(0);
  const Tensor x = gpu->empty({256, 256}, DType::bfloat16), y = gpu->empty({256, 257}, DType::bfloat16),
               weight = gpu->empty({257, 256});
  gpu->fill(weight, 0.5f);
  const ops::MatMul layer = ops::linear(x, weight, {}, y);
  gpu->run(layer);  // the weight in bf16 is there from now on
  counts().ragged_products = 0;
  const std::unique_ptr<kernels::GraphCapture> capture = gpu->capture_graph(0);
  gpu->run(layer);
  const std::unique_ptr<kernels::Graph> graph = capture->finish();
  for (const float value : {1.0f, 2.0f}) {
    gpu->fill(x, value);
    gpu->fill(y, 0);
    graph->launch(0);
    const Tensor found = Tensor::empty(y.shape());
    gpu->copy(y, found);
    BOOST_TEST(std::count(found.data<float>(), found.data<float>() + found.numel(), 128 * value) ==
               found.numel());
  }
  BOOST_TEST(counts().ragged_products == 0);
}

BOOST_AUTO_TEST_CASE(a_blackwell_gpu_with_a_cudnn_whose_attention_does_not_repeat_is_refused_by_name) {
  const WithFaults end;
  faults().major = 10;
  BOOST_CHECK_NO_THROW(kernels::make_cuda_backend(0));
  faults().cudnn_version = 91702;
  BOOST_CHECK_EXCEPTION(kernels::make_cuda_backend(0), UsageError, [](const UsageError& error) {
    return says(error.what(), "sm_100") && says(error.what(), "cuDNN 9.17.2") && says(error.what(), "9.18");
  });
  faults().major = 9;
  BOOST_CHECK_NO_THROW(kernels::make_cuda_backend(0));
}

BOOST_AUTO_TEST_CASE(a_driver_that_is_too_old_is_told_what_is_needed_and_how_to_build_for_it) {
  const WithFaults end;
  faults().devices = cudaErrorInsufficientDriver;
  faults().driver = 12040;
  const auto explains = [](const std::string& text) {
    const int major = CUDART_VERSION / 1000;
    return says(text, "CUDA 12.4") && says(text, "CUDA " + std::to_string(major) + ".") &&
           says(text, major == 13 ? "580" : "525") && says(text, "CMAKE_CUDA_COMPILER");
  };
  BOOST_CHECK_EXCEPTION(kernels::make_cuda_backend(0), UsageError,
                        [&](const UsageError& error) { return explains(error.what()); });
  const kernels::Gpus gpus = kernels::find_gpus();
  BOOST_TEST(explains(gpus.problem + "; " + gpus.remedy));
}

BOOST_AUTO_TEST_CASE(a_start_on_a_gpu_that_the_build_has_no_machine_code_for_says_so) {
  const WithFaults end;
  BOOST_TEST(kernels::find_gpus().visible.front().code.remark == "");
  faults().architectures = "80";
  BOOST_TEST(says(kernels::find_gpus().visible.front().code.remark,
                  "the first start on a node compiles its kernels"));
  BOOST_CHECK_NO_THROW(kernels::make_cuda_backend(0));
  faults().architectures = "80-real";
  BOOST_CHECK_EXCEPTION(kernels::make_cuda_backend(0), UsageError, [](const UsageError& error) {
    return says(error.what(), "cuda:0") && says(error.what(), "nor PTX") &&
           says(error.what(), "-DLOCKSTEP_CUDA_ARCHITECTURES=90");
  });
}

BOOST_AUTO_TEST_CASE(texts_need_no_plan_for_each_length_and_are_those_of_the_cpu) {
  train::Config config =
      device_config("name = gpt\nlayers = 2\nheads = 2\nchannels = 16\ncontext = 96\nvocab = 256\n");
  Place gpu = on_cpu(), cpu = on_cpu();
  gpu.backend = kernels::make_cuda_backend(0);
  const auto there = model_on(config, *gpu.backend), here = model_on(config, *cpu.backend);
  counts().attention_plans = 0;
  const std::vector<train::Tokens> starts{train::Tokens(60, 97), {97, 32}, {98, 99, 100}};
  train::generate(*there, *gpu.backend, std::span(starts).first(1), 0,
                  {.tokens = 8, .compute = DType::bfloat16});
  BOOST_TEST(counts().attention_plans == 0);  // prompts have positions of their own
  // In float32, whose attention is exact enough: the texts are the CPU's, also beyond the context.
  const train::GenerateOptions likely{.tokens = 50, .temperature = 0};
  BOOST_TEST((train::generate(*there, *gpu.backend, starts, 0, likely) ==
              train::generate(*here, *cpu.backend, starts, 0, likely)));
}

BOOST_AUTO_TEST_CASE(a_rank_of_few_cores_sleeps_while_it_waits_for_its_gpu) {
  Place gpu = on_cpu();
  gpu.backend = kernels::make_cuda_backend(0);
  const Tensor there = gpu.backend->empty({8}), here = Tensor::empty({8});
  counts().spinning_waits = 0;
  gpu.backend->fill(there, 3);
  gpu.backend->copy(there, here);
  BOOST_TEST(here.data<float>()[7] == 3);
  BOOST_TEST((counts().spinning_waits == 0) == (available_cores() < 4));
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace
}  // namespace lockstep::test
