// cuDNN takes the graphs of attention and of convolutions, for GPUs that are described and not here: every
// problem that Lockstep sends to it has an engine that gives the same bits every time, whose kernel cuDNN
// compiles. Only the driver (driver.cpp) is made up, and takes any kernel.
#include <algorithm>
#include <array>
#include <boost/test/unit_test.hpp>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "kernels/cuda/attention.h"
#include "kernels/cuda/convolution.h"
#include "lockstep/ops/attention.h"
#include "support/gpu_labels.h"

namespace lockstep::test {
namespace {

using namespace kernels;

struct Kind {
  int version, multiprocessors, shared_bytes;
};
constexpr Kind a100{800, 108, 166912}, a10{860, 72, 101376}, l40{890, 142, 101376}, h100{900, 132, 232448},
    b200{1000, 148, 232448};

/// As cuDNN writes a device's properties.
CudnnDescriptor device_of(const Kind& kind) {
  return device_properties(
      R"({"maxGridSize": [2147483647, 65535, 65535], "maxBlockSize": [1024, 1024, 64], "regsPerBlock": 65536,
    "smClockRateKHz": 1980000, "memClockRateKHz": 2619000, "l2CacheSize": 52428800, "warpSize": 32,
    "maxSharedMemoryPerBlock": 49152, "reservedSharedMemoryPerBlock": 1024, "maxRegistersPerSM": 65536,
    "pciDeviceId": 0, "maxCtasPerSM": 32, "maxThreadsPerBlock": 1024, "maxThreadsPerSM": 2048, "isTccDriver": 0,
    "supportCoopLaunch": 1, "driverVer": 13000, "totalGlobalMem": 80000000000, "deviceName": "made up",
    "cudaDeviceId": 0, "deviceVer": )" +
      std::to_string(kind.version) + R"(, "multiProcessorCount": )" + std::to_string(kind.multiprocessors) +
      R"(, "maxSharedMemoryPerBlockOptin": )" + std::to_string(kind.shared_bytes) + "}");
}

/// Where the heads of q, k and v are: side by side in rows that all three share (k and v alone, where q has
/// another length), in rows of their own, or one head behind another.
enum class Layout : std::uint8_t { shared_rows, own_rows, heads_apart };
constexpr std::array layouts{Layout::shared_rows, Layout::own_rows, Layout::heads_apart};

struct Problem {
  std::int64_t queries, keys, width;
  bool causal;
  Layout layout;
  std::int64_t batch = 2, heads = 4, key_heads = heads;

