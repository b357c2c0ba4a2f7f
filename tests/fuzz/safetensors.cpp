// The header of a .safetensors file: any text gives a header that keeps every promise, or one DataError of a
// line.
//
// Input: eight bytes with the bytes of elements that the file would have, then the header.
#include "checkpoint/weights/safetensors.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "lockstep/base/error.h"

namespace {

void require(bool holds) {
  if (!holds) std::abort();
}

void check_promises(const lockstep::checkpoint::SafetensorsHeader& header, std::uint64_t data_bytes) {
  std::uint64_t end = 0;
  for (const lockstep::checkpoint::SafetensorsEntry& tensor : header.tensors) {
    require(tensor.offset == end && tensor.shape.size() <= 32);
    end += tensor.bytes;
    std::uint64_t elements = 1;
    for (const std::int64_t extent : tensor.shape) {
      require(extent >= 0);
      elements *= static_cast<std::uint64_t>(extent);
    }
    require(elements == 0 ? tensor.bytes == 0 : tensor.bytes % elements == 0 && tensor.bytes / elements <= 8);
  }
  require(end == data_bytes);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t bytes) {
  std::uint64_t data_bytes = 0;
  if (bytes < sizeof data_bytes) return -1;
  std::memcpy(&data_bytes, data, sizeof data_bytes);
  const std::string_view text(reinterpret_cast<const char*>(data) + sizeof data_bytes,
                              bytes - sizeof data_bytes);
  try {
    check_promises(lockstep::checkpoint::parse_safetensors_header(text, data_bytes, "fuzzed"), data_bytes);
  } catch (const lockstep::DataError& error) {
    const std::string_view what = error.what();
    require(what.starts_with("fuzzed: ") && what.find('\n') == std::string_view::npos && what.size() < 2000);
  }
  return 0;
}
