// File and Group: an HDF5 file on the serial driver; opening and creating its objects by name.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/hdf5/dataset.h"
#include "lockstep/hdf5/object.h"

namespace lockstep::hdf5 {

enum class ObjectKind {
  group,
  dataset,
  null_dataset,  ///< without a shape and elements (h5py.Empty); cannot be opened
  named_type,
  unreachable
};

/// A name in a group.
struct Link {
  std::string name;  ///< without the path of the group
  ObjectKind kind;   ///< of the object that it refers to
  bool operator==(const Link&) const = default;
};

/// A committed datatype: datasets refer to it by name, and h5dump shows that name.
class NamedType : public Object {
 public:
  DType dtype() const { return dtype_; }  ///< the type of its elements

 private:
  friend class Group;
  NamedType(Handle handle, std::string file_path, std::string name, DType dtype)
      : Object(std::move(handle), std::move(file_path), std::move(name)), dtype_(dtype) {}
  DType dtype_;
};

/// Names may be paths ("model/net.0.weight", "/model"); '/' separates, dots are ordinary letters. Creation
/// needs existing parent groups. Groups track the creation order of links; nothing stores a time stamp, so
/// equal calls write equal bytes.
class Group : public Object {
 public:
  /// By time of creation, or by name.
  enum class Order { creation, name };

  /// Links in this order; by name if the group does not track the creation order.
  std::vector<Link> links(Order order = Order::creation) const;
  bool exists(std::string_view name) const;  ///< whether the group has an object of this name
  /// ObjectKind::unreachable if it does not exist or is in another file, which is not opened.
  ObjectKind kind(std::string_view name) const;

  Group open_group(std::string_view name) const;      ///< DataError if it does not exist
  Dataset open_dataset(std::string_view name) const;  ///< DataError if it does not exist
  /// The same for untrusted files: opens no other file, and throws DataError unless the elements are
  /// contiguous in this file.
  Dataset open_contiguous(std::string_view name) const;

  Group create_group(std::string_view name);  ///< DataError if the name is taken
  /// Contiguous, little-endian, allocated at once and not filled, so that extent() is known before anything
  /// is written. An empty shape makes a scalar.
  Dataset create_dataset(std::string_view name, DType dtype, std::span<const std::int64_t> shape);
  /// DataError if the name is taken.
  Dataset create_dataset(std::string_view name, DType dtype, std::initializer_list<std::int64_t> shape) {
    return create_dataset(name, dtype, std::span(shape.begin(), shape.size()));
  }
  /// The same with a committed type.
  Dataset create_dataset(std::string_view name, const NamedType& type, std::span<const std::int64_t> shape);
  /// A scalar string dataset: UTF-8 of fixed length, null-terminated. UsageError on a null byte inside.
  Dataset create_text(std::string_view name, std::string_view text);
  /// Texts of at most `max_bytes` bytes each, UTF-8, padded with null bytes; else as create_dataset(): each
  /// takes max_bytes + 1 bytes of extent().
  Dataset create_texts(std::string_view name, std::size_t max_bytes, std::span<const std::int64_t> shape);
  NamedType create_type(std::string_view name, DType dtype);  ///< commits a type under a name
  /// A link to another name of this file (tied weights).
  void create_soft_link(std::string_view name, std::string_view target);

 protected:
  Group() = default;
  /// For File, and for open_group().
  Group(Handle handle, std::string file_path, std::string name)
      : Object(std::move(handle), std::move(file_path), std::move(name)) {}

 private:
  Dataset create(std::string_view name, std::int64_t type_id, std::span<const std::int64_t> shape);
  /// The absolute path of an object. DataError if it does not exist or is of another kind.
  std::string path_of_kind(std::string_view name, ObjectKind expected) const;
};

/// How a file is created.
struct CreateOptions {
  /// The treatment of an existing file of this name.
  enum class Existing { refuse, replace };
  Existing existing = Existing::refuse;  ///< refuse: DataError if it exists
  /// Not on storage, but in memory of this process: File::open() of its path opens it while any file object
  /// has it open.
  bool in_memory = false;
  /// Superblock version 3 with checksummed metadata (HDF5 1.10 and later read it); otherwise the oldest
  /// possible format.
  bool checksummed = false;
  std::uint64_t alignment_bytes = 1;  ///< objects of at least alignment_from_bytes start at multiples of this
  std::uint64_t alignment_from_bytes = 1;  ///< objects from this size on are aligned
};

/// File locking follows HDF5_USE_FILE_LOCKING. If it is not set, files on a file system without locks can be
/// opened for reading; a file that another program has locked cannot.
class File : public Group {
 public:
  /// Opens for reading. DataError if it is missing, empty, not HDF5, truncated or open for writing.
  static File open(const std::string& path);
  /// Opens for reading and writing.
  static File open_for_writing(const std::string& path);
  /// DataError if it cannot be created.
  static File create(const std::string& path, const CreateOptions& options = {});

  File(File&&) noexcept = default;
  File& operator=(File&& other) noexcept;
  ~File();

  bool in_memory() const;  ///< CreateOptions::in_memory
  /// Passes everything written so far to the system (without fsync).
  void flush();
  /// Closes the file and all of its objects. Throws if something could not be written; the destructor does
  /// not.
  void close();

 private:
  File(Handle file, const std::string& path);
  Handle file_;
};

}  // namespace lockstep::hdf5
