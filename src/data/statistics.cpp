// Measuring, reading and judging means and deviations.
#include "data/statistics.h"

#include <cmath>

#include "lockstep/base/error.h"

namespace lockstep::data {
namespace {

/// Variance of integers from their exact sums, taken around the integer nearest to the mean: no digits are
/// lost where the values are far from 0.
double variance_of(std::uint64_t count, std::uint64_t sum, std::uint64_t squares) {
  const std::uint64_t centre = (sum + count / 2) / count;
  // sum (v - centre)^2 and sum (v - centre), in integers that wrap to the right values.
  const std::uint64_t centred_squares = squares - 2 * centre * sum + count * centre * centre;
  const auto centred_sum = static_cast<std::int64_t>(sum - centre * count);
  const double apart = static_cast<double>(centred_sum) / static_cast<double>(count);
  return static_cast<double>(centred_squares) / static_cast<double>(count) - apart * apart;
}

}  // namespace

void check_statistics(const std::string& where, const ChannelStatistics& statistics) {
  constexpr double largest = 1e30, smallest_deviation = 1e-30;
  const auto refuse = [&](const char* name, double value, std::size_t channel, const char* wanted) {
    throw DataError("{}: {} {} of channel {} cannot normalise images: {}", where, name, value, channel,
                    wanted);
  };
  for (std::size_t c = 0; c < statistics.mean.size(); ++c) {
    const double mean = statistics.mean[c], deviation = statistics.deviation[c];
    if (!(std::abs(mean) <= largest)) refuse("mean", mean, c, "it must lie between -1e30 and 1e30");
    if (!(deviation >= smallest_deviation && deviation <= largest))
      refuse("std", deviation, c, "it must lie between 1e-30 and 1e30");
  }
}

std::vector<double> channel_attribute(const hdf5::Dataset& x, const char* attribute, std::int64_t channels) {
  std::vector<double> values = x.doubles_attribute(attribute);
  if (static_cast<std::int64_t>(values.size()) != channels) {
    throw DataError("{}: attribute '{}' of /x has {} numbers, but the images have {} channels", x.file_path(),
                    attribute, values.size(), channels);
  }
  return values;
}

Measure::Measure(const Shape& image)
    : pixels_(static_cast<std::size_t>(image[1] * image[2])), channels_(static_cast<std::size_t>(image[0])) {}

void Measure::add(std::span<const std::uint8_t> images) {
  for (std::size_t at = 0; at < images.size();) {
    for (Channel& channel : channels_) {
      std::uint64_t sum = 0, squares = 0;
      for (const std::uint8_t v : images.subspan(at, pixels_)) sum += v, squares += std::uint64_t{v} * v;
      channel.sum += sum;
      channel.squares += squares;
      at += pixels_;
    }
    bytes_ += pixels_;
  }
}

void Measure::add(std::span<const float> images) {
  // Planes are merged as Chan, Golub and LeVeque do ("Updating formulae and a pairwise algorithm for
  // computing sample variances", 1979).
  const auto more = static_cast<double>(pixels_);
  for (std::size_t at = 0; at < images.size();) {
    for (Channel& channel : channels_) {
      const std::span<const float> plane = images.subspan(at, pixels_);
      double sum = 0, squared_deviation = 0;
      for (const float v : plane) sum += v;
      const double mean = sum / more;
      for (const float v : plane) squared_deviation += (v - mean) * (v - mean);
      const double apart = mean - channel.mean, total = channel.count + more;
      channel.squared_deviation += squared_deviation + apart * apart * (channel.count * more / total);
      channel.mean += apart * (more / total);
      channel.count = total;
      at += pixels_;
    }
  }
}

ChannelStatistics Measure::result() const {
  ChannelStatistics found;
  for (const Channel& channel : channels_) {
    const double mean =
        bytes_ > 0 ? static_cast<double>(channel.sum) / static_cast<double>(bytes_) : channel.mean;
    const double variance = bytes_ > 0 ? variance_of(bytes_, channel.sum, channel.squares)
                                       : channel.squared_deviation / channel.count;
    found.mean.push_back(mean);
    found.deviation.push_back(variance > 0 ? std::sqrt(variance) : 1.0);
  }
  return found;
}

}  // namespace lockstep::data
