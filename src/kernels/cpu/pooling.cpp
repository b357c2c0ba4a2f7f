// Max and average pooling, one block of channels of one image at a time.
#include "kernels/cpu/channel_form.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/parallel.h"
#include "kernels/problems.h"

namespace lockstep::kernels {
namespace {

constexpr std::int64_t elements_per_thread = 1 << 13;

/// body(run) over all runs of a form, in parallel where they are large enough.
template <class Body>
void for_runs(int threads, const ChannelForm& form, const Body& body) {
  const std::int64_t runs =
      std::max<std::int64_t>(1, elements_per_thread / std::max<std::int64_t>(1, form.run()));
  parallel_items(threads, form.runs(), runs, body);
}

template <class Lanes>
void max_pool_run(const float* x, const Windows& windows, Lanes lanes, float* y, std::int32_t* winners) {
  windows.for_each([&](std::int64_t place, std::int64_t top, std::int64_t bottom, std::int64_t left,
                       std::int64_t right) {
    float* __restrict best = y + place * lanes;
    std::int32_t* __restrict winner = winners + place * lanes;
    const std::int64_t first = top * windows.width + left;
    for (std::int64_t lane = 0; lane < lanes; ++lane) {
      best[lane] = x[first * lanes + lane];
      winner[lane] = static_cast<std::int32_t>(first);
    }
    for (std::int64_t h = top; h < bottom; ++h) {
      for (std::int64_t w = left; w < right; ++w) {
        const std::int64_t at = h * windows.width + w;
        const float* __restrict here = x + at * lanes;
        for (std::int64_t lane = 0; lane < lanes; ++lane) {
          const bool better = (here[lane] > best[lane]) | (here[lane] != here[lane]);  // not a number wins
          best[lane] = better ? here[lane] : best[lane];
          winner[lane] = better ? static_cast<std::int32_t>(at) : winner[lane];
        }
      }
    }
  });
}

/// Zeroes the padding lanes of a run of the last block.
void clear_padding(const ChannelForm& form, std::int32_t* run) {
  for (std::int64_t place = 0; place < form.places; ++place) {
    std::fill_n(run + (place + 1) * form.lanes - form.padding(), form.padding(), 0);
  }
}

}  // namespace

void CpuBackend::max_pool(const Tensor& x, const Pool& geometry, const Tensor& y, const Tensor& winners) {
  prepare();
  constexpr const char* operation = "max_pool";
  const ChannelForm from_form = image_form(operation, "x", x);
  const Windows windows = windows_of(operation, x, "y", y, geometry);
  const ChannelForm form = image_form(operation, "y", y);
  require_block(operation, "y", y, x);
  require_alike(operation, "winners", winners, y);
  const float* from = floats(operation, "x", x);
  float* to = floats(operation, "y", y);
  std::int32_t* places = elements<std::int32_t>(operation, "winners", winners);
  for_runs(threads_, from_form, [&](std::int64_t run) {
    std::int32_t* run_winners = places + run * form.run();
    with_lanes(form.lanes, [&](auto lanes) {
      max_pool_run(from + run * from_form.run(), windows, lanes, to + run * form.run(), run_winners);
    });
    if (form.padding() > 0 && run % form.blocks == form.blocks - 1) clear_padding(form, run_winners);
  });
}

void CpuBackend::max_pool_backward(const Tensor& dy, const Tensor& winners, const Pool& geometry,
                                   const Tensor& dx) {
  prepare();
  constexpr const char* operation = "max_pool_backward";
  const ChannelForm to_form = image_form(operation, "dx", dx);
  windows_of(operation, dx, "dy", dy, geometry);
  const ChannelForm form = image_form(operation, "dy", dy);
  require_block(operation, "dy", dy, dx);
  require_alike(operation, "winners", winners, dy);
  const float* gradient = floats(operation, "dy", dy);
  const std::int32_t* places = elements<std::int32_t>(operation, "winners", winners);
  float* to = floats(operation, "dx", dx);
  for_runs(threads_, to_form, [&](std::int64_t run) {
    float* out = to + run * to_form.run();
    std::fill_n(out, to_form.run(), 0.0f);
    const float* run_gradient = gradient + run * form.run();
    const std::int32_t* run_winners = places + run * form.run();
    for (std::int64_t place = 0; place < form.places; ++place) {
      for (std::int64_t at = place * form.lanes, lane = 0; lane < form.lanes; ++lane, ++at) {
        out[run_winners[at] * form.lanes + lane] += run_gradient[at];
      }
    }
  });
}

void CpuBackend::average_pool(const Tensor& x, const Pool& geometry, const Tensor& y) {
  prepare();
  constexpr const char* operation = "average_pool";
  const ChannelForm from_form = image_form(operation, "x", x);
  const Windows windows = windows_of(operation, x, "y", y, geometry);
  const ChannelForm form = image_form(operation, "y", y);
  require_block(operation, "y", y, x);
  const float* from = floats(operation, "x", x);
  float* to = floats(operation, "y", y);
  const float share = 1.0f / static_cast<float>(windows.kernel * windows.kernel);
  for_runs(threads_, from_form, [&](std::int64_t run) {
    const float* in = from + run * from_form.run();
    with_lanes(form.lanes, [&](auto lanes) {
      windows.for_each([&](std::int64_t place, std::int64_t top, std::int64_t bottom, std::int64_t left,
                           std::int64_t right) {
        float* __restrict out = to + run * form.run() + place * lanes;
        std::fill_n(out, lanes, 0.0f);
        for (std::int64_t h = top; h < bottom; ++h) {
          for (std::int64_t w = left; w < right; ++w) {
            const float* __restrict here = in + (h * windows.width + w) * lanes;
            for (std::int64_t lane = 0; lane < lanes; ++lane) out[lane] += here[lane];
          }
        }
        for (std::int64_t lane = 0; lane < lanes; ++lane) out[lane] *= share;
      });
    });
  });
}

void CpuBackend::average_pool_backward(const Tensor& dy, const Pool& geometry, const Tensor& dx) {
  prepare();
  constexpr const char* operation = "average_pool_backward";
  const ChannelForm to_form = image_form(operation, "dx", dx);
  const Windows windows = windows_of(operation, dx, "dy", dy, geometry);
  const ChannelForm form = image_form(operation, "dy", dy);
  require_block(operation, "dy", dy, dx);
  const float* gradient = floats(operation, "dy", dy);
  float* to = floats(operation, "dx", dx);
  const float share = 1.0f / static_cast<float>(windows.kernel * windows.kernel);
  for_runs(threads_, to_form, [&](std::int64_t run) {
    float* out = to + run * to_form.run();
    std::fill_n(out, to_form.run(), 0.0f);
    with_lanes(form.lanes, [&](auto lanes) {
      windows.for_each([&](std::int64_t place, std::int64_t top, std::int64_t bottom, std::int64_t left,
                           std::int64_t right) {
        const float* __restrict in = gradient + run * form.run() + place * lanes;
        for (std::int64_t h = top; h < bottom; ++h) {
          for (std::int64_t w = left; w < right; ++w) {
            float* __restrict here = out + (h * windows.width + w) * lanes;
            for (std::int64_t lane = 0; lane < lanes; ++lane) here[lane] += in[lane] * share;
          }
        }
      });
    });
  });
}

}  // namespace lockstep::kernels
