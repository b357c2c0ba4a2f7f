// Object: the base of groups, datasets and named types: its name in a file, and attributes.
//
// In this module failures throw DataError (FailureError if the storage failed, EIO) with the file, the object
// and HDF5's innermost message; HDF5 itself prints no errors. Every call holds one process-wide lock, because
// the library has global state. Objects belong to one thread at a time.
#pragma once

#include <concepts>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/tensor/dtype.h"

namespace lockstep::hdf5 {

/// HDF5 is out of memory. In a read, wrong sizes in the file may be the cause.
class NoMemory : public DataError {
 public:
  using DataError::DataError;
};

/// An HDF5 identifier, closed on destruction without errors (File::close() reports those of a last write).
class Handle {
 public:
  using Closer = int (*)(std::int64_t);  ///< what closes an identifier: H5Gclose, H5Dclose

  Handle() = default;
  Handle(std::int64_t id, Closer closer) noexcept : id_(id), closer_(closer) {}  ///< owns the identifier
  /// Takes the identifier of `other`, which becomes empty.
  Handle(Handle&& other) noexcept : id_(std::exchange(other.id_, -1)), closer_(other.closer_) {}
  /// The same; closes the old identifier.
  Handle& operator=(Handle&& other) noexcept {
    if (this != &other) {
      close();
      id_ = std::exchange(other.id_, -1);
      closer_ = other.closer_;
    }
    return *this;
  }
  ~Handle() { close(); }

  std::int64_t id() const noexcept { return id_; }  ///< of the HDF5 library; -1: none
  explicit operator bool() const noexcept { return id_ >= 0; }
  void close() noexcept;  ///< does nothing if it is closed
  /// Releases the identifier without closing it.
  std::int64_t release() noexcept { return std::exchange(id_, -1); }

 private:
  std::int64_t id_ = -1;
  Closer closer_ = nullptr;
};

/// The common part of groups, datasets and files. Every failure is a DataError with file and object.
class Object {
 public:
  const std::string& file_path() const { return file_path_; }  ///< as passed to the constructor
  /// Absolute name within the file: "/model/net.0.weight".
  const std::string& name() const { return name_; }
  std::int64_t id() const { return handle_.id(); }  ///< of the HDF5 library
  /// The offset of its header in the file, which is the same under all of its names.
  std::uint64_t address() const;

  bool has_attribute(std::string_view attribute) const;  ///< whether there is one of this name
  std::vector<std::string> attribute_names() const;      ///< sorted
  /// The type of an attribute's numbers; none for text and for types without a DType. DataError if it does
  /// not exist.
  std::optional<DType> attribute_dtype(std::string_view attribute) const;
  bool is_text_attribute(std::string_view attribute) const;  ///< whether it exists and is a text
  /// True if it exists and is one number or one text of fixed length, which are stored in the object's
  /// header.
  bool has_plain_attribute(std::string_view attribute) const;

  /// A string of fixed or variable length. Padding is stripped.
  std::string text_attribute(std::string_view attribute) const;
  std::vector<std::string> texts_attribute(std::string_view attribute) const;  ///< of any shape
  /// Any integer type; DataError if the value does not fit.
  std::int64_t int64_attribute(std::string_view attribute) const;
  /// Any integer type; DataError if the value does not fit.
  std::uint64_t uint64_attribute(std::string_view attribute) const;
  /// Any number type.
  double double_attribute(std::string_view attribute) const;
  /// Numbers of any shape, in row-major order; a scalar gives one.
  std::vector<double> doubles_attribute(std::string_view attribute) const;

  /// Writes a scalar (or for spans a 1-D) attribute, replacing one of that name. Texts are UTF-8 of fixed
  /// length, null-terminated. Throws UsageError on a text with a null byte inside.
  void set_attribute(std::string_view attribute, std::string_view text);
  /// Stored as float64; replaces one of this name.
  void set_attribute(std::string_view attribute, std::span<const double> values);
  /// Stored as int64, uint64 or float64.
  template <class Number>
  requires std::integral<Number> || std::floating_point<Number>
  void set_attribute(std::string_view attribute, Number value) {
    using Stored =
        std::conditional_t<std::floating_point<Number>, double,
                           std::conditional_t<std::signed_integral<Number>, std::int64_t, std::uint64_t>>;
    const auto stored = static_cast<Stored>(value);
    set_number(attribute, dtype_of<Stored>, &stored);
  }

 protected:
  Object() = default;
  /// For derived classes.
  Object(Handle handle, std::string file_path, std::string name)
      : handle_(std::move(handle)), file_path_(std::move(file_path)), name_(std::move(name)) {}
  Object(Object&&) noexcept = default;
  Object& operator=(Object&&) noexcept = default;
  ~Object() = default;

  /// The absolute name of a child, for opening and for error texts.
  std::string path_of(std::string_view child) const;

  Handle handle_;          ///< closes the object
  std::string file_path_;  ///< for errors
  std::string name_;       ///< for errors

 private:
  void set_number(std::string_view attribute, DType dtype, const void* value);
};

}  // namespace lockstep::hdf5