  ops::AttentionSizes sizes() const { return {batch, queries, keys, heads, key_heads, width, causal, 2}; }
  HeadMatrix rows(std::int64_t time, std::int64_t of_heads, std::int64_t sharing) const {
    const std::int64_t row = sharing * of_heads * width;
    return {nullptr, {time * row, width, row}};
  }
  HeadMatrix operand(std::int64_t time, std::int64_t of_heads, std::int64_t sharing) const {
    if (layout == Layout::heads_apart) return {nullptr, {of_heads * time * width, time * width, width}};
    return rows(time, of_heads, layout == Layout::shared_rows ? sharing : 1);
  }
  HeadMatrix q() const { return operand(queries, heads, queries == keys ? 3 : 1); }
  HeadMatrix k() const { return operand(keys, key_heads, queries == keys ? 3 : 2); }
  HeadMatrix y() const { return rows(queries, heads, 1); }
  AttentionMatrices matrices() const { return {q(), k(), k(), y(), nullptr}; }
  AttentionGradients gradients() const { return {y(), q(), k(), k(), nullptr}; }
  AttentionStrides strides() const {
    const ops::HeadStrides of_q = q().strides, of_k = k().strides, of_y = y().strides;
    return {.q = of_q, .k = of_k, .v = of_k, .y = of_y, .dy = of_y, .dq = of_q, .dk = of_k, .dv = of_k};
  }
};

std::ostream& operator<<(std::ostream& out, const Problem& p) {
  return out << p.queries << " queries, " << p.keys << " keys, heads " << p.width << " wide, layout "
             << static_cast<int>(p.layout) << (p.causal ? ", causal" : "");
}

struct Lengths {
  std::int64_t queries, keys;
};
constexpr std::array<Lengths, 8> equal_lengths{
    {{1, 1}, {64, 64}, {100, 100}, {127, 127}, {128, 128}, {1000, 1000}, {1024, 1024}, {4096, 4096}}};
constexpr std::array<Lengths, 7> other_lengths{
    {{1, 64}, {64, 1}, {100, 77}, {128, 1000}, {1024, 512}, {4096, 77}, {64, 4096}}};
constexpr std::array<std::int64_t, 11> widths{8, 16, 20, 40, 64, 72, 80, 96, 128, 192, 256};

/// Every length with every width, causal and not; the layouts take turns.
std::vector<Problem> all_problems() {
  std::vector<Problem> problems;
  const auto add = [&](const Lengths& lengths, bool causal) {
    for (const std::int64_t width : widths)
      problems.push_back({lengths.queries, lengths.keys, width, causal, layouts[problems.size() % 3]});
  };
  for (const bool causal : {false, true}) {
    for (const Lengths& lengths : equal_lengths) add(lengths, causal);
  }
  for (const Lengths& lengths : other_lengths) add(lengths, false);
  return problems;
}

/// Two bytes for a head and pair of positions, of tiles of 128 that these fill: docs/gpu.md says so.
void check_workspace(const Problem& p, std::size_t bytes) {
  constexpr std::int64_t tile = 128, besides = 4096;
  const auto whole = [](std::int64_t count) { return (count + tile - 1) / tile * tile; };
  const std::int64_t heads = p.batch * p.heads;
  BOOST_TEST(bytes >= static_cast<std::size_t>(2 * heads * p.queries * p.keys));
  BOOST_TEST(bytes <= static_cast<std::size_t>(2 * heads * whole(p.queries) * whole(p.keys) + besides));
}

/// Of what is not sent, how much cuDNN would take.
struct Left {
  int problems = 0, taken = 0;
};

class Sweep {
 public:
  explicit Sweep(const Kind& kind) : device_((load_cuda_libraries(), device_of(kind))) {
    support_ = {cudnnGetVersion(), kind.version / 100};
  }

  /// left: null: what is not sent is not built.
  void check(const Problem& p, Left* left) const {
    BOOST_TEST_CONTEXT(p) {
      FusedGraph forward = attention_graph(p.sizes(), p.strides());
      build("forward", forward, support_.forward(p.sizes(), p.matrices()), left);
      FusedGraph backward = attention_backward_graph(p.sizes(), p.strides());
      if (build("backward", backward, support_.backward(p.sizes(), p.matrices(), p.gradients()), left))
        check_workspace(p, backward.workspace_bytes());
    }
  }

 private:
  /// Whether it was sent, and taken.
  bool build(const char* pass, FusedGraph& graph, bool sent, Left* left) const {
    if (!sent && !left) return false;
    const bool taken = graph.build(device_);
    if (sent) {
      BOOST_TEST(taken, pass << ": " << graph.why());
    } else {
      ++left->problems;
      left->taken += taken;
    }
    return sent && taken;
  }

