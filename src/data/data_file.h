// The contents of a data file: datasets, class names and rows.
#pragma once

#include <sys/stat.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/files.h"
#include "hdf5/raw_rows.h"
#include "lockstep/comm/host_group.h"
#include "lockstep/data/dataset.h"
#include "lockstep/hdf5/dataset.h"
#include "lockstep/hdf5/file.h"

namespace lockstep::data {

/// /x of a file of images. DataError if it is missing; the error tells what kind of file it is.
hdf5::Dataset open_images(const hdf5::File& file);

/// /tokens of a file of text. DataError as for open_images().
hdf5::Dataset open_tokens(const hdf5::File& file);

/// The shape for messages: "[100, 3, 32, 32]".
std::string shape_text(const hdf5::Dataset& dataset);

/// The meaning of an array's values, from its attributes and some of its rows. DataError from check_stored().
FieldMeaning meaning_of(const hdf5::Dataset& dataset);

/// What the name of an array's offsets ends in.
inline constexpr const char* offsets_suffix = "_offsets";
/// The offsets of an array.
struct Offsets {
  /// Where the rows of each sample begin, and the end of the last, which is the number of rows: [samples + 1]
  /// from 0 on, never falling. Empty: the array has none.
  std::vector<std::int64_t> begins{};
  std::string damage{};  ///< what is wrong with NAME_offsets: "a.h5: /x_offsets falls from 3 to 2"
};
/// Those in NAME_offsets of the file.
Offsets offsets_of(const hdf5::File& file, const hdf5::Dataset& array);
/// The path of the array whose rows an array of this path numbers, by its attribute index_of: a path, or a
/// name in the same group. Empty: it has none. DataError if that is no text.
std::string index_path(const hdf5::Dataset& array, const std::string& path);

/// True for integers and booleans.
bool is_integers(const hdf5::Dataset& dataset);

/// The maximum size of an attribute, which HDF5 stores in the header of its array.
inline constexpr std::size_t max_name_bytes = 60'000;

/// The names in an attribute such as classes of /y: one per line, or a list of texts; empty if the attribute
/// is missing or not a text. A line end in a name of a list becomes a blank.
std::vector<std::string> names_of(const hdf5::Object& object, const char* attribute);
/// The text in an attribute; several texts are joined: "m, s".
std::string text_of(const hdf5::Object& object, const char* attribute);

/// UsageError unless each sample of the field, of a data set of this name, is one number.
void check_column(const Field& field, const std::string& name);
/// Appends the elements of a tensor that read() filled.
void append_values(const Tensor& column, std::vector<double>& values);

/// The name of a data set of `count` files: "a.h5" or "a.h5 and 2 more".
std::string name_of_files(const std::string& first, std::size_t count);
/// The source of a data set that contains the sample.
template <class Source>
const Source& source_of(const std::vector<Source>& sources, std::int64_t sample) {
  return *(std::ranges::upper_bound(sources, sample, {}, &Source::first) - 1);
}

/// A file of rows, which stays open so that it is the same file even if its name now refers to another, and
/// its status when it was opened. Takes the system's largest limit of open files where there are many.
struct StoredFile {
  explicit StoredFile(const std::string& path);
  void check() const;  ///< DataError if it has been cut or written to since
  OpenFile file;
  struct stat status;
};
/// Files by path, shared by arrays that are opened together.
using StoredFiles = std::map<std::string, std::shared_ptr<const StoredFile>>;

/// The rows of one HDF5 dataset: in memory if they fit the limit, otherwise read on demand. Several threads
/// may read, and do so at once where hdf5::RawRows can. DataError if the file was truncated or written to
/// since it was opened: HDF5 would read zeros beyond its end. A file that was removed or replaced by another
/// one remains readable.
class RowStore {
 public:
  /// `as`: the element type of rows in memory. If it loads the rows, it subtracts their bytes from
  /// memory_left_bytes. It adds its files to `files`.
  RowStore(std::shared_ptr<const hdf5::File> file, hdf5::Dataset dataset, DType as,
           std::int64_t& memory_left_bytes, StoredFiles& files);

