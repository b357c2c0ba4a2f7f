// Writes the arrays of a data file, one MiB at a time, with means and deviations for normalisation.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "base/output.h"
#include "data/prepare.h"
#include "lockstep/base/shape.h"
#include "lockstep/data/dataset.h"
#include "lockstep/hdf5/dataset.h"
#include "lockstep/hdf5/file.h"

namespace lockstep::data {

/// DataError "WHERE: mean 1e+308 of channel 0 ..." if the statistics cannot normalise float32 images.
void check_statistics(const std::string& where, const Normalization& statistics);

/// The attribute mean or std of /x. DataError unless it has one number per channel.
std::vector<double> channel_attribute(const hdf5::Dataset& x, const char* attribute, std::int64_t channels);

/// Mean and standard deviation per channel, in one pass over the images.
class Measure {
 public:
  /// image: of one row; its channels are those of normalization_channels().
  explicit Measure(const Shape& image);

  /// Adds complete images. All calls use the same type.
  template <class T>
  void add(std::span<const T> images);
  /// The deviation of a channel with equal values is 1.
  Normalization result() const;

 private:
  struct Channel {
    std::uint64_t sum = 0, squares = 0;                 // of bytes: exact
    double count = 0, mean = 0, squared_deviation = 0;  // of floats
  };

  std::size_t pixels_;
  std::vector<Channel> channels_;
  std::uint64_t bytes_ = 0;  // per channel
};

/// The mean and std of an array of another data file, for one of so many channels; of no file: empty.
Normalization statistics_of(const std::string& path, const char* array, std::int64_t channels);

/// An array of a data file to write.
struct NewArray {
  std::string name{};
  std::int64_t rows = 0;         ///< 0: as many as the first array has
  DType dtype = DType::float32;  ///< in the file: uint8, uint16, uint32, int64, float32, float64
  DType measured_as = dtype;     ///< what added values become until they are measured and written
  Shape row{};                   ///< of one row: [C, H, W], [C], or [] for a number
  bool normalizes = false;       ///< it gets mean and std
  Normalization by{};            ///< those; empty: its own
  std::vector<std::pair<const char*, std::string>> texts{};  ///< attributes; empty texts are left out
};

/// Writes a new file of arrays, in memory if the output says so. Buffers one MiB of an array's values.
/// Without publish() no new file remains, and an existing one is unchanged.
class ArrayWriter {
 public:
  ArrayWriter(const Output& output, std::vector<NewArray> arrays);

  /// For other attributes, until finish().
  hdf5::Dataset& dataset(std::size_t array) { return *columns_[array].dataset; }
  /// Adds values of the next rows of an array. DataError if there are too many.
  template <class From>
  void add(std::size_t array, std::span<const From> values) {
    Column& column = columns_[array];
    const auto append = [&](auto& buffer) {
      if ((buffer.size() + values.size()) * sizeof buffer[0] > write_buffer_bytes) write(column);
      buffer.insert(buffer.end(), values.begin(), values.end());
    };
    std::visit(append, column.buffer);
  }
  template <class From>
  void add(std::size_t array, From value) {
    add(array, std::span<const From>(&value, 1));
  }

  /// Writes the rest and the attributes; then the file is complete and synced. DataError if rows are missing,
  /// or if its own mean and std cannot normalise an array of more than a number a row.
  void finish();
  /// Gives the finished file the output's name.
  void publish();

  /// After finish().
  const Normalization& statistics(std::size_t array) const { return columns_[array].array.by; }
  /// Of integers that are written.
  std::int64_t smallest(std::size_t array) const { return columns_[array].smallest; }
  std::int64_t largest(std::size_t array) const { return columns_[array].largest; }

 private:
  struct Column {
    NewArray array;
    std::optional<hdf5::Dataset> dataset;  // until finish()
    Measure measure;
    std::int64_t width, done = 0;  // elements of a row; rows written
    std::variant<std::vector<std::uint8_t>, std::vector<std::uint16_t>, std::vector<std::uint32_t>,
                 std::vector<std::int64_t>, std::vector<float>, std::vector<double>>
        buffer{};
    std::int64_t smallest = 0, largest = 0;
  };

  void write(Column& column);
  [[noreturn]] void throw_changed() const;

  static constexpr std::size_t write_buffer_bytes = std::size_t{1} << 20;
  const Output output_;
  std::optional<Draft> draft_;
  std::shared_ptr<hdf5::File> file_;
  std::vector<Column> columns_;
};

}  // namespace lockstep::data