  CudnnDescriptor device_;
  AttentionSupport support_{};
};

BOOST_AUTO_TEST_SUITE(graphs)

BOOST_AUTO_TEST_CASE(the_libraries_that_it_was_built_for_are_found_and_have_every_function) {
  BOOST_CHECK_NO_THROW(load_cuda_libraries());
}

BOOST_AUTO_TEST_CASE(a_gpt_is_taken_on_every_kind_of_gpu) {
  for (const Kind& kind : {a100, a10, l40, h100, b200}) {
    BOOST_TEST_CONTEXT("version " << kind.version) {
      Sweep(kind).check({1024, 1024, 64, true, Layout::shared_rows, 16, 12}, nullptr);
    }
  }
}

/// GPT-2 124M in shards of 2, and the U-Net of diffusion-cifar in shards of 16, at 16 and at 8 positions a
/// side.
BOOST_AUTO_TEST_CASE(attention_of_the_models_has_the_plans_of_a_part_for_all) {
  load_cuda_libraries();
  const CudnnDescriptor device = device_of(h100);
  for (Problem part : {Problem{1024, 1024, 64, true, Layout::shared_rows, 2, 12},
                       Problem{256, 256, 64, false, Layout::shared_rows, 16, 4},
                       Problem{64, 64, 64, false, Layout::shared_rows, 16, 4}}) {
    BOOST_TEST_CONTEXT(part) {
      for (const auto graph_of : {attention_graph, attention_backward_graph}) {
        FusedGraph alone = graph_of(part.sizes(), part.strides());
        BOOST_TEST(alone.build(device), alone.why());
        Problem whole = part;
        whole.batch *= 8;
        FusedGraph all = graph_of(whole.sizes(), whole.strides());
        BOOST_TEST(all.build(device, {.engine = &alone.engine()}), all.why());
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(problems_that_are_sent_are_taken) {
  const std::vector<Problem> problems = all_problems();
  std::size_t next = 0;
  for (const Kind& kind : {a100, l40, h100, b200}) {
    const Sweep sweep(kind);
    BOOST_TEST_CONTEXT("version " << kind.version) {
      for (int i = 0; i < 9; ++i, next = (next + 47) % problems.size()) sweep.check(problems[next], nullptr);
    }
  }
}

BOOST_AUTO_TEST_CASE(fewer_key_heads_are_not_sent) {
  load_cuda_libraries();
  const AttentionSupport support{cudnnGetVersion(), 9};
  Problem problem{128, 128, 64, false, Layout::own_rows};
  BOOST_TEST(support.forward(problem.sizes(), problem.matrices()));
  BOOST_TEST(support.backward(problem.sizes(), problem.matrices(), problem.gradients()));
  problem.key_heads = 2;
  BOOST_TEST(!support.forward(problem.sizes(), problem.matrices()));
  BOOST_TEST(!support.backward(problem.sizes(), problem.matrices(), problem.gradients()));
}

/// A layer: [images, in, size, size] to `out` channels by a kernel of kernel x kernel, padded as models pad.
struct Layer {
  std::int64_t size, in, out, kernel = 3;
  int stride = 1;
  bool bias = false, volumes = false;

  CudnnConvolution problem(ConvolutionPass pass, std::int64_t images, DType dtype) const {
    const auto padding = static_cast<int>(kernel / 2);
    const std::int64_t result = (size + 2 * padding - kernel) / stride + 1;
    const ops::ConvolutionGeometry geometry{.stride = stride, .padding = padding};
    ops::ConvolutionSizes sizes{images, in, size, size, out, result, result, kernel, kernel, geometry};
    if (volumes) {
      sizes.volumes = true;
      sizes.depth = size;
      sizes.out_depth = result;
      sizes.kernel_depth = kernel;
    }
    return {.pass = pass,
            .sizes = sizes,
            .dtype = dtype,
            .channels_last = true,
            .bias = bias && pass == ConvolutionPass::forward};
  }
};

std::ostream& operator<<(std::ostream& out, const Layer& l) {
  return out << l.in << " x " << l.size << " x " << l.size << " -> " << l.out << " by " << l.kernel << " / "
             << l.stride << (l.bias ? " with bias" : "") << (l.volumes ? ", volumes" : "");
}

/// The distinct layers of resnet-gpu (ResNet-18) and of ResNet-50, on images of 224 x 224.
std::vector<Layer> resnet_layers() {
  std::vector<Layer> layers{{224, 3, 64, 7, 2}};
  std::int64_t before = 64, before_wide = 64;
  for (const std::int64_t width : {64, 128, 256, 512}) {
    const std::int64_t size = 56 * 64 / width, from = width == 64 ? size : 2 * size, wide = 4 * width;
    const int stride = width == 64 ? 1 : 2;
    layers.push_back({size, width, width});
    if (stride == 2) layers.insert(layers.end(), {{from, before, width, 3, 2}, {from, before, width, 1, 2}});
    // ResNet-50
    layers.insert(layers.end(), {{from, before_wide, width, 1},
                                 {size, wide, width, 1},
                                 {size, width, wide, 1},
                                 {from, before_wide, wide, 1, stride}});
    if (stride == 2) layers.push_back({from, width, width, 3, 2});
    before = width;
    before_wide = wide;
  }
  return layers;
}

/// Those of unet-gpu, and of jobs/diffusion-cifar.ini, whose results have twice the channels.
std::vector<Layer> unet_layers() {
  std::vector<Layer> layers{{32, 3, 128}, {32, 128, 3}, {32, 128, 6}, {32, 256, 256}};
  for (const auto& [size, in, out] : std::vector<std::array<std::int64_t, 3>>{{32, 384, 128},
                                                                              {32, 256, 128},
                                                                              {16, 128, 256},
                                                                              {16, 384, 256},
                                                                              {16, 512, 256},
                                                                              {8, 512, 256},
                                                                              {4, 512, 256}})
    layers.insert(layers.end(), {{size, in, out}, {size, in, out, 1}});
  for (const auto& [size, width] : {std::pair{32, 128}, {16, 256}, {8, 256}}) {
    layers.push_back({size, width, width});
    layers.push_back({size, width, width, 3, 2});
  }
  layers.push_back({4, 256, 256});
  for (Layer& layer : layers) layer.bias = true;
  return layers;
}

class ConvolutionSweep {
 public:
  ConvolutionSweep() : device_((load_cuda_libraries(), device_of(h100))) {}

  /// A part of 16 of 128 images has a plan, by whose engine and knobs all images have one.
  void check(const Layer& layer, ConvolutionPass pass, DType dtype) const {
    BOOST_TEST_CONTEXT(layer << " in " << to_string(dtype) << ", pass " << static_cast<int>(pass)) {
      FusedGraph part = convolution_graph(layer.problem(pass, 16, dtype));
      PlanRules rules = convolution_rules(dtype);
      const bool has_plan = part.build(device_, rules);
      BOOST_TEST(has_plan, part.why());
      if (!has_plan || pass == ConvolutionPass::backward_weight) return;
      FusedGraph all = convolution_graph(layer.problem(pass, 128, dtype));
      rules.engine = &part.engine();
      const bool taken = all.build(device_, rules);
      BOOST_TEST(taken, all.why());
      if (taken) BOOST_TEST((all.engine() == part.engine()), all.engine().text());
    }
  }

 private:
  CudnnDescriptor device_;
};

constexpr ConvolutionPass passes[] = {ConvolutionPass::forward, ConvolutionPass::backward_input,
                                      ConvolutionPass::backward_weight};

BOOST_AUTO_TEST_CASE(convolutions_of_the_models_have_the_plans_of_a_part_for_all_images) {
  const ConvolutionSweep sweep;
  for (const std::vector<Layer>& layers : {resnet_layers(), unet_layers()}) {
    for (const Layer& layer : layers) {
      for (const ConvolutionPass pass : passes) sweep.check(layer, pass, DType::bfloat16);
    }
  }
}

BOOST_AUTO_TEST_CASE(convolutions_in_float32_have_plans_without_tensor_cores) {
  const ConvolutionSweep sweep;
  for (const Layer& layer : {Layer{224, 3, 64, 7, 2}, Layer{56, 64, 64}, Layer{28, 128, 128, 1, 2},
                             Layer{16, 256, 256, 3, 1, true}, Layer{32, 3, 128, 3, 1, true}}) {
    for (const ConvolutionPass pass : passes) sweep.check(layer, pass, DType::float32);
  }
}

/// Those of cosmoflow at 32 x 32 x 32, and of a U-Net of volumes. 128 images are fewer than 2^31 elements:
/// more have no plan by the engine of a part.
BOOST_AUTO_TEST_CASE(convolutions_of_volumes_have_plans) {
  const ConvolutionSweep sweep;
  for (const DType dtype : {DType::bfloat16, DType::float32}) {
    for (const Layer& layer : {Layer{32, 4, 32, 3, 1, true, true}, Layer{16, 32, 64, 3, 1, true, true},
                               Layer{8, 256, 512, 3, 1, true, true}, Layer{32, 32, 64, 3, 2, true, true},
                               Layer{16, 64, 32, 1, 1, true, true}}) {
      for (const ConvolutionPass pass : passes) sweep.check(layer, pass, dtype);
    }
  }
}

BOOST_AUTO_TEST_SUITE_END()

/// In campaigns: minutes for each kind of GPU.
BOOST_AUTO_TEST_SUITE(every_problem, *large())

void check_all(const Kind& kind) {
  const Sweep sweep(kind);
  Left left;
  for (const Problem& problem : all_problems()) sweep.check(problem, &left);
  BOOST_TEST_MESSAGE("of " << left.problems << " graphs that are not sent, cuDNN takes " << left.taken);
}

BOOST_AUTO_TEST_CASE(sm_80) { check_all(a100); }
BOOST_AUTO_TEST_CASE(sm_86) { check_all(a10); }
BOOST_AUTO_TEST_CASE(sm_89) { check_all(l40); }
BOOST_AUTO_TEST_CASE(sm_90) { check_all(h100); }
BOOST_AUTO_TEST_CASE(sm_100) { check_all(b200); }

BOOST_AUTO_TEST_SUITE_END()

}  // namespace
}  // namespace lockstep::test
