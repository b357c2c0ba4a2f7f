// Writing .safetensors files, whole or not at all.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/output.h"
#include "checkpoint/safetensors.h"
#include "lockstep/base/error.h"
#include "lockstep/base/names.h"

namespace lockstep::checkpoint {
namespace {

std::string_view tag_of(DType dtype) {
  switch (dtype) {
    case DType::float64:
      return "F64";
    case DType::float32:
      return "F32";
    case DType::bfloat16:
      return "BF16";
    case DType::float16:
      return "F16";
    case DType::int64:
      return "I64";
    case DType::int32:
      return "I32";
    case DType::uint8:
      break;
  }
  return "U8";
}

/// A text as JSON has it, with its quotes.
std::string json_text(const std::string& text, const std::string& path) {
  try {
    return nlohmann::json(text).dump();
  } catch (const nlohmann::json::exception&) {
    throw DataError("{}: the text {} is not UTF-8, which a .safetensors file needs", path, in_quotes(text));
  }
}

std::string header_text(std::span<const NamedTensor* const> tensors,
                        const std::map<std::string, std::string>& metadata, const std::string& path) {
  std::string text = "{\"__metadata__\":{";
  const char* comma = "";
  for (const auto& [key, value] : metadata) {
    text += fmt::format("{}{}:{}", comma, json_text(key, path), json_text(value, path));
    comma = ",";
  }
  text += "}";
  std::uint64_t offset = 0;
  for (const NamedTensor* const tensor : tensors) {
    const std::uint64_t end = offset + tensor->value.bytes();
    text += fmt::format(",{}:{{\"dtype\":\"{}\",\"shape\":[{}],\"data_offsets\":[{},{}]}}",
                        json_text(tensor->name, path), tag_of(tensor->value.dtype()),
                        fmt::join(tensor->value.shape().extents(), ","), offset, end);
    offset = end;
  }
  text += "}";
  constexpr std::size_t alignment_bytes = 8;
  text.append((alignment_bytes - text.size() % alignment_bytes) % alignment_bytes, ' ');
  return text;
}

}  // namespace

void write_safetensors(const std::string& path, std::span<const NamedTensor> tensors,
                       const std::map<std::string, std::string>& metadata) {
  std::vector<const NamedTensor*> ordered;
  for (const NamedTensor& tensor : tensors) ordered.push_back(&tensor);
  std::stable_sort(ordered.begin(), ordered.end(), [](const NamedTensor* a, const NamedTensor* b) {
    return bytes_of(a->value.dtype()) > bytes_of(b->value.dtype());
  });
  const std::string header = header_text(ordered, metadata, path);
  const std::uint64_t header_bytes = header.size();
  if (header_bytes > most_safetensors_header_bytes) {
    throw DataError(
        "{}: {} bytes of names and metadata are more than the {} that a .safetensors file may have", path,
        header_bytes, most_safetensors_header_bytes);
  }
  write_whole(path, temporary_path(path, std::to_string(::getpid())), [&](OpenFile& file) {
    file.write_at(0, &header_bytes, sizeof header_bytes);
    std::uint64_t offset = sizeof header_bytes;
    file.write_at(offset, header.data(), header.size());
    offset += header.size();
    for (const NamedTensor* const tensor : ordered) {
      file.write_at(offset, tensor->value.raw(), tensor->value.bytes());
      offset += tensor->value.bytes();
    }
  });
}

}  // namespace lockstep::checkpoint
