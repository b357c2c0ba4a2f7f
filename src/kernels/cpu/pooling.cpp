// Max and average pooling, one block of channels of one image at a time.
#include "lockstep/ops/pooling.h"
#include "kernels/cpu/channel_form.h"
#include "kernels/cpu/cpu_backend.h"

namespace lockstep::kernels {
namespace {

constexpr std::int64_t elements_per_thread = 1 << 13;

template <class Op>
constexpr bool takes_the_largest = requires(const Op& op) {
  op.winners;
};

/// The largest of each window, and where it was; or their mean.
template <bool largest, class Lanes>
void pool_run(const float* x, const ops::Windows& windows, Lanes lanes, float* y, std::int32_t* winners) {
  const float share = 1.0f / static_cast<float>(windows.kernel * windows.kernel);
  windows.for_each([&](std::int64_t place, std::int64_t top, std::int64_t bottom, std::int64_t left,
                       std::int64_t right) {
    float* __restrict out = y + place * lanes;
    std::int32_t* __restrict winner = largest ? winners + place * lanes : nullptr;
    const std::int64_t first = top * windows.width + left;
    for (std::int64_t lane = 0; lane < lanes; ++lane) {
      out[lane] = largest ? x[first * lanes + lane] : 0.0f;
      if constexpr (largest) winner[lane] = static_cast<std::int32_t>(first);
    }
    for (std::int64_t h = top; h < bottom; ++h) {
      for (std::int64_t w = left; w < right; ++w) {
        const std::int64_t at = h * windows.width + w;
        const float* __restrict here = x + at * lanes;
        for (std::int64_t lane = 0; lane < lanes; ++lane) {
          if constexpr (largest) {
            const bool better = (here[lane] > out[lane]) | (here[lane] != here[lane]);  // not a number wins
            out[lane] = better ? here[lane] : out[lane];
            winner[lane] = better ? static_cast<std::int32_t>(at) : winner[lane];
          } else {
            out[lane] += here[lane];
          }
        }
      }
    }
    if constexpr (!largest) {
      for (std::int64_t lane = 0; lane < lanes; ++lane) out[lane] *= share;
    }
  });
}

/// Zeroes the padding lanes of a run of the last block.
void clear_padding(const ChannelForm& form, std::int32_t* run) {
  for (std::int64_t place = 0; place < form.places; ++place) {
    std::fill_n(run + (place + 1) * form.lanes - form.padding(), form.padding(), 0);
  }
}

template <class Op>
void forward(CpuBackend& cpu, const Op& op) {
  constexpr bool largest = takes_the_largest<Op>;
  const ChannelForm from_form = image_form(op.x), form = image_form(op.y);
  const ops::Windows windows = op.windows();
  const float* from = op.x.template data<float>();
  float* to = op.y.template data<float>();
  std::int32_t* places = nullptr;
  if constexpr (largest) places = op.winners.template data<std::int32_t>();
  for_runs(cpu.threads(), from_form, elements_per_thread, [&](std::int64_t run) {
    std::int32_t* winners = largest ? places + run * form.run() : nullptr;
    with_lanes(form.lanes, [&](auto lanes) {
      pool_run<largest>(from + run * from_form.run(), windows, lanes, to + run * form.run(), winners);
    });
    if (largest && form.padding() > 0 && run % form.blocks == form.blocks - 1) clear_padding(form, winners);
  });
}

/// Adds the gradient of each window's maximum where that was.
void spread_run(const float* gradient, const std::int32_t* winners, const ChannelForm& form, float* out) {
  for (std::int64_t place = 0; place < form.places; ++place) {
    for (std::int64_t at = place * form.lanes, lane = 0; lane < form.lanes; ++lane, ++at)
      out[winners[at] * form.lanes + lane] += gradient[at];
  }
}

/// Adds the gradient of each window's mean to all of it.
template <class Lanes>
void spread_run(const float* gradient, const ops::Windows& windows, Lanes lanes, float* out) {
  const float share = 1.0f / static_cast<float>(windows.kernel * windows.kernel);
  windows.for_each(
      [&](std::int64_t place, std::int64_t top, std::int64_t bottom, std::int64_t left, std::int64_t right) {
        const float* __restrict in = gradient + place * lanes;
        for (std::int64_t h = top; h < bottom; ++h) {
          for (std::int64_t w = left; w < right; ++w) {
            float* __restrict here = out + (h * windows.width + w) * lanes;
            for (std::int64_t lane = 0; lane < lanes; ++lane) here[lane] += in[lane] * share;
          }
        }
      });
}

template <class Op>
void backward(CpuBackend& cpu, const Op& op) {
  const ChannelForm to_form = image_form(op.dx), form = image_form(op.dy);
  const ops::Windows windows = op.windows();
  const float* gradient = op.dy.template data<float>();
  float* to = op.dx.template data<float>();
  for_runs(cpu.threads(), to_form, elements_per_thread, [&](std::int64_t run) {
    const float* in = gradient + run * form.run();
    float* out = to + run * to_form.run();
    std::fill_n(out, to_form.run(), 0.0f);
    if constexpr (takes_the_largest<Op>) {
      spread_run(in, op.winners.template data<std::int32_t>() + run * form.run(), form, out);
    } else {
      with_lanes(form.lanes, [&](auto lanes) { spread_run(in, windows, lanes, out); });
    }
  });
}

}  // namespace

void enter_pooling(CpuBackend& cpu) {
  cpu.enter<&forward<ops::MaxPool>, &backward<ops::MaxPoolBackward>, &forward<ops::AveragePool>,
            &backward<ops::AveragePoolBackward>>(Computes::in_float32);
}

}  // namespace lockstep::kernels
