// Dataset: an array in a file, read and written whole or by rows of its first dimension. Opening a virtual
// dataset throws DataError unless all of its sources can be opened; names of sources with numbers in them
// (%b) are not supported.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "lockstep/hdf5/object.h"

namespace lockstep::hdf5 {

/// Bytes [offset, offset + bytes) of the file.
struct Extent {
  std::uint64_t offset = 0;  ///< where the bytes begin in the file
  std::uint64_t bytes = 0;   ///< how many
};

/// A dataset of an open file. Every failure is a DataError with file and object.
class Dataset : public Object {
 public:
  /// None for text and other types that are not numbers (compounds, enumerations ...). Reading converts the
  /// byte order.
  std::optional<DType> dtype() const { return dtype_; }
  /// NumPy's bool as h5py stores it, an enumeration FALSE = 0, TRUE = 1 of one byte, or a bit field of one
  /// byte, as Julia and PyTables store it. It has no dtype(), but reads as any number, 0 or 1. (Other
  /// enumerations have the dtype() of their integers.)
  bool is_boolean() const { return is_boolean_; }
  /// "float32", "bool", "text", "other".
  std::string_view type_name() const {
    return dtype_ ? to_string(*dtype_) : is_boolean_ ? "bool" : is_text_ ? "text" : "other";
  }
  const std::vector<std::int64_t>& shape() const { return shape_; }  ///< empty for a scalar
  /// The first extent; 1 for a scalar.
  std::int64_t rows() const { return shape_.empty() ? 1 : shape_[0]; }
  std::int64_t numel() const { return numel_; }          ///< elements
  std::int64_t row_numel() const { return row_numel_; }  ///< elements per row

  /// Reads all elements, converted to `as`, into `out`, which must hold exactly numel() of them (UsageError
  /// otherwise). DataError if the dataset was created but never written.
  void read(DType as, std::span<std::byte> out) const;
  /// Rows [begin, begin + count), with the same errors.
  void read_rows(std::int64_t begin, std::int64_t count, DType as, std::span<std::byte> out) const;
  /// use(first, values): elements in order, as float64; values[0] is element `first` of the dataset. False
  /// ends the reading.
  using BlockUse = std::function<bool(std::int64_t first, std::span<const double> values)>;
  /// Calls `use` with the elements of rows [begin, begin + count), 4 MiB at a time, for rows of any size. Not
  /// for a scalar. row_step: of `count` rows so far apart; `first` counts elements of these.
  void read_blocks(std::int64_t begin, std::int64_t count, const BlockUse& use,
                   std::int64_t row_step = 1) const;
  /// All elements, converted from `from` as HDF5 does. DataError if the size does not fit.
  void write(DType from, std::span<const std::byte> in);
  /// Rows [begin, begin + count).
  void write_rows(std::int64_t begin, std::int64_t count, DType from, std::span<const std::byte> in);

  /// All elements, converted to T. DataError if the size does not fit.
  template <class T>
  void read(std::span<T> out) const {
    read(dtype_of<T>, std::as_writable_bytes(out));
  }
  /// Rows [begin, begin + count), converted to T.
  template <class T>
  void read_rows(std::int64_t begin, std::int64_t count, std::span<T> out) const {
    read_rows(begin, count, dtype_of<T>, std::as_writable_bytes(out));
  }
  /// All elements, converted to T.
  template <class T>
  std::vector<T> read_all() const {
    check_stored();
    std::vector<T> values(static_cast<std::size_t>(numel_));
    read(std::span<T>(values));
    return values;
  }
  /// All elements.
  template <class T>
  void write(std::span<const T> in) {
    write(dtype_of<T>, std::as_bytes(in));
  }
  /// Rows [begin, begin + count).
  template <class T>
  void write_rows(std::int64_t begin, std::int64_t count, std::span<const T> in) {
    write_rows(begin, count, dtype_of<T>, std::as_bytes(in));
  }

  /// The one string of a text dataset, of fixed or variable length. Padding is stripped.
  std::string read_text() const;

  /// The extent of the elements, for access without HDF5: contiguous, row-major little-endian numbers or
  /// texts of fixed length. DataError if they are chunked, compact, external, of another type or not yet
  /// allocated. {0, 0} without elements.
  Extent extent() const;
  /// DataError if the dataset, or a chunk of it, was never written, if the file stores too few bytes for its
  /// shape, or if the sources of a virtual dataset have too few elements. Call it before allocating memory
  /// for all elements, as read_all does.
  void check_stored() const;
  /// The files of a virtual dataset's sources.
  const std::set<std::string>& source_paths() const { return source_paths_; }
  std::uint64_t storage_bytes() const;  ///< bytes allocated in the file (compressed size, if compressed)

 private:
  friend class Group;
  Dataset(Handle handle, std::string file_path, std::string name);

  std::optional<DType> dtype_;
  bool is_text_ = false;
  bool is_boolean_ = false;
  std::vector<std::int64_t> shape_;
  std::int64_t numel_ = 0;
  std::int64_t row_numel_ = 0;
  std::optional<std::int64_t> source_numel_;  // of a virtual one: elements of all its sources
  std::set<std::string> source_paths_;
};

}  // namespace lockstep::hdf5
