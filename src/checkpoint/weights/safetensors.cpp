// The header is parsed as a stream of events, without recursion and without a tree.
#include "checkpoint/weights/safetensors.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <limits>
#include <nlohmann/json.hpp>
#include <unordered_set>

#include "base/output.h"
#include "base/text.h"
#include "checkpoint/weights/element_types.h"
#include "lockstep/base/error.h"

namespace lockstep::checkpoint {
namespace {

using nlohmann::json;

/// Receives the parser's events. Anything outside the format throws at once.
class HeaderReader final : public nlohmann::json_sax<json> {
 public:
  HeaderReader(const std::string& path, SafetensorsHeader& header) : path_(path), header_(header) {}

  bool start_object(std::size_t) override {
    if (inside_ == Inside::nothing) {
      inside_ = Inside::root;
    } else if (inside_ == Inside::root) {
      inside_ = key_ == "__metadata__" ? Inside::metadata : Inside::entry;
      if (inside_ == Inside::entry) begin_entry();
    } else {
      fail_here("has an object in a wrong place");
    }
    return true;
  }

  bool key(std::string& key) override {
    switch (inside_) {
      case Inside::root:
        if (!names_.insert(key).second) throw DataError("{}: {} occurs twice", path_, quote(key));
        key_ = std::move(key);
        return true;
      case Inside::metadata:
        if (header_.metadata.contains(key)) fail_here(fmt::format("has {} twice", quote(key)));
        field_ = std::move(key);
        return true;
      default:
        begin_field(key);
        return true;
    }
  }

  bool end_object() override {
    if (inside_ == Inside::entry) end_entry();
    inside_ = inside_ == Inside::root ? Inside::nothing : Inside::root;
    return true;
  }

  bool start_array(std::size_t) override {
    if (inside_ != Inside::entry || field_ == "dtype") fail_here("has a list in a wrong place");
    inside_ = Inside::list;
    return true;
  }

  bool end_array() override {
    inside_ = Inside::entry;
    return true;
  }

  bool string(std::string& value) override {
    if (inside_ == Inside::metadata) {
      header_.metadata.emplace(std::move(field_), std::move(value));
    } else if (inside_ == Inside::entry && field_ == "dtype") {
      type_ = type_by(&ElementType::safetensors, value);
      if (!type_) fail_here(fmt::format("has the unknown dtype {}", quote(value)));
    } else {
      fail_here("has a text in a wrong place");
    }
    return true;
  }

  bool number_unsigned(std::uint64_t value) override {
    constexpr std::size_t max_extents = 32;
    if (inside_ != Inside::list) fail_here("has a number in a wrong place");
    if (field_ == "shape") {
      std::vector<std::int64_t>& shape = header_.tensors.back().shape;
      if (shape.size() == max_extents) fail_here(fmt::format("has more than {} dimensions", max_extents));
      if (value > std::numeric_limits<std::int64_t>::max()) fail_too_large();
      shape.push_back(static_cast<std::int64_t>(value));
    } else {
      if (offset_count_ == offsets_.size()) fail_here("has more than two data_offsets");
      offsets_[offset_count_++] = value;
    }
    return true;
  }

  bool number_integer(std::int64_t value) override {
    fail_here(fmt::format("has the number {}; only integers of at least 0 are valid", value));
  }
  bool number_float(double, const std::string&) override {
    fail_here("has a number that is not an integer, or too large");
  }
  bool null() override { fail_here("holds null"); }
  bool boolean(bool) override { fail_here("holds true or false"); }
  bool binary(json::binary_t&) override { fail_here("holds bytes"); }
  bool parse_error(std::size_t position, const std::string&, const json::exception&) override {
    throw DataError("{}: the header is not JSON at its byte {}: is this a .safetensors file?", path_,
                    position);
  }

 private:
  enum class Inside { nothing, root, metadata, entry, list };
  static constexpr unsigned has_dtype = 1, has_shape = 2, has_offsets = 4, has_all = 7;

  [[noreturn]] void fail_here(std::string_view what) const {
    if (key_.empty() && names_.empty()) throw DataError("{}: the header {}", path_, what);
    throw DataError("{}: {} {}", path_, quote(key_), what);
  }
  [[noreturn]] void fail_too_large() const { fail_here("claims more elements than any machine could hold"); }

  void begin_entry() {
    header_.tensors.emplace_back().name = key_;
    fields_ = 0;
    offset_count_ = 0;
    type_ = nullptr;
  }

  void begin_field(std::string& field) {
    const unsigned bit = field == "dtype"          ? has_dtype
                         : field == "shape"        ? has_shape
                         : field == "data_offsets" ? has_offsets
                                                   : 0;
    if (bit == 0) fail_here(fmt::format("has the unknown field {}", quote(field)));
    if (fields_ & bit) fail_here(fmt::format("has {} twice", field));
    fields_ |= bit;
    field_ = std::move(field);
  }

