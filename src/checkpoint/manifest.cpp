#include "checkpoint/manifest.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <charconv>
#include <optional>
#include <string_view>

#include "checkpoint/digest.h"
#include "lockstep/base/error.h"

namespace lockstep::checkpoint {
namespace {

/// The text up to the next `end`, which is taken off the front with it.
std::optional<std::string_view> take_until(std::string_view& text, char end) {
  const std::size_t at = text.find(end);
  if (at == std::string_view::npos) return std::nullopt;
  const std::string_view taken = text.substr(0, at);
  text.remove_prefix(at + 1);
  return taken;
}

template <class T>
bool parse_number(std::string_view text, T& number) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc() && end == text.data() + text.size();
}

/// "[2,3]"; false if it is none.
bool parse_shape(std::string_view text, Shape& shape) {
  if (text.size() < 2 || text.front() != '[' || text.back() != ']') return false;
  text = text.substr(1, text.size() - 2);
  std::vector<std::int64_t> extents;
  while (!text.empty()) {
    const std::size_t comma = std::min(text.find(','), text.size());
    std::int64_t extent = 0;
    if (!parse_number(text.substr(0, comma), extent) || extent < 0) return false;
    if (extents.size() == static_cast<std::size_t>(Shape::max_rank)) return false;
    extents.push_back(extent);
    if (comma + 1 == text.size()) return false;  // nothing after a comma
    text.remove_prefix(std::min(comma + 1, text.size()));
  }
  try {
    shape = Shape(std::span<const std::int64_t>(extents));
  } catch (const UsageError&) {  // more elements than there can be
    return false;
  }
  return true;
}

std::optional<TensorEntry> parse_line(std::string_view line) {
  TensorEntry entry;
  const auto digest = take_until(line, ' '), bytes = take_until(line, ' '), dtype = take_until(line, ' '),
             shape = take_until(line, ' ');
  if (!shape || !from_hex(*digest, entry.digest) || !parse_number(*bytes, entry.bytes)) return std::nullopt;
  if (!parse_shape(*shape, entry.shape)) return std::nullopt;
  try {
    entry.dtype = dtype_named(*dtype);
  } catch (const UsageError&) {
    return std::nullopt;
  }
  const std::size_t slash = line.rfind('/');
  if (!line.starts_with('/') || slash == 0 || slash + 1 == line.size()) return std::nullopt;
  entry.group = line.substr(1, slash - 1);
  entry.name = line.substr(slash + 1);
  return entry;
}

}  // namespace

std::string manifest_text(const std::vector<TensorEntry>& tensors) {
  std::string text;
  for (const TensorEntry& tensor : tensors) {
    fmt::format_to(std::back_inserter(text), "{:016x} {} {} [{}] {}\n", tensor.digest, tensor.bytes,
                   to_string(tensor.dtype), fmt::join(tensor.shape.extents(), ","), tensor.path());
  }
  return text;
}

std::vector<TensorEntry> parse_manifest(const std::string& text, const std::string& file) {
  std::vector<TensorEntry> tensors;
  for (std::string_view rest = text; !rest.empty();) {
    const auto line = take_until(rest, '\n');
    auto entry = line ? parse_line(*line) : std::nullopt;
    if (!entry) throw DataError("{}: /manifest: line {} is no tensor", file, tensors.size() + 1);
    tensors.push_back(std::move(*entry));
  }
  return tensors;
}

std::string to_text(const AttributeValue& value) {
  if (const auto* integer = std::get_if<std::int64_t>(&value)) return fmt::format("{}", *integer);
  if (const auto* number = std::get_if<double>(&value))
    return fmt::format("{}", *number);  // shortest that reads back
  return std::get<std::string>(value);
}

std::string digested_text(const FileIndex& index) {
  const Position& position = index.position;
  std::string text =
      fmt::format("format_version {}\nstep {}\nepoch {}\nsamples {}\nshards {}\nseed {}\n", index.version,
                  position.step, position.epoch, position.samples, position.shards, position.seed);
  for (const GroupEntry& group : index.groups) {
    for (const auto& [name, value] : group.attributes) {
      fmt::format_to(std::back_inserter(text), "/{} {} {} {}\n", group.path, name, value.index(),
                     to_text(value));
    }
  }
  const std::string manifest = manifest_text(index.tensors);
  fmt::format_to(std::back_inserter(text), "config {}\n{}manifest {}\n", index.config.size(), index.config,
                 manifest.size());
  return text + manifest;
}

std::uint64_t root_digest(const FileIndex& index) {
  const std::string text = digested_text(index);
  return digest_of(text.data(), text.size());
}

}  // namespace lockstep::checkpoint
