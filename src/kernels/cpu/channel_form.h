// Activations of any channel block in one form, [images][blocks][positions][lanes], and loops over it that
// know the channel of each element.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "kernels/cpu/parallel.h"
#include "kernels/cpu/simd.h"

namespace lockstep::kernels {

/// Element (image, block, position, lane) is at ((image * blocks + block) * positions + position) * lanes +
/// lane and belongs to channel block * lanes + lane; channels past the last are padding.
struct ChannelForm {
  std::int64_t images = 0;
  std::int64_t blocks = 0;
  std::int64_t positions = 0;
  std::int64_t lanes = 1;
  std::int64_t channels = 0;

  std::int64_t run() const { return positions * lanes; }  ///< contiguous elements of one image's block
  std::int64_t runs() const { return images * blocks; }   ///< number of runs
  std::int64_t padding() const { return blocks * lanes - channels; }  ///< padding lanes of the last block
};

/// The form of [N, C, H, W] or [N, C, D, H, W].
inline ChannelForm image_form(const Tensor& x) {
  const std::int64_t lanes = x.channel_block(), channels = x.size(1);
  return {x.size(0), (channels + lanes - 1) / lanes, positions_of(x.shape()), lanes, channels};
}

/// The same, or that of [N, C], whose rows are the positions of one image.
inline ChannelForm channel_form(const Tensor& x) {
  if (x.shape().rank() != 2) return image_form(x);
  const std::int64_t channels = x.size(1);
  return {1, channels > 0 ? 1 : 0, x.size(0), std::max<std::int64_t>(1, channels), channels};
}

/// Zeroes the lanes that pad the last channel block.
inline void zero_padding(const Tensor& out) {
  const std::int64_t block = out.channel_block();
  if (block == 1 || out.size(1) % block == 0) return;
  const std::int64_t blocks = (out.size(1) + block - 1) / block, used = out.size(1) % block;
  const std::int64_t positions = positions_of(out.shape());
  const std::size_t width = bytes_of(out.dtype());
  for (std::int64_t image = 0; image < out.size(0); ++image) {
    char* last = static_cast<char*>(out.raw()) +
                 static_cast<std::size_t>((image + 1) * blocks - 1) * positions * block * width;
    for (std::int64_t position = 0; position < positions; ++position) {
      std::memset(last + static_cast<std::size_t>(position * block + used) * width, 0,
                  static_cast<std::size_t>(block - used) * width);
    }
  }
}

inline constexpr int tile_lanes = 32;

/// The unit of one loop: rows of up to 32 elements of a run, such that a column always has the same channel.
/// Where 32 is a multiple of the lanes, one tile covers the run: its rows are 32 consecutive elements.
/// Otherwise a row is (a part of) one position.
struct ChannelTile {
  std::int64_t first = 0;  ///< offset of the first row in the run
  std::int64_t rows = 0;
  std::int64_t stride = 0;   ///< from row to row
  int width = 0;             ///< elements of a row
  int tail = 0;              ///< elements of one last row
  std::int64_t channel = 0;  ///< of column 0
  int period = 1;            ///< column c belongs to channel + c % period