  /// See Dataset: of these stores, the same on every rank, those that fit one after another. Rows that some
  /// rank has in memory already stay where they are.
  static void hold_on_node(std::span<RowStore* const> stores, comm::HostGroup& world,
                           std::int64_t& memory_left_bytes);

  /// Rows that will be read soon: see hdf5::RawRows.
  void expect(std::int64_t begin, std::int64_t count) const {
    if (raw_) raw_->expect(begin, count);
  }

  const std::string& path() const { return path_; }
  std::int64_t rows() const { return rows_; }
  DType dtype() const { return dtype_; }  ///< of rows in memory
  bool in_memory() const { return memory_ != nullptr; }
  /// Whether rows in memory have the type of the file.
  bool is_as_stored() const { return as_stored_; }

  /// Calls use(const T*) with rows [begin, begin + count), where T is the C++ type of dtype(). The memory is
  /// valid during the call.
  template <class Use>
  void with_values(std::int64_t begin, std::int64_t count, const Use& use) const {
    const auto with = [&](const std::byte* rows) {
      switch (dtype_) {
        case DType::uint8:
          return use(reinterpret_cast<const std::uint8_t*>(rows));
        case DType::uint16:
          return use(reinterpret_cast<const std::uint16_t*>(rows));
        case DType::uint32:
          return use(reinterpret_cast<const std::uint32_t*>(rows));
        case DType::int64:
          return use(reinterpret_cast<const std::int64_t*>(rows));
        case DType::float64:
          return use(reinterpret_cast<const double*>(rows));
        default:
          return use(reinterpret_cast<const float*>(rows));
      }
    };
    if (in_memory()) return with(memory_.get() + static_cast<std::size_t>(begin) * row_bytes_);
    thread_local std::vector<std::byte> loaded;
    constexpr std::size_t min_bytes = std::size_t{4} << 20;  // so that a longer run of rows allocates nothing
    const std::size_t bytes = static_cast<std::size_t>(count) * row_bytes_;
    if (loaded.size() < bytes) loaded.resize(std::max(bytes, min_bytes));
    read_rows(begin, count, loaded.data());
    with(loaded.data());
  }
  /// Calls use(i, value) for every element as int64; element 0 is the first one of row 0.
  template <class Use>
  void for_each_value(const Use& use) const {
    const std::int64_t elements = static_cast<std::int64_t>(row_bytes_ / bytes_of(dtype_)),
                       chunk = std::max<std::int64_t>(1, (1 << 18) / std::max<std::int64_t>(1, elements));
    for (std::int64_t row = 0; row < rows_; row += chunk) {
      const std::int64_t count = std::min(chunk, rows_ - row);
      with_values(row, count, [&](const auto* values) {
        for (std::int64_t i = 0; i < count * elements; ++i)
          use(row * elements + i, static_cast<std::int64_t>(values[i]));
      });
    }
  }

 private:
  void check_files() const;
  std::int64_t bytes() const { return rows_ * static_cast<std::int64_t>(row_bytes_); }
  void keep(std::shared_ptr<std::byte[]> memory);
  void read_rows(std::int64_t begin, std::int64_t count, std::byte* out) const;

  std::string path_, name_;  // of the file, of the dataset
  DType dtype_;
  bool as_stored_;
  std::int64_t rows_;
  std::size_t row_bytes_;
  std::shared_ptr<std::byte[]> memory_;  // this rank's own, or the node's
  std::vector<std::shared_ptr<const StoredFile>> files_;
  std::optional<hdf5::RawRows> raw_;
  // Where there are no raw_: HDF5 reads, one thread at a time. It takes half a MiB for each open file.
  std::shared_ptr<const hdf5::File> file_;
  std::unique_ptr<hdf5::Dataset> dataset_;
};

}  // namespace lockstep::data
