// Element types as HDF5 datatypes, and back.
#include "lockstep/hdf5/element_type.h"

#include <array>
#include <bit>

#include "hdf5/library.h"
#include "lockstep/base/error.h"

namespace lockstep::hdf5 {
namespace {

struct Entry {
  ElementType type;
  std::string_view name;
  std::size_t bytes;
};
constexpr std::array<Entry, 14> entries{{{ElementType::float64, "float64", 8},
                                         {ElementType::float32, "float32", 4},
                                         {ElementType::float16, "float16", 2},
                                         {ElementType::bfloat16, "bfloat16", 2},
                                         {ElementType::int64, "int64", 8},
                                         {ElementType::int32, "int32", 4},
                                         {ElementType::int16, "int16", 2},
                                         {ElementType::int8, "int8", 1},
                                         {ElementType::uint64, "uint64", 8},
                                         {ElementType::uint32, "uint32", 4},
                                         {ElementType::uint16, "uint16", 2},
                                         {ElementType::uint8, "uint8", 1},
                                         {ElementType::text, "text", 0},
                                         {ElementType::other, "other", 0}}};

const Entry& entry_of(ElementType type) {
  for (const Entry& entry : entries) {
    if (entry.type == type) return entry;
  }
  return entries.back();
}

/// A 16-bit little-endian float whose exponent begins at bit `mantissa_bits`.
Handle float16_type(std::size_t exponent_bits, std::size_t mantissa_bits, std::size_t bias) {
  Handle type = owned_type(H5Tcopy(H5T_IEEE_F32LE));
  // Fields first, then the size: the other way round they would lie outside the type.
  if (!type || H5Tset_fields(type.id(), 15, mantissa_bits, exponent_bits, 0, mantissa_bits) < 0 ||
      H5Tset_size(type.id(), 2) < 0 || H5Tset_ebias(type.id(), bias) < 0) {
    throw FailureError("HDF5 cannot make a 16-bit float type: {}", last_failure().message);
  }
  return type;
}

hid_t standard_type(ElementType type) {
  switch (type) {
    case ElementType::float64:
      return H5T_IEEE_F64LE;
    case ElementType::float32:
      return H5T_IEEE_F32LE;
    case ElementType::int64:
      return H5T_STD_I64LE;
    case ElementType::int32:
      return H5T_STD_I32LE;
    case ElementType::int16:
      return H5T_STD_I16LE;
    case ElementType::int8:
      return H5T_STD_I8LE;
    case ElementType::uint64:
      return H5T_STD_U64LE;
    case ElementType::uint32:
      return H5T_STD_U32LE;
    case ElementType::uint16:
      return H5T_STD_U16LE;
    case ElementType::uint8:
      return H5T_STD_U8LE;
    default:
      return -1;
  }
}

ElementType classify_float(hid_t type) {
  const std::size_t bytes = H5Tget_size(type);
  std::size_t sign = 0, exponent = 0, exponent_bits = 0, mantissa = 0, mantissa_bits = 0;
  if (H5Tget_fields(type, &sign, &exponent, &exponent_bits, &mantissa, &mantissa_bits) < 0)
    return ElementType::other;
  const auto is = [&](std::size_t size, std::size_t e, std::size_t m, std::size_t bias) {
    return bytes == size && sign == 8 * size - 1 && exponent == m && exponent_bits == e && mantissa == 0 &&
           mantissa_bits == m && H5Tget_ebias(type) == bias;
  };
  if (is(8, 11, 52, 1023)) return ElementType::float64;
  if (is(4, 8, 23, 127)) return ElementType::float32;
  if (is(2, 5, 10, 15)) return ElementType::float16;
  if (is(2, 8, 7, 127)) return ElementType::bfloat16;
  return ElementType::other;
}

ElementType classify_integer(hid_t type) {
  const std::size_t bytes = H5Tget_size(type);
  if (H5Tget_precision(type) != 8 * bytes) return ElementType::other;
  const bool is_signed = H5Tget_sign(type) == H5T_SGN_2;
  switch (bytes) {
    case 8:
      return is_signed ? ElementType::int64 : ElementType::uint64;
    case 4:
      return is_signed ? ElementType::int32 : ElementType::uint32;
    case 2:
      return is_signed ? ElementType::int16 : ElementType::uint16;
    case 1:
      return is_signed ? ElementType::int8 : ElementType::uint8;
    default:
      return ElementType::other;
  }
}

}  // namespace

std::size_t bytes_of(ElementType type) { return entry_of(type).bytes; }

std::string_view to_string(ElementType type) { return entry_of(type).name; }

ElementType element_type_named(std::string_view name) {
  for (const Entry& entry : entries) {
    if (entry.name == name && entry.bytes > 0) return entry.type;
  }
  throw UsageError("'{}' is not an element type", name);
}

Handle file_type(ElementType type) {
  if (type == ElementType::bfloat16) return float16_type(8, 7, 127);
  if (type == ElementType::float16) return float16_type(5, 10, 15);
  const hid_t standard = standard_type(type);
  if (standard < 0) throw UsageError("a numeric element type is wanted, not '{}'", to_string(type));
  Handle copy = owned_type(H5Tcopy(standard));
  if (!copy) throw FailureError("HDF5 cannot copy a type: {}", last_failure().message);
  return copy;
}

Handle memory_type(ElementType type) {
  static_assert(std::endian::native == std::endian::little, "files are little endian, and so must be memory");
  return file_type(type);
}

Handle text_type(std::size_t bytes) {
  Handle type = owned_type(H5Tcopy(H5T_C_S1));
  if (!type || H5Tset_size(type.id(), bytes) < 0 || H5Tset_strpad(type.id(), H5T_STR_NULLTERM) < 0 ||
      H5Tset_cset(type.id(), H5T_CSET_UTF8) < 0) {
    throw DataError("HDF5 cannot make a string type of {} bytes: {}", bytes, last_failure().message);
  }
  return type;
}

ElementType classify(hid_t type) {
  switch (H5Tget_class(type)) {
    case H5T_FLOAT:
      return classify_float(type);
    case H5T_INTEGER:
      return classify_integer(type);
    case H5T_STRING:
      return ElementType::text;
    default:
      return ElementType::other;
  }
}

std::string unpadded(const std::string& buffer, hid_t type) {
  if (H5Tget_strpad(type) == H5T_STR_SPACEPAD) return buffer.substr(0, buffer.find_last_not_of(' ') + 1);
  return buffer.substr(0, buffer.find('\0'));
}

}  // namespace lockstep::hdf5
