// Private to the module: what images are normalised by.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/shape.h"
#include "lockstep/hdf5/dataset.h"

namespace lockstep::data {

/// One number per channel, in the units of the stored values.
struct ChannelStatistics {
  std::vector<double> mean, deviation;
};

/// DataError "WHERE: mean 1e+308 of channel 0 ..." if a float32 could not be normalised by them.
void check_statistics(const std::string& where, const ChannelStatistics& statistics);

/// Attribute mean or std of /x: one number per channel, or DataError.
std::vector<double> channel_attribute(const hdf5::Dataset& x, const char* attribute, std::int64_t channels);

/// Mean and standard deviation per channel of images that are seen once, in pieces.
class Measure {
 public:
  explicit Measure(const Shape& image);

  /// Whole images. All are of one type.
  void add(std::span<const std::uint8_t> images);
  void add(std::span<const float> images);
  /// 1 is the deviation of a channel whose values are all the same.
  ChannelStatistics result() const;

 private:
  struct Channel {
    std::uint64_t sum = 0, squares = 0;                 // of bytes: exact
    double count = 0, mean = 0, squared_deviation = 0;  // of floats
  };

  std::size_t pixels_;
  std::vector<Channel> channels_;
  std::uint64_t bytes_ = 0;  // per channel
};

}  // namespace lockstep::data