  void end_entry() {
    if (fields_ != has_all) fail_here("lacks one of dtype, shape and data_offsets");
    if (offset_count_ != 2 || offsets_[1] < offsets_[0])
      fail_here("has data_offsets that are not a begin and an end");
    SafetensorsEntry& entry = header_.tensors.back();
    entry.dtype = type_->element;
    entry.type_name = type_->name;
    const std::optional<std::uint64_t> bytes = bytes_of_shape(entry.shape, type_->bytes);
    if (!bytes) fail_too_large();
    entry.offset = offsets_[0];
    entry.bytes = *bytes;
    if (offsets_[1] - offsets_[0] != entry.bytes) {
      fail_here(fmt::format("has {} bytes, but {} [{}] takes {}", offsets_[1] - offsets_[0],
                            type_->safetensors, fmt::join(entry.shape, ", "), entry.bytes));
    }
  }

  const std::string& path_;
  SafetensorsHeader& header_;
  Inside inside_ = Inside::nothing;
  std::string key_, field_;
  std::unordered_set<std::string> names_;
  unsigned fields_ = 0;
  const ElementType* type_ = nullptr;
  std::array<std::uint64_t, 2> offsets_{};
  std::size_t offset_count_ = 0;
};

/// Sorts the tensors by offset and checks that they cover [0, data_bytes) exactly.
void check_places(std::vector<SafetensorsEntry>& tensors, std::uint64_t data_bytes, const std::string& path) {
  std::stable_sort(tensors.begin(), tensors.end(), [](const auto& a, const auto& b) {
    return a.offset != b.offset ? a.offset < b.offset : a.bytes < b.bytes;
  });
  std::uint64_t end = 0;
  const SafetensorsEntry* previous = nullptr;
  for (const SafetensorsEntry& tensor : tensors) {
    if (tensor.offset < end) {
      throw DataError("{}: {} overlaps {}", path, quote(tensor.name), quote(previous->name));
    }
    if (tensor.offset > data_bytes || tensor.bytes > data_bytes - tensor.offset) {
      throw DataError("{}: {} ({} bytes at {}) is not within the {} bytes of elements: is it truncated?",
                      path, quote(tensor.name), tensor.bytes, tensor.offset, data_bytes);
    }
    if (tensor.offset > end) {
      throw DataError("{}: {} bytes before {} belong to no tensor", path, tensor.offset - end,
                      quote(tensor.name));
    }
    end = tensor.offset + tensor.bytes;
    previous = &tensor;
  }
  if (end != data_bytes) {
    throw DataError("{}: {} bytes at the end belong to no tensor", path, data_bytes - end);
  }
}

}  // namespace

SafetensorsHeader parse_safetensors_header(std::string_view text, std::uint64_t data_bytes,
                                           const std::string& path) {
  if (!text.starts_with('{')) throw DataError("{}: the header does not begin with '{{'", path);
  SafetensorsHeader header;
  HeaderReader reader(path, header);
  json::sax_parse(text.begin(), text.end(), &reader);
  check_places(header.tensors, data_bytes, path);
  return header;
}

SafetensorsFile::SafetensorsFile(const std::string& path)
    : WeightSource(path), file_(path, OpenFile::Mode::read) {
  static_assert(std::endian::native == std::endian::little, "the size is little endian, and so are elements");
  std::uint64_t header_bytes = 0;
  const std::uint64_t file_bytes = file_.size();
  if (file_bytes < sizeof header_bytes) {
    throw DataError("{}: {} bytes are too few for a .safetensors file", path, file_bytes);
  }
  file_.read_at(0, &header_bytes, sizeof header_bytes);
  if (header_bytes > max_safetensors_header_bytes) {
    throw DataError("{}: claims a header of {} bytes, more than the {} allowed: is it a .safetensors file?",
                    path, header_bytes, max_safetensors_header_bytes);
  }
  if (header_bytes > file_bytes - sizeof header_bytes) {
    throw DataError("{}: claims a header of {} bytes, but has {} in all: is it truncated?", path,
                    header_bytes, file_bytes);
  }
  std::string text(header_bytes, '\0');
  file_.read_at(sizeof header_bytes, text.data(), header_bytes);
  data_begin_ = sizeof header_bytes + header_bytes;
  header_ = parse_safetensors_header(text, file_bytes - data_begin_, path);
  tensors_.assign(header_.tensors.begin(), header_.tensors.end());
}

std::string SafetensorsFile::metadata(const std::string& key) const {
  const auto found = header_.metadata.find(key);
  return found == header_.metadata.end() ? "" : found->second;
}

void SafetensorsFile::read(std::size_t tensor, std::span<std::byte> out) const {
  const SafetensorsEntry& entry = header_.tensors.at(tensor);
  if (out.size() != entry.bytes)
    throw UsageError("{}: {} has {} bytes, not {}", path(), quote(entry.name), entry.bytes, out.size());
  file_.read_at(data_begin_ + entry.offset, out.data(), entry.bytes);
}

namespace {

/// A text as a JSON string, with quotes.
std::string json_text(const std::string& text, const std::string& path) {
  try {
    return nlohmann::json(text).dump();
  } catch (const nlohmann::json::exception&) {
    throw DataError("{}: the text {} is not UTF-8, which a .safetensors file needs", path, quote(text));
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
                        json_text(tensor->name, path), type_of(tensor->value.dtype()).safetensors,
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
  if (header_bytes > max_safetensors_header_bytes) {
    throw DataError(
        "{}: {} bytes of names and metadata are more than the {} that a .safetensors file may have", path,
        header_bytes, max_safetensors_header_bytes);
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
