#include "hdf5/library.h"

#include <bit>
#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "base/files.h"
#include "lockstep/base/error.h"

namespace lockstep::hdf5 {
namespace {

// One for the process, like the state that it guards.
std::recursive_mutex& library_mutex() {
  static std::recursive_mutex mutex;
  return mutex;
}

extern "C" herr_t keep_first(unsigned position, const H5E_error2_t* error, void* failure) {
  if (position == 0 && error->desc != nullptr) {
    try {
      static_cast<Failure*>(failure)->message = error->desc;
      static_cast<Failure*>(failure)->no_memory =
          error->min_num == H5E_NOSPACE || error->min_num == H5E_CANTALLOC;
    } catch (...) {
      return -1;
    }
  }
  return 0;
}

}  // namespace

LibraryLock::LibraryLock() : guard_(library_mutex()) {
  // At exit HDF5 would close open files again, and crash if that failed before (full disk, file size limit).
  static const bool without_atexit = H5dont_atexit() >= 0;
  static_cast<void>(without_atexit);
  // The setting belongs to the thread in thread-safe builds of HDF5, to the process in others.
  thread_local bool silenced = false;
  if (!silenced) silenced = H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr) >= 0;
}

void Handle::close() noexcept {
  if (id_ < 0) return;
  const LibraryLock lock;
  // Closing a file also closes its objects.
  if (H5Iis_valid(id_) > 0) closer_(id_);
  id_ = -1;
}

Failure last_failure() {
  Failure failure;
  H5Ewalk2(H5E_DEFAULT, H5E_WALK_UPWARD, keep_first, &failure);
  if (failure.message.empty()) failure.message = "HDF5 gives no reason";
  // Drivers report system errors in the text: "... errno = 28, error message = 'No space left on device'
  // ...".
  if (const auto at = failure.message.find("errno = "); at != std::string::npos) {
    failure.system_error = std::atoi(failure.message.c_str() + at + std::strlen("errno = "));
    if (failure.system_error > 0) failure.message = std::strerror(failure.system_error);
  }
  return failure;
}

void throw_failure(std::string_view file, std::string_view object, std::string_view action) {
  const Failure failure = last_failure();
  const std::string where = object.empty() ? std::string(file) : fmt::format("{}: {}", file, object);
  if (failure.system_error > 0) throw_system_error(failure.system_error, where, action);
  if (failure.no_memory) throw NoMemory("{}: cannot {}: {}", where, action, failure.message);
  throw DataError("{}: cannot {}: {}", where, action, failure.message);
}

Handle owned_space(hid_t id) { return {id, H5Sclose}; }
Handle owned_type(hid_t id) { return {id, H5Tclose}; }
Handle owned_properties(hid_t id) { return {id, H5Pclose}; }

namespace {

/// A 16-bit little-endian float whose exponent begins at bit `mantissa_bits`.
Handle float16_type(std::size_t exponent_bits, std::size_t mantissa_bits, std::size_t bias) {
  Handle type = owned_type(H5Tcopy(H5T_IEEE_F32LE));
  // The fields must be set before the size, or they would be outside the type.
  if (!type || H5Tset_fields(type.id(), 15, mantissa_bits, exponent_bits, 0, mantissa_bits) < 0 ||
      H5Tset_size(type.id(), 2) < 0 || H5Tset_ebias(type.id(), bias) < 0) {
    throw FailureError("HDF5 cannot make a 16-bit float type: {}", last_failure().message);
  }
  return type;
}

hid_t standard_type(DType type) {
  switch (type) {
    case DType::float64:
      return H5T_IEEE_F64LE;
    case DType::float32:
      return H5T_IEEE_F32LE;
    case DType::int64:
      return H5T_STD_I64LE;
    case DType::int32:
      return H5T_STD_I32LE;
    case DType::int16:
      return H5T_STD_I16LE;
    case DType::int8:
      return H5T_STD_I8LE;
    case DType::uint64:
      return H5T_STD_U64LE;
    case DType::uint32:
      return H5T_STD_U32LE;
    case DType::uint16:
      return H5T_STD_U16LE;
    case DType::uint8:
      return H5T_STD_U8LE;
    case DType::float16:
    case DType::bfloat16:
      break;
  }
  return -1;
}

std::optional<DType> classify_float(hid_t type) {
  const std::size_t bytes = H5Tget_size(type);
  std::size_t sign = 0, exponent = 0, exponent_bits = 0, mantissa = 0, mantissa_bits = 0;
  if (H5Tget_fields(type, &sign, &exponent, &exponent_bits, &mantissa, &mantissa_bits) < 0)
    return std::nullopt;
  const auto is = [&](std::size_t size, std::size_t e, std::size_t m, std::size_t bias) {
    return bytes == size && sign == 8 * size - 1 && exponent == m && exponent_bits == e && mantissa == 0 &&
           mantissa_bits == m && H5Tget_ebias(type) == bias;
  };
  if (is(8, 11, 52, 1023)) return DType::float64;
  if (is(4, 8, 23, 127)) return DType::float32;
  if (is(2, 5, 10, 15)) return DType::float16;
  if (is(2, 8, 7, 127)) return DType::bfloat16;
  return std::nullopt;
}

std::optional<DType> classify_integer(hid_t type) {
  const std::size_t bytes = H5Tget_size(type);
  if (H5Tget_precision(type) != 8 * bytes) return std::nullopt;
  const bool is_signed = H5Tget_sign(type) == H5T_SGN_2;
  switch (bytes) {
    case 8:
      return is_signed ? DType::int64 : DType::uint64;
    case 4:
      return is_signed ? DType::int32 : DType::uint32;
    case 2:
      return is_signed ? DType::int16 : DType::uint16;
    case 1:
      return is_signed ? DType::int8 : DType::uint8;
    default:
      return std::nullopt;
  }
}

}  // namespace

Handle number_type(DType dtype) {
  static_assert(std::endian::native == std::endian::little, "files are little endian, and so must be memory");
  if (dtype == DType::bfloat16) return float16_type(8, 7, 127);
  if (dtype == DType::float16) return float16_type(5, 10, 15);
  Handle copy = owned_type(H5Tcopy(standard_type(dtype)));
  if (!copy) throw FailureError("HDF5 cannot copy a type: {}", last_failure().message);
  return copy;
}

Handle text_type(std::size_t bytes) {
  Handle type = owned_type(H5Tcopy(H5T_C_S1));
  if (!type || H5Tset_size(type.id(), bytes) < 0 || H5Tset_strpad(type.id(), H5T_STR_NULLTERM) < 0 ||
      H5Tset_cset(type.id(), H5T_CSET_UTF8) < 0) {
    throw FailureError("HDF5 cannot make a string type of {} bytes: {}", bytes, last_failure().message);
  }
  return type;
}

std::optional<DType> dtype_of_type(hid_t type) {
  switch (H5Tget_class(type)) {
    case H5T_FLOAT:
      return classify_float(type);
    case H5T_INTEGER:
      return classify_integer(type);
    case H5T_ENUM:
      return classify_integer(owned_type(H5Tget_super(type)).id());
    default:
      return std::nullopt;
  }
}

std::string unpadded(const std::string& buffer, hid_t type) {
  if (H5Tget_strpad(type) == H5T_STR_SPACEPAD) return buffer.substr(0, buffer.find_last_not_of(' ') + 1);
  return buffer.substr(0, buffer.find('\0'));
}

}  // namespace lockstep::hdf5
