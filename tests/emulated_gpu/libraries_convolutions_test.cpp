// Convolutions by the emulated cuDNN, as Convolutions asks for them, against sums written out.
#include <cuda_runtime_api.h>

#include "emulated_gpu/library_numbers.h"
#include "kernels/cuda/convolution.h"
#include "lockstep/base/error.h"

namespace lockstep::test {
namespace {

BOOST_AUTO_TEST_SUITE(libraries_convolutions_test)

using kernels::ConvolutionPass;
using kernels::CudnnConvolution;
using ops::ConvolutionSizes;

struct Geometry {
  int images, in_channels, out_channels, extent, kernel, stride, padding, groups;
};

constexpr Geometry geometries[] = {
    {2, 4, 6, 7, 3, 1, 1, 1}, {1, 4, 8, 8, 3, 2, 1, 2}, {2, 3, 2, 5, 1, 1, 0, 1}, {1, 6, 6, 9, 5, 2, 0, 6}};

/// Images, weights and results of one problem, and their places in memory.
struct Case {
  Case(const Geometry& given, DType dtype, bool channels_last) : g(given) {
    out = (g.extent + 2 * g.padding - g.kernel) / g.stride + 1;
    problem.sizes = ConvolutionSizes{.images = g.images,
                                     .in_channels = g.in_channels,
                                     .height = g.extent,
                                     .width = g.extent,
                                     .out_channels = g.out_channels,
                                     .out_height = out,
                                     .out_width = out,
                                     .kernel_height = g.kernel,
                                     .kernel_width = g.kernel,
                                     .geometry = {g.stride, g.padding, g.groups}};
    problem.dtype = dtype;
    problem.channels_last = channels_last;
  }

  std::size_t place(int n, int c, int h, int w, int channels, int extent) const {
    const int at = problem.channels_last ? ((n * extent + h) * extent + w) * channels + c
                                         : ((n * channels + c) * extent + h) * extent + w;
    return static_cast<std::size_t>(at);
  }
  /// call(x's place, w's place, y's place) of every product in the convolution.
  template <class Call>
  void for_products(const Call& call) const {
    const int inputs = g.in_channels / g.groups, outputs = g.out_channels / g.groups;
    for (int n = 0; n < g.images; ++n)
      for (int o = 0; o < g.out_channels; ++o)
        for (int c = 0; c < inputs; ++c)
          for (int y = 0; y < out; ++y)
            for (int x = 0; x < out; ++x)
              for (int r = 0; r < g.kernel; ++r)
                for (int s = 0; s < g.kernel; ++s) {
                  const int h = y * g.stride + r - g.padding, w = x * g.stride + s - g.padding;
                  if (h < 0 || h >= g.extent || w < 0 || w >= g.extent) continue;
                  call(place(n, o / outputs * inputs + c, h, w, g.in_channels, g.extent),
                       place(o, c, r, s, inputs, g.kernel), place(n, o, y, x, g.out_channels, out));
                }
  }
  std::size_t count(int images, int channels, int extent) const {
    return static_cast<std::size_t>(images) * static_cast<std::size_t>(channels * extent * extent);
  }

  Geometry g;
  int out = 0;
  CudnnConvolution problem;
};

void check_pass(kernels::Convolutions& convolutions, const Case& given, ConvolutionPass pass) {
  Case one = given;
  one.problem.pass = pass;
  one.problem = convolutions.in_supported_layout(one.problem);
  const Geometry& g = one.g;
  const Element type = one.problem.dtype == DType::bfloat16 ? Element::bfloat16 : Element::float32;
  Numbers x(type, one.count(g.images, g.in_channels, g.extent), 1u),
      w(type, one.count(g.out_channels, g.in_channels / g.groups, g.kernel), 2u),
      y(type, one.count(g.images, g.out_channels, one.out), 3u),
      workspace(Element::float32, convolutions.workspace_bytes(one.problem) / sizeof(float) + 1, 0.0f);
  Numbers& made = pass == ConvolutionPass::forward ? y : pass == ConvolutionPass::backward_input ? x : w;
  std::vector<double> wanted(made.size());
  one.for_products([&](std::size_t x_at, std::size_t w_at, std::size_t y_at) {
    const double xs = static_cast<double>(x[x_at]), ws = static_cast<double>(w[w_at]),
                 ys = static_cast<double>(y[y_at]);
    if (pass == ConvolutionPass::forward) wanted[y_at] += xs * ws;
    if (pass == ConvolutionPass::backward_input) wanted[x_at] += ys * ws;
    if (pass == ConvolutionPass::backward_weight) wanted[w_at] += xs * ys;
  });
  convolutions.run(one.problem, x.data(), w.data(), y.data(), workspace.data());
  BOOST_REQUIRE(cudaStreamSynchronize(nullptr) == cudaSuccess);
  for (std::size_t i = 0; i < wanted.size(); ++i)
    check_near(made[i], wanted[i], type == Element::bfloat16 ? 8e-3 : 1e-5, i);
}

BOOST_AUTO_TEST_CASE(are_sums_of_products_in_all_passes_types_and_layouts) {
  kernels::Convolutions convolutions(0, nullptr);
  for (const Geometry& geometry : geometries) {
    for (const DType dtype : {DType::float32, DType::bfloat16}) {
      for (const bool last : {false, true}) {
        for (const ConvolutionPass pass :
             {ConvolutionPass::forward, ConvolutionPass::backward_input, ConvolutionPass::backward_weight})
          check_pass(convolutions, Case(geometry, dtype, last), pass);
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(take_the_layout_that_has_an_algorithm) {
  kernels::Convolutions convolutions(0, nullptr);
  const Case grouped({1, 4, 8, 8, 3, 2, 1, 2}, DType::bfloat16, false);
  BOOST_TEST(convolutions.in_supported_layout(grouped.problem).channels_last);
}

BOOST_AUTO_TEST_CASE(into_results_of_another_size_are_refused) {
  kernels::Convolutions convolutions(0, nullptr);
  Case one(geometries[0], DType::float32, false);
  ++one.problem.sizes.out_width;
  BOOST_CHECK_THROW(convolutions.in_supported_layout(one.problem), FailureError);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace
}  // namespace lockstep::test
