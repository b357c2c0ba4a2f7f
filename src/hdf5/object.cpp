// Attributes.
#include "lockstep/hdf5/object.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "hdf5/library.h"
#include "lockstep/base/error.h"

namespace lockstep::hdf5 {
namespace {

/// An attribute opened for reading, with its name for errors.
struct OpenAttribute {
  Handle handle, type, space;
  std::string label;
};

std::string label_of(const std::string& object, std::string_view attribute) {
  return fmt::format("attribute '{}' of {}", attribute, object);
}

OpenAttribute open_attribute(const Object& object, std::string_view attribute) {
  const std::string name(attribute);
  OpenAttribute open{{}, {}, {}, label_of(object.name(), attribute)};
  if (!object.has_attribute(attribute))
    throw DataError("{}: {} does not exist", object.file_path(), open.label);
  const auto check = [&](hid_t id) { return checked(id, object.file_path(), open.label, "open"); };
  open.handle = Handle(check(H5Aopen(object.id(), name.c_str(), H5P_DEFAULT)), H5Aclose);
  open.type = owned_type(check(H5Aget_type(open.handle.id())));
  open.space = owned_space(check(H5Aget_space(open.handle.id())));
  return open;
}

/// Reads a scalar; `as` is the memory type.
template <class T>
T read_scalar(const Object& object, std::string_view attribute, hid_t as, bool integer) {
  const OpenAttribute open = open_attribute(object, attribute);
  const H5T_class_t kind = H5Tget_class(open.type.id());
  if (kind != H5T_INTEGER && (integer || kind != H5T_FLOAT)) {
    throw DataError("{}: {} is not {}", object.file_path(), open.label, integer ? "an integer" : "a number");
  }
  if (H5Sget_simple_extent_npoints(open.space.id()) != 1) {
    throw DataError("{}: {} is not a single number", object.file_path(), open.label);
  }
  T value{};
  checked(H5Aread(open.handle.id(), as, &value), object.file_path(), open.label, "read");
  return value;
}

bool is_signed(const Object& object, std::string_view attribute) {
  const OpenAttribute open = open_attribute(object, attribute);
  return H5Tget_sign(open.type.id()) == H5T_SGN_2;
}

void write_attribute(const Object& object, std::string_view attribute, const Handle& type,
                     const Handle& space, const void* value) {
  const std::string name(attribute), label = label_of(object.name(), attribute);
  const auto check = [&](auto result) { return checked(result, object.file_path(), label, "write"); };
  if (object.has_attribute(attribute)) check(H5Adelete(object.id(), name.c_str()));
  const Handle handle(
      check(H5Acreate2(object.id(), name.c_str(), type.id(), space.id(), H5P_DEFAULT, H5P_DEFAULT)),
      H5Aclose);
  check(H5Awrite(handle.id(), type.id(), value));
}

extern "C" herr_t keep_name(hid_t, const char* name, const H5A_info_t*, void* names) {
  try {
    static_cast<std::vector<std::string>*>(names)->emplace_back(name);
  } catch (...) {
    return -1;
  }
  return 0;
}

}  // namespace

std::string Object::path_of(std::string_view child) const {
  if (child.starts_with('/')) return std::string(child);
  return fmt::format("{}{}{}", name_, name_.ends_with('/') ? "" : "/", child);
}

std::uint64_t Object::address() const {
  const LibraryLock lock;
  H5O_info_t info{};
  checked(H5Oget_info2(id(), &info, H5O_INFO_BASIC), file_path_, name_, "look up");
  return static_cast<std::uint64_t>(info.addr);
}

bool Object::has_attribute(std::string_view attribute) const {
  const LibraryLock lock;
  return checked(H5Aexists(id(), std::string(attribute).c_str()), file_path_, label_of(name_, attribute),
                 "look up") > 0;
}

std::vector<std::string> Object::attribute_names() const {
  const LibraryLock lock;
  std::vector<std::string> names;
  hsize_t position = 0;
  // Sorted here: see Group::links.
  checked(H5Aiterate2(id(), H5_INDEX_NAME, H5_ITER_NATIVE, &position, keep_name, &names), file_path_, name_,
          "list the attributes");
  std::sort(names.begin(), names.end());
  return names;
}

std::optional<DType> Object::attribute_dtype(std::string_view attribute) const {
  const LibraryLock lock;
  return dtype_of_type(open_attribute(*this, attribute).type.id());
}

bool Object::is_text_attribute(std::string_view attribute) const {
  const LibraryLock lock;
  return is_text_type(open_attribute(*this, attribute).type.id());
}

bool Object::has_plain_attribute(std::string_view attribute) const {
  const LibraryLock lock;
  if (!has_attribute(attribute)) return false;
  const OpenAttribute open = open_attribute(*this, attribute);
  const bool is_text = is_text_type(open.type.id());
  return (is_text || dtype_of_type(open.type.id())) && H5Sget_simple_extent_npoints(open.space.id()) == 1 &&
         !(is_text && H5Tis_variable_str(open.type.id()));
}

std::string Object::text_attribute(std::string_view attribute) const {
  const LibraryLock lock;
  const OpenAttribute open = open_attribute(*this, attribute);
  return read_one_text(open.type.id(), open.space.id(), file_path_, open.label,
                       [&](hid_t type, void* buffer) { return H5Aread(open.handle.id(), type, buffer); });
}

std::vector<std::string> Object::texts_attribute(std::string_view attribute) const {
  const LibraryLock lock;
  const OpenAttribute open = open_attribute(*this, attribute);
  return read_texts(open.type.id(), open.space.id(), file_path_, open.label,
                    [&](hid_t type, void* buffer) { return H5Aread(open.handle.id(), type, buffer); });
}

std::int64_t Object::int64_attribute(std::string_view attribute) const {
  const LibraryLock lock;
  const auto value = read_scalar<std::int64_t>(*this, attribute, H5T_NATIVE_INT64, true);
  // HDF5 clips an unsigned value beyond the range to the largest.
  if (value == std::numeric_limits<std::int64_t>::max() && !is_signed(*this, attribute) &&
      uint64_attribute(attribute) != static_cast<std::uint64_t>(value)) {
    throw DataError("{}: {} does not fit a signed 64-bit integer", file_path_, label_of(name_, attribute));
  }
  return value;
}

std::uint64_t Object::uint64_attribute(std::string_view attribute) const {
  const LibraryLock lock;
  const auto value = read_scalar<std::uint64_t>(*this, attribute, H5T_NATIVE_UINT64, true);
  if (value == 0 && is_signed(*this, attribute) && int64_attribute(attribute) < 0) {
    throw DataError("{}: {} is negative", file_path_, label_of(name_, attribute));
  }
  return value;
}

double Object::double_attribute(std::string_view attribute) const {
  const LibraryLock lock;
  return read_scalar<double>(*this, attribute, H5T_NATIVE_DOUBLE, false);
}

std::vector<double> Object::doubles_attribute(std::string_view attribute) const {
  const LibraryLock lock;
  const OpenAttribute open = open_attribute(*this, attribute);
  const H5T_class_t kind = H5Tget_class(open.type.id());
  if (kind != H5T_INTEGER && kind != H5T_FLOAT)
    throw DataError("{}: {} does not hold numbers", file_path_, open.label);
  constexpr hssize_t max_values = 1 << 24;
  const hssize_t count = H5Sget_simple_extent_npoints(open.space.id());
  if (count < 0 || count > max_values)
    throw DataError("{}: {} claims {} numbers", file_path_, open.label, count);
  std::vector<double> values(static_cast<std::size_t>(count));
  if (count > 0) {
    checked(H5Aread(open.handle.id(), H5T_NATIVE_DOUBLE, values.data()), file_path_, open.label, "read");
  }
  return values;
}

void Object::set_attribute(std::string_view attribute, std::string_view text) {
  if (text.find('\0') != std::string_view::npos) {
    throw UsageError("{}: {} has a null byte inside", file_path_, label_of(name_, attribute));
  }
  const LibraryLock lock;
  const std::string terminated(text);
  write_attribute(*this, attribute, text_type(terminated.size() + 1), owned_space(H5Screate(H5S_SCALAR)),
                  terminated.c_str());
}

void Object::set_attribute(std::string_view attribute, std::span<const double> values) {
  const LibraryLock lock;
  const hsize_t count = values.size();
  write_attribute(*this, attribute, number_type(DType::float64),
                  owned_space(H5Screate_simple(1, &count, nullptr)), values.data());
}

void Object::set_number(std::string_view attribute, DType dtype, const void* value) {
  const LibraryLock lock;
  write_attribute(*this, attribute, number_type(dtype), owned_space(H5Screate(H5S_SCALAR)), value);
}

}  // namespace lockstep::hdf5
