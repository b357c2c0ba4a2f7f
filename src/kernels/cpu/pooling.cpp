// Max and average pooling, one block of channels of one image at a time.
#include "lockstep/ops/pooling.h"
#include "kernels/cpu/channel_form.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/parallel.h"

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
void max_pool_run(const float* x, const ops::Windows& windows, Lanes lanes, float* y, std::int32_t* winners) {
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

void max_pool(CpuBackend& cpu, const ops::MaxPool& op) {
  const ChannelForm from_form = image_form(op.x);
  const ops::Windows windows = op.windows();
  const ChannelForm form = image_form(op.y);
  const float* from = op.x.data<float>();
  float* to = op.y.data<float>();
  std::int32_t* places = op.winners.data<std::int32_t>();
  for_runs(cpu.threads(), from_form, [&](std::int64_t run) {
    std::int32_t* run_winners = places + run * form.run();
    with_lanes(form.lanes, [&](auto lanes) {
      max_pool_run(from + run * from_form.run(), windows, lanes, to + run * form.run(), run_winners);
    });
    if (form.padding() > 0 && run % form.blocks == form.blocks - 1) clear_padding(form, run_winners);
  });
}

void max_pool_backward(CpuBackend& cpu, const ops::MaxPoolBackward& op) {
  const ChannelForm to_form = image_form(op.dx);
  const ChannelForm form = image_form(op.dy);
  const float* gradient = op.dy.data<float>();
  const std::int32_t* places = op.winners.data<std::int32_t>();
  float* to = op.dx.data<float>();
  for_runs(cpu.threads(), to_form, [&](std::int64_t run) {
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

void average_pool(CpuBackend& cpu, const ops::AveragePool& op) {
  const ChannelForm from_form = image_form(op.x);
  const ops::Windows windows = op.windows();
  const ChannelForm form = image_form(op.y);
  const float* from = op.x.data<float>();
  float* to = op.y.data<float>();
  const float share = 1.0f / static_cast<float>(windows.kernel * windows.kernel);
  for_runs(cpu.threads(), from_form, [&](std::int64_t run) {
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

void average_pool_backward(CpuBackend& cpu, const ops::AveragePoolBackward& op) {
  const ChannelForm to_form = image_form(op.dx);
  const ops::Windows windows = op.windows();
  const ChannelForm form = image_form(op.dy);
  const float* gradient = op.dy.data<float>();
  float* to = op.dx.data<float>();
  const float share = 1.0f / static_cast<float>(windows.kernel * windows.kernel);
  for_runs(cpu.threads(), to_form, [&](std::int64_t run) {
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

void enter_pooling(CpuBackend& cpu) {
  cpu.enter<&max_pool, &max_pool_backward, &average_pool, &average_pool_backward>(Computes::in_float32);
}

}  // namespace lockstep::kernels
