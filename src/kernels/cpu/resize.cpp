// Bilinear resizing, row by row of places, whose channels are adjacent.
#include "lockstep/ops/resize.h"

#include "kernels/cpu/channel_form.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/parallel.h"

namespace lockstep::kernels {
namespace {

/// The neighbours of all columns, computed once.
class Columns {
 public:
  Columns(CpuBackend& cpu, const ops::Resizing& width)
      : memory_(cpu.scratch(width.to * static_cast<std::int64_t>(sizeof(ops::Neighbours)), DType::uint8)),
        first_(static_cast<ops::Neighbours*>(memory_.raw())) {
    for (std::int64_t column = 0; column < width.to; ++column) first_[column] = width.at(column);
  }
  const ops::Neighbours& operator[](std::int64_t column) const { return first_[column]; }

 private:
  Tensor memory_;
  ops::Neighbours* first_;
};

void resize_bilinear(CpuBackend& cpu, const ops::ResizeBilinear& op) {
  const ops::ResizeSizes sizes = op.sizes();
  const ops::Resizing &down = sizes.height, &across = sizes.width;
  const ChannelForm form = image_form(op.x);
  const Columns columns(cpu, across);
  const float* const from = op.x.data<float>();
  float* const to = op.y.data<float>();
  const std::int64_t rows_per_thread = 8192 / std::max<std::int64_t>(1, across.to * form.lanes) + 1;
  parallel_ranges(cpu.threads(), form.runs() * down.to, rows_per_thread,
                  [&](std::int64_t begin, std::int64_t end) {
                    with_lanes(form.lanes, [&](auto lanes) {
                      for (std::int64_t row = begin; row < end; ++row) {
                        const ops::Neighbours rows = down.at(row % down.to);
                        const float* const image = from + row / down.to * form.run();
                        const float* const upper = image + rows.first * across.from * lanes;
                        const float* const lower = image + rows.second * across.from * lanes;
                        float* __restrict out = to + row * across.to * lanes;
                        for (std::int64_t column = 0; column < across.to; ++column, out += lanes) {
                          const ops::Neighbours& sides = columns[column];
                          const std::int64_t left = sides.first * lanes, right = sides.second * lanes;
                          for (std::int64_t lane = 0; lane < lanes; ++lane) {
                            const auto between = [&](const float* of) {
                              return (1 - sides.share) * of[left + lane] + sides.share * of[right + lane];
                            };
                            out[lane] = (1 - rows.share) * between(upper) + rows.share * between(lower);
                          }
                        }
                      }
                    });
                  });
}

/// Image by image, so that what adds to a place has an order.
void resize_bilinear_backward(CpuBackend& cpu, const ops::ResizeBilinearBackward& op) {
  const ops::ResizeSizes sizes = op.sizes();
  const ops::Resizing &down = sizes.height, &across = sizes.width;
  const ChannelForm form = image_form(op.dx);
  const Columns columns(cpu, across);
  const float* const gradient = op.dy.data<float>();
  float* const to = op.dx.data<float>();
  const std::int64_t run = down.to * across.to * form.lanes;
  parallel_items(cpu.threads(), form.runs(), 8192 / std::max<std::int64_t>(1, run) + 1,
                 [&](std::int64_t number) {
                   with_lanes(form.lanes, [&](auto lanes) {
                     float* const image = to + number * form.run();
                     std::fill_n(image, form.run(), 0.0f);
                     const float* __restrict in = gradient + number * run;
                     for (std::int64_t row = 0; row < down.to; ++row) {
                       const ops::Neighbours rows = down.at(row);
                       for (std::int64_t column = 0; column < across.to; ++column, in += lanes) {
                         const auto add = [&](std::int64_t at_row, std::int64_t at_column, float weight) {
                           float* const out = image + (at_row * across.from + at_column) * lanes;
                           for (std::int64_t lane = 0; lane < lanes; ++lane) out[lane] += weight * in[lane];
                         };
                         const ops::Neighbours& sides = columns[column];
                         add(rows.first, sides.first, (1 - rows.share) * (1 - sides.share));
                         add(rows.first, sides.second, (1 - rows.share) * sides.share);
                         add(rows.second, sides.first, rows.share * (1 - sides.share));
                         add(rows.second, sides.second, rows.share * sides.share);
                       }
                     }
                   });
                 });
}

}  // namespace

void enter_resize(CpuBackend& cpu) {
  cpu.enter<&resize_bilinear, &resize_bilinear_backward>(Computes::in_float32);
}

}  // namespace lockstep::kernels
