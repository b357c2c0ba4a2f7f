// Converts text files to tokens, one per byte.
#include <fmt/ranges.h>
#include <algorithm>
#include <array>
#include <filesystem>
#include <span>
#include <string_view>

#include "base/text.h"
#include "data/array_writer.h"
#include "data/input.h"
#include "data/prepare.h"
#include "lockstep/base/error.h"
#include "lockstep/data/tokenizer.h"

namespace lockstep::data {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t chunk_bytes = 1 << 20;

/// The number of bytes of a text file, after checking all of them; -1 if it is not text, and `why` tells what
/// it is.
std::int64_t text_bytes(const std::string& path, std::string& why) {
  constexpr auto control = [] {
    std::array<bool, 256> table{};
    for (std::size_t c = 0; c < 0x20; ++c)
      table[c] = std::string_view("\b\t\n\v\f\r\x1B").find(static_cast<char>(c)) == std::string_view::npos;
    table[0x7F] = true;
    return table;
  }();
  Input input(path);
  std::string block(8192, '\0');
  std::int64_t bytes = 0;
  for (; const std::size_t got = input.read(std::as_writable_bytes(std::span(block)));
       bytes += std::ssize(block)) {
    const auto max_controls = static_cast<std::ptrdiff_t>(bytes == 0 ? got : block.size()) / 50;
    block.resize(got);
    const auto controls = std::ranges::count_if(block, [&](unsigned char c) { return control[c]; });
    if (const FileKind* const kind = bytes == 0 ? kind_of_file(block) : nullptr)
      why = fmt::format("{}: {}", kind->what, kind->remedy);
    // After the first block a single null byte is accepted.
    if (why.empty() && (controls > max_controls || (bytes == 0 && block.find('\0') != block.npos)))
      why = fmt::format(
          "not text: it contains binary data from byte {} on (to store tokens, write an HDF5 file by h5py: "
          "docs/data.md)",
          bytes);
    if (!why.empty()) return -1;
  }
  return bytes;
}

/// The regular files in a folder and its subfolders, sorted by name.
std::vector<std::string> files_in(const std::string& folder) {
  std::vector<std::string> found;
  std::error_code error;
  for (fs::recursive_directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    // A link could add the same text twice, or lead out of the folder.
    if (!entry->is_symlink() && entry->is_regular_file()) found.push_back(entry->path().string());
  }
  if (error) throw DataError("{}: cannot list the folder: {}", folder, error.message());
  std::sort(found.begin(), found.end());
  return found;
}

}  // namespace

Summary prepare_text(std::span<const std::string> inputs, const Output& output) {
  if (inputs.empty()) throw UsageError("prepare text: the list of files is empty");
  check_output(inputs, output);
  const Bytes tokenizer;
  Summary summary{.samples = 0, .image = {}, .element_type = "uint16", .classes = tokenizer.vocabulary()};
  std::vector<std::string> paths;
  constexpr std::int64_t max_notes = 5;
  std::int64_t skipped = 0;
  for (const std::string& input : inputs) {
    std::error_code ignored;
    const bool folder = fs::is_directory(input, ignored);
    for (std::string& path : folder ? files_in(input) : std::vector{input}) {
      std::string why;
      const std::int64_t bytes = text_bytes(path, why);
      if (bytes < 0 && !folder) throw DataError("{}: not written: {} is {}", output.path, path, why);
      if (bytes < 0) {
        if (++skipped <= max_notes) summary.notes.push_back(fmt::format("skipped {}: it is {}", path, why));
      } else {
        summary.samples += bytes;
        paths.push_back(std::move(path));
      }
    }
  }
  if (skipped > max_notes)
    summary.notes.push_back(
        fmt::format("skipped {} that are no text", pluralized(skipped - max_notes, "other file")));
  if (summary.samples == 0)
    throw DataError("{}: not written: no text in {}", output.path, fmt::join(inputs, ", "));

  ArrayWriter writer(output, {{.name = "tokens", .rows = summary.samples, .dtype = DType::uint16}});
  store_tokenizer(writer.dataset(0), "bytes", tokenizer);
  std::string buffer(chunk_bytes, '\0');
  for (const std::string& path : paths) {
    Input input(path);
    while (const std::size_t got = input.read(std::as_writable_bytes(std::span(buffer)))) {
      const std::vector<std::int64_t> tokens = tokenizer.encode(std::string_view(buffer).substr(0, got));
      writer.add(0, std::span<const std::int64_t>(tokens));
    }
  }
  writer.finish();
  writer.publish();
  return summary;
}

}  // namespace lockstep::data
