// What a data file contains: its datasets, class names and rows.
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

/// /x of a file of images. DataError if it is missing, saying what the file is instead.
hdf5::Dataset open_images(const hdf5::File& file);

/// /tokens of a file of text. DataError as above.
hdf5::Dataset open_tokens(const hdf5::File& file);

/// "[100, 3, 32, 32]", for messages.
std::string shape_text(const hdf5::Dataset& dataset);

/// What the file says of the values of an array, of which it reads some. DataError if check_stored throws it.
FieldMeaning meaning_of(const hdf5::Dataset& dataset);

/// Integers or booleans.
bool is_integers(const hdf5::Dataset& dataset);

/// The limit of an attribute, which HDF5 keeps in the header of its array.
inline constexpr std::size_t max_name_bytes = 60'000;

/// Names in an attribute such as classes of /y, a name a line or a list; none if it is missing or no text. No
/// name has a line end: in a list it becomes a blank.
std::vector<std::string> names_of(const hdf5::Object& object, const char* attribute);
/// The same of an attribute that is one text: "m", and "m, s" of several.
std::string text_of(const hdf5::Object& object, const char* attribute);
/// Names contain no line ends and take at most max_name_bytes, line ends included.
void store_names(hdf5::Dataset& array, const char* attribute, const std::vector<std::string>& names);

/// "a.h5", or "a.h5 and 2 more".
std::string name_of_files(const std::string& first, std::size_t count);
/// Which of a data set's files has the sample.
template <class Source>
const Source& source_of(const std::vector<Source>& sources, std::int64_t sample) {
  return *(std::ranges::upper_bound(sources, sample, {}, &Source::first) - 1);
}

/// A file of rows, open as it is for HDF5, whatever its name stands for by now; and as it was.
struct StoredFile {
  explicit StoredFile(const std::string& path);
  void check() const;  ///< DataError if it has been cut or written to since
  OpenFile file;
  struct stat status;
};
/// By path: those of arrays that are opened together.
using StoredFiles = std::map<std::string, std::shared_ptr<const StoredFile>>;

/// The rows of one HDF5 dataset: in memory if they fit its limit, otherwise read when they are asked for.
/// Several threads may read, and do so at once where hdf5::RawRows can. Rows of a file that has been cut or
/// written to since are a DataError: HDF5 would read zeros beyond its end. HDF5 goes on reading a file that
/// was removed or replaced by another one.
class RowStore {
 public:
  /// Rows are read as elements of type `as`. If it loads them, it subtracts their bytes from
  /// memory_left_bytes. It adds its files to those that are open.
  RowStore(std::shared_ptr<const hdf5::File> file, hdf5::Dataset dataset, DType as,
           std::int64_t& memory_left_bytes, StoredFiles& files);

  /// See Dataset. Whether the rows are in the node's memory now. Rows that do not fit, or that some rank has
  /// in memory already, stay where they are.
  bool hold_on_node(comm::HostGroup& world, std::int64_t& memory_left_bytes);

  const std::string& path() const { return path_; }
  std::int64_t rows() const { return rows_; }
  DType dtype() const { return dtype_; }  ///< as rows are read
  bool in_memory() const { return !dataset_; }
  /// Rows are read in the type that the file has.
  bool is_as_stored() const { return as_stored_; }

  /// Calls use(const T*) with rows [begin, begin + count), T being the type of dtype(): one of those that
  /// data sets read. The memory is valid during the call.
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
    thread_local std::vector<std::byte> loaded;  // grows to the most that a thread reads
    const std::size_t bytes = static_cast<std::size_t>(count) * row_bytes_;
    if (loaded.size() < bytes) loaded.resize(bytes);
    read_rows(begin, count, loaded.data());
    with(loaded.data());
  }
  /// Calls use(i, value) with every element, as int64; element 0 is the first of row 0.
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
  void read_rows(std::int64_t begin, std::int64_t count, std::byte* out) const;

  std::string path_;
  DType dtype_;
  bool as_stored_;
  std::int64_t rows_;
  std::size_t row_bytes_;
  std::shared_ptr<std::byte[]> memory_;  // this rank's own, or the node's
  std::shared_ptr<const hdf5::File> file_;
  std::unique_ptr<hdf5::Dataset> dataset_;
  std::vector<std::shared_ptr<const StoredFile>> files_;
  std::optional<hdf5::RawRows> raw_;  // none: HDF5 reads, one thread at a time
};

}  // namespace lockstep::data