  std::int64_t channel_of(int column) const { return channel + column % period; }
};

inline bool lanes_fill_tiles(const ChannelForm& form) { return tile_lanes % form.lanes == 0; }

inline std::int64_t tiles_per_block(const ChannelForm& form) {
  return lanes_fill_tiles(form) ? 1 : (form.lanes + tile_lanes - 1) / tile_lanes;
}

inline ChannelTile tile_of(const ChannelForm& form, std::int64_t block, std::int64_t tile) {
  const std::int64_t channel = block * form.lanes + tile * tile_lanes;
  if (lanes_fill_tiles(form)) {
    return {0,
            form.run() / tile_lanes,
            tile_lanes,
            tile_lanes,
            static_cast<int>(form.run() % tile_lanes),
            channel,
            static_cast<int>(form.lanes)};
  }
  const auto width = static_cast<int>(std::min<std::int64_t>(tile_lanes, form.lanes - tile * tile_lanes));
  return {tile * tile_lanes, form.positions, form.lanes, width, 0, channel, tile_lanes};
}

/// One value for each column of a tile.
using Columns32 = std::array<float, tile_lanes>;

/// The value of(channel), or of[channel], for each column; 0 for padding.
template <class Value>
Columns32 columns_of(const ChannelForm& form, const ChannelTile& tile, const Value& of) {
  Columns32 columns{};
  for (int column = 0; column < tile.width; ++column) {
    const std::int64_t channel = tile.channel_of(column);
    if (channel >= form.channels) continue;
    float& value = columns[static_cast<std::size_t>(column)];
    if constexpr (std::is_pointer_v<Value>)
      value = of[channel];
    else
      value = of(channel);
  }
  return columns;
}

/// Calls body(offset in the run, width) for every row; the width is a compile-time constant for full rows.
template <class Body>
void for_rows(const ChannelTile& tile, const Body& body) {
  std::int64_t at = tile.first;
  if (tile.width == tile_lanes) {
    for (std::int64_t row = 0; row < tile.rows; ++row, at += tile.stride) {
      body(at, std::integral_constant<int, tile_lanes>{});
    }
  } else {
    for (std::int64_t row = 0; row < tile.rows; ++row, at += tile.stride) body(at, tile.width);
  }
  if (tile.tail > 0) body(at, tile.tail);
}

inline constexpr int vector_lanes = sizeof(Floats) / sizeof(float);

template <int sums>
using ColumnSums = std::array<std::array<double, tile_lanes>, sums>;

/// Adds, column by column, terms.operator()<T>(offset, column) -> std::array<T, sums> over a tile of one run,
/// for T float or Floats (8 columns at once). At most 32 terms are added in float32; those sums are added in
/// double. The order depends only on the form.
template <int sums, class Terms>
void add_columns(const ChannelTile& tile, const Terms& terms, ColumnSums<sums>& totals) {
  constexpr std::int64_t rows_in_float = 32;
  constexpr int vectors = tile_lanes / vector_lanes;
  std::int64_t at = tile.first;
  const auto add_row = [&](int width) {
    for (int column = 0; column < width; ++column) {
      const std::array<float, sums> row_terms = terms.template operator()<float>(at + column, column);
      for (std::size_t s = 0; s < sums; ++s) totals[s][static_cast<std::size_t>(column)] += row_terms[s];
    }
  };
  if (tile.width != tile_lanes) {
    for (std::int64_t row = 0; row < tile.rows; ++row, at += tile.stride) add_row(tile.width);
  } else {
    for (std::int64_t row = 0; row < tile.rows;) {
      Floats partial[sums][vectors] = {};
      for (const std::int64_t end = std::min(tile.rows, row + rows_in_float); row < end;
           ++row, at += tile.stride) {
#pragma GCC unroll 4
        for (int v = 0; v < vectors; ++v) {
          const auto row_terms = terms.template operator()<Floats>(at + v * vector_lanes, v * vector_lanes);
#pragma GCC unroll 2
          for (std::size_t s = 0; s < sums; ++s) partial[s][v] += row_terms[s];
        }
      }
      for (std::size_t s = 0; s < sums; ++s) {
        for (std::size_t column = 0; column < tile_lanes; ++column) {
          totals[s][column] += partial[s][column / vector_lanes][column % vector_lanes];
        }
      }
    }
  }
  add_row(tile.tail);
}

/// Calls receive(channel, sums of the channel) for the channels of a tile, each summed over its columns in
/// order.
template <int sums, class Receive>
void fold_columns(const ChannelForm& form, const ChannelTile& tile, const ColumnSums<sums>& totals,
                  const Receive& receive) {
  for (int first = 0; first < std::min(tile.period, tile.width); ++first) {
    const std::int64_t channel = tile.channel_of(first);
    if (channel >= form.channels) return;
    std::array<double, sums> folded{};
    for (std::size_t s = 0; s < sums; ++s) {
      for (int column = first; column < tile.width; column += tile.period) {
        folded[s] += totals[s][static_cast<std::size_t>(column)];
      }
    }
    receive(channel, folded);
  }
}

/// Calls body(run) for all runs, in parallel if they are large enough.
template <class Body>
void for_runs(int threads, const ChannelForm& form, std::int64_t elements_per_thread, const Body& body) {
  const std::int64_t runs =
      std::max<std::int64_t>(1, elements_per_thread / std::max<std::int64_t>(1, form.run()));
  parallel_items(threads, form.runs(), runs, body);
}

/// Calls body(run, tile) for all tiles of all runs; the tile's first row counts from the begin of its run.
template <class Body>
void for_tiles(int threads, const ChannelForm& form, std::int64_t elements_per_thread, const Body& body) {
  const std::int64_t tiles = tiles_per_block(form);
  for_runs(threads, form, elements_per_thread, [&](std::int64_t run) {
    for (std::int64_t tile = 0; tile < tiles; ++tile) body(run, tile_of(form, run % form.blocks, tile));
  });
}

/// Calls body(lanes) with the usual lane counts as compile-time constants.
template <class Body>
void with_lanes(std::int64_t lanes, const Body& body) {
  switch (lanes) {
    case 1:
      return body(std::integral_constant<std::int64_t, 1>{});
    case 8:
      return body(std::integral_constant<std::int64_t, 8>{});
    case 16:
      return body(std::integral_constant<std::int64_t, 16>{});
    default:
      return body(lanes);
  }
}

}  // namespace lockstep::kernels
