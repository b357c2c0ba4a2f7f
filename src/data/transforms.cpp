#include "data/transforms.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

namespace lockstep::data {
namespace {

std::int64_t rounded(double value) {
  return static_cast<std::int64_t>(std::nearbyint(value));
}  // half to even

/// As torch converts: towards zero.
std::uint8_t level(double value) { return static_cast<std::uint8_t>(std::clamp(value, 0.0, 255.0)); }

/// Every value by a table.
template <class Curve>
void apply_curve(Picture& picture, const Curve& curve) {
  std::array<std::uint8_t, 256> table{};
  for (int value = 0; value < 256; ++value) table[value] = level(curve(value));
  for (std::uint8_t& value : picture.pixels) value = table[value];
}

float grey_of(const std::uint8_t* rgb) {
  return std::floor(0.2989f * static_cast<float>(rgb[0]) + 0.587f * static_cast<float>(rgb[1]) +
                    0.114f * static_cast<float>(rgb[2]));
}

double mean_grey(const Picture& picture) {
  const std::int64_t pixels = picture.height * picture.width;
  std::int64_t sum = 0;
  for (std::int64_t i = 0; i < pixels; ++i)
    sum += static_cast<std::int32_t>(grey_of(picture.pixels.data() + 3 * i));
  return static_cast<double>(sum) / static_cast<double>(pixels);
}

void change_saturation(Picture& picture, float factor) {
  const std::int64_t pixels = picture.height * picture.width;
  for (std::int64_t i = 0; i < pixels; ++i) {
    std::uint8_t* const rgb = picture.pixels.data() + 3 * i;
    const float grey = (1 - factor) * grey_of(rgb);
    for (int c = 0; c < 3; ++c) {
      const float value = factor * static_cast<float>(rgb[c]) + grey;
      rgb[c] = static_cast<std::uint8_t>(static_cast<std::int32_t>(std::min(std::max(value, 0.0f), 255.0f)));
    }
  }
}

/// Hue in sixths of the circle, red at 0. A channel is the largest value less the range of values times how
/// far the hue is from it: 0 within a sixth of the channel, 1 from two sixths on.
void change_hue(Picture& picture, float turns) {
  const std::int64_t pixels = picture.height * picture.width;
  const float shift = 6 * turns + 6;
  for (std::int64_t i = 0; i < pixels; ++i) {
    std::uint8_t* const rgb = picture.pixels.data() + 3 * i;
    const float r = rgb[0], g = rgb[1], b = rgb[2];
    const float most = std::max(std::max(r, g), b), range = most - std::min(std::min(r, g), b);
    const float part = 1 / (range == 0 ? 1 : range);
    const float hue = most == r ? (g - b) * part : most == g ? 2 + (b - r) * part : 4 + (r - g) * part;
    const auto channel = [&](float angle) {
      const float sixths = hue + shift + angle;
      const float place = sixths - 6 * std::floor(sixths * (1.0f / 6));
      const float away = std::min(std::max(std::min(place, 4 - place), 0.0f), 1.0f);
      return static_cast<std::uint8_t>(static_cast<std::int32_t>((most - range * away) * (255.999f / 255)));
    };
    rgb[0] = channel(5), rgb[1] = channel(3), rgb[2] = channel(1);
  }
}

}  // namespace

Draws::Draws(std::uint64_t seed, std::string_view transform, std::int64_t step, std::int64_t sample)
    : random_({.seed = seed,
               .purpose = purpose_of(transform) + (static_cast<std::uint64_t>(sample) >> 32),
               .step = static_cast<std::uint64_t>(step),
               .shard = static_cast<std::uint32_t>(sample)}) {}

double Draws::uniform(double low, double high) {
  return low + (high - low) * 0x1p-32 * static_cast<double>(random_.bits(count_++));
}

std::int64_t Draws::below(std::int64_t bound) {
  return static_cast<std::int64_t>(
      (std::uint64_t{random_.bits(count_++)} * static_cast<std::uint64_t>(bound)) >> 32);
}

double Draws::normal() {
  const double radius = std::sqrt(-2 * std::log(1 - uniform()));
  return radius * std::cos(6.283185307179586 * uniform());
}

/// Marsaglia and Tsang, "A simple method for generating gamma variables", 2000; a shape below 1 by the one
/// above.
double Draws::gamma(double shape) {
  const double boost = shape < 1 ? std::pow(1 - uniform(), 1 / shape) : 1;
  const double d = (shape < 1 ? shape + 1 : shape) - 1.0 / 3, c = 1 / std::sqrt(9 * d);
  while (true) {
    const double x = normal(), root = 1 + c * x, v = root * root * root;
    if (v > 0 && std::log(1 - uniform()) < 0.5 * x * x + d - d * v + d * std::log(v)) return boost * d * v;
  }
}

double Draws::beta(double shape) {
  const double one = gamma(shape), other = gamma(shape);
  if (one + other == 0) return uniform() < 0.5 ? 0 : 1;  // a small shape: both are too small for a double
  return one / (one + other);
}

void Resizer::Axis::set(double begin, double extent, std::int64_t size, std::int64_t from,
                        std::int64_t count) {
  const std::array<double, 3> wanted{begin, extent, static_cast<double>(size)};
  if (key == wanted && window_begin == from && window_extent == count) return;
  key = wanted, window_begin = from, window_extent = count;
  const double scale = extent / static_cast<double>(size), support = std::max(scale, 1.0);
  const double origin = std::floor(begin), offset = begin - origin;
  const auto end = static_cast<std::int64_t>(std::ceil(offset + extent));
  taps = std::min(static_cast<std::int64_t>(2 * support) + 1, end);
  first.resize(static_cast<std::size_t>(count));
  weights.resize(static_cast<std::size_t>(count * taps));
  float* weight = weights.data();
  for (std::int64_t i = 0; i < count; ++i) {
    const double centre = offset + scale * (static_cast<double>(from + i) + 0.5);
    const std::int64_t nearest =
        std::clamp(static_cast<std::int64_t>(centre - support + 0.5), std::int64_t{0}, end - taps);
    const auto triangle = [&](std::int64_t k) {
      return std::max(1 - std::abs((static_cast<double>(nearest + k) - centre + 0.5) / support), 0.0);
    };
    double sum = 0;
    for (std::int64_t k = 0; k < taps; ++k) sum += triangle(k);
    for (std::int64_t k = 0; k < taps; ++k) *weight++ = static_cast<float>(triangle(k) / sum);
    first[static_cast<std::size_t>(i)] = static_cast<std::int64_t>(origin) + nearest;
  }
}

namespace {

/// out[i] = sum over k of weights[k] * rows[k * stride + i]
template <std::int64_t block>
void add_block(const std::uint8_t* rows, std::int64_t stride, const float* weights, std::int64_t count,
               float* out) {
  std::array<float, block> sums{};  // they stay in registers
  for (std::int64_t k = 0; k < count; ++k, rows += stride)
    for (std::int64_t i = 0; i < block; ++i) sums[i] += weights[k] * static_cast<float>(rows[i]);
  std::copy_n(sums.data(), block, out);
}

void add_rows(const std::uint8_t* rows, std::int64_t stride, const float* weights, std::int64_t count,
              std::int64_t values, float* out) {
  constexpr std::int64_t block = 32;
  std::int64_t i = 0;
  for (; i + block <= values; i += block) add_block<block>(rows + i, stride, weights, count, out + i);
  if (i < values && values >= block) {  // the last block begins within the one before
    i = values - block;
    return add_block<block>(rows + i, stride, weights, count, out + i);
  }
  for (; i < values; ++i) add_block<1>(rows + i, stride, weights, count, out + i);
}

/// Three channels and a lane that nobody reads.
using Lanes [[gnu::vector_size(16)]] = float;

/// New pixel i is the sum over k of weights[i * taps + k] * pixel first[i] + k. Reads and writes one float
/// more than the last pixel has.
void add_pixels(const float* pixels, const std::int64_t* first, const float* weights, std::int64_t taps,
                std::int64_t count, float* out) {
  for (std::int64_t i = 0; i < count; ++i, out += 3, weights += taps) {
    Lanes sums{};
    for (std::int64_t k = 0; k < taps; ++k) {
      Lanes pixel;
      std::memcpy(&pixel, pixels + 3 * (first[i] + k), sizeof(pixel));
      sums += weights[k] * pixel;
    }
    std::memcpy(out, &sums, sizeof(sums));
  }
}

/// Sums whose weights add up to 1.
void round_sums(const float* sums, std::int64_t count, std::uint8_t* out) {
#pragma GCC ivdep
  for (std::int64_t i = 0; i < count; ++i)
    out[i] = static_cast<std::uint8_t>(static_cast<std::int32_t>(sums[i] + 0.5f));
}

}  // namespace

/// Rows first: in this order both sums run over neighbours in memory, and most work is in the one that is
/// wide.
void Resizer::resize(const Picture& from, const Box<double>& part, std::int64_t height, std::int64_t width,
                     const Box<std::int64_t>& window, Picture& into) {
  rows_.set(part.top, part.height, height, window.top, window.height);
  columns_.set(part.left, part.width, width, window.left, window.width);
  const std::int64_t left = columns_.first.front(),
                     values = 3 * (columns_.first.back() + columns_.taps - left);
  into.resize(window.height, window.width);
  row_.resize(static_cast<std::size_t>(3 * left + values + 1));
  new_row_.resize(static_cast<std::size_t>(3 * window.width + 1));
  for (std::int64_t y = 0; y < window.height; ++y) {
    add_rows(from.row(rows_.first[static_cast<std::size_t>(y)]) + 3 * left, 3 * from.width,
             rows_.weights.data() + y * rows_.taps, rows_.taps, values, row_.data() + 3 * left);
    add_pixels(row_.data(), columns_.first.data(), columns_.weights.data(), columns_.taps, window.width,
               new_row_.data());
    round_sums(new_row_.data(), 3 * window.width, into.row(y));
  }
}

Box<std::int64_t> centre_of(std::int64_t height, std::int64_t width, std::int64_t size) {
  const auto begin = [&](std::int64_t extent) { return rounded(static_cast<double>(extent - size) / 2); };
  return {.top = begin(height), .left = begin(width), .height = size, .width = size};
}

Framing evaluation_framing(std::int64_t height, std::int64_t width, std::int64_t size) {
  const std::int64_t shorter = rounded(static_cast<double>(size) * 8 / 7);
  const auto longer_of = [&](std::int64_t longer, std::int64_t other) { return shorter * longer / other; };
  Framing framing{.height = width <= height ? longer_of(height, width) : shorter,
                  .width = width <= height ? shorter : longer_of(width, height)};
  framing.window = centre_of(framing.height, framing.width, size);
  return framing;
}

namespace {

/// The share of the pixels, and width / height.
struct CropRange {
  double min_share = 0.08, max_share = 1, min_ratio = 3.0 / 4, max_ratio = 4.0 / 3;
};

/// A box of at most this height and width in a picture, by ten tries.
std::optional<Box<std::int64_t>> draw_box(Draws& draws, const CropRange& range, std::int64_t height,
                                          std::int64_t width, std::int64_t most_height,
                                          std::int64_t most_width) {
  for (int attempt = 0; attempt < 10; ++attempt) {
    const double pixels =
        static_cast<double>(height * width) * draws.uniform(range.min_share, range.max_share);
    const double ratio = std::exp(draws.uniform(std::log(range.min_ratio), std::log(range.max_ratio)));
    Box<std::int64_t> box{.height = rounded(std::sqrt(pixels / ratio)),
                          .width = rounded(std::sqrt(pixels * ratio))};
    if (box.height < 1 || box.width < 1 || box.height > most_height || box.width > most_width) continue;
    box.top = draws.below(height - box.height + 1);
    box.left = draws.below(width - box.width + 1);
    return box;
  }
  return std::nullopt;
}

}  // namespace

Box<std::int64_t> draw_resized_crop(Draws& draws, std::int64_t height, std::int64_t width) {
  constexpr CropRange range;
  if (const auto box = draw_box(draws, range, height, width, height, width)) return *box;
  // The picture is long and narrow: the centre of it, as near to its own form as the range allows.
  const double ratio = static_cast<double>(width) / static_cast<double>(height);
  Box<std::int64_t> box{.height = height, .width = width};
  if (ratio < range.min_ratio)
    box.height = rounded(static_cast<double>(width) / range.min_ratio);
  else if (ratio > range.max_ratio)
    box.width = rounded(static_cast<double>(height) * range.max_ratio);
  box.top = (height - box.height) / 2;
  box.left = (width - box.width) / 2;
  return box;
}

bool draw_flip(Draws& draws) { return draws.uniform() < 0.5; }

void flip(Picture& picture) {
  for (std::int64_t y = 0; y < picture.height; ++y) {
    std::uint8_t *left = picture.row(y), *right = left + 3 * (picture.width - 1);
    for (; left < right; left += 3, right -= 3) std::swap_ranges(left, left + 3, right);
  }
}

Jitter draw_jitter(Draws& draws, double strength) {
  Jitter jitter;
  for (std::int64_t left = std::ssize(jitter.order); left > 1; --left)
    std::swap(jitter.order[static_cast<std::size_t>(left - 1)],
              jitter.order[static_cast<std::size_t>(draws.below(left))]);
  const auto factor = [&] { return draws.uniform(std::max(0.0, 1 - strength), 1 + strength); };
  jitter.brightness = factor();
  jitter.contrast = factor();
  jitter.saturation = factor();
  const double turns = std::min(strength, 0.1);
  jitter.hue = draws.uniform(-turns, turns);
  return jitter;
}

void apply(const Jitter& jitter, Picture& picture) {
  for (const Jitter::Step step : jitter.order) {
    if (step == Jitter::Step::brightness) {
      apply_curve(picture, [&](int value) { return value * jitter.brightness; });
    } else if (step == Jitter::Step::contrast) {
      const double grey = (1 - jitter.contrast) * mean_grey(picture);
      apply_curve(picture, [&](int value) { return value * jitter.contrast + grey; });
    } else if (step == Jitter::Step::saturation) {
      change_saturation(picture, static_cast<float>(jitter.saturation));
    } else {
      change_hue(picture, static_cast<float>(jitter.hue));
    }
  }
}

std::optional<Box<std::int64_t>> draw_erasing(Draws& draws, double probability, std::int64_t height,
                                              std::int64_t width) {
  const CropRange range{.min_share = 0.02, .max_share = 0.33, .min_ratio = 1 / 3.3, .max_ratio = 1 / 0.3};
  if (draws.uniform() >= probability) return std::nullopt;
  return draw_box(draws, range, height, width, height - 1, width - 1);
}

namespace {

/// use(offset, count) for each row of a box in images [channels, height, width].
template <class Use>
void for_each_row(const Box<std::int64_t>& box, std::int64_t channels, std::int64_t height,
                  std::int64_t width, const Use& use) {
  for (std::int64_t c = 0; c < channels; ++c)
    for (std::int64_t y = box.top; y < box.top + box.height; ++y)
      use((c * height + y) * width + box.left, box.width);
}

}  // namespace

void erase(const Box<std::int64_t>& box, float* image, std::int64_t channels, std::int64_t height,
           std::int64_t width) {
  for_each_row(box, channels, height, width,
               [&](std::int64_t offset, std::int64_t count) { std::fill_n(image + offset, count, 0.0f); });
}

Mix draw_mix(Draws& draws, const MixRange& range, std::int64_t place, std::int64_t samples,
             std::int64_t height, std::int64_t width) {
  Mix mix{.partner = (place + samples - 1) % samples};
  const bool both = range.mixup > 0 && range.cutmix > 0;
  const bool cut = both ? draws.uniform() < 0.5 : range.cutmix > 0;
  mix.share = draws.beta(cut ? range.cutmix : range.mixup);
  if (!cut) return mix;
  const double half = 0.5 * std::sqrt(1 - mix.share);
  const auto along = [&](std::int64_t extent) {
    const std::int64_t centre = draws.below(extent),
                       reach = static_cast<std::int64_t>(half * static_cast<double>(extent));
    return std::pair{std::max(centre - reach, std::int64_t{0}), std::min(centre + reach, extent)};
  };
  const auto [left, right] = along(width);
  const auto [top, bottom] = along(height);
  mix.box = {.top = top, .left = left, .height = bottom - top, .width = right - left};
  mix.share = 1 - static_cast<double>(mix.box->height * mix.box->width) / static_cast<double>(height * width);
  return mix;
}

void apply(const Mix& mix, const float* partner, float* image, std::int64_t channels, std::int64_t height,
           std::int64_t width) {
  if (mix.box) {
    for_each_row(*mix.box, channels, height, width, [&](std::int64_t offset, std::int64_t count) {
      std::copy_n(partner + offset, count, image + offset);
    });
    return;
  }
  const auto own = static_cast<float>(mix.share), other = static_cast<float>(1 - mix.share);
  for (std::int64_t i = 0; i < channels * height * width; ++i) image[i] = own * image[i] + other * partner[i];
}

}  // namespace lockstep::data
