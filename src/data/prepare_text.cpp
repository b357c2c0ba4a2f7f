// Tokens from text files, one a byte.
#include <fmt/ranges.h>
#include <algorithm>
#include <filesystem>

#include "data/input.h"
#include "data/prepare.h"
#include "lockstep/base/error.h"

namespace lockstep::data {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t byte_values = 256;
constexpr std::size_t chunk_bytes = 1 << 20;

bool is_text(const std::string& path) {
  Input input(path);
  std::vector<std::byte> start(8192);
  start.resize(input.read(start));
  return std::find(start.begin(), start.end(), std::byte{0}) == start.end();
}

/// The regular files in a folder and its subfolders, by name; those that are not text go to `skipped`.
std::vector<std::string> text_files_in(const std::string& folder, std::vector<std::string>& skipped) {
  std::vector<std::string> found, texts;
  std::error_code error;
  for (fs::recursive_directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    // A link could add the same text twice, or lead out of the folder.
    if (!entry->is_symlink() && entry->is_regular_file()) found.push_back(entry->path().string());
  }
  if (error) throw DataError("{}: cannot list: {}", folder, error.message());
  std::sort(found.begin(), found.end());
  for (std::string& path : found) (is_text(path) ? texts : skipped).push_back(std::move(path));
  return texts;
}

/// Calls use(bytes) with the file, a MiB at a time.
template <class Use>
void for_chunks(const std::string& path, std::vector<std::byte>& buffer, const Use& use) {
  Input input(path);
  while (const std::size_t got = input.read(buffer)) use(std::span<const std::byte>(buffer.data(), got));
}

}  // namespace

Prepared prepare_text(std::span<const std::string> inputs, const Output& output) {
  if (inputs.empty()) throw UsageError("no text files were named");
  check_output(inputs, output);
  Prepared prepared{
      .samples = 0, .image = {}, .element_type = "uint16", .classes = byte_values, .skipped = {}};
  std::vector<std::string> paths;
  for (const std::string& input : inputs) {
    std::error_code ignored;
    if (!fs::is_directory(input, ignored)) {
      paths.push_back(input);
      continue;
    }
    const std::vector<std::string> found = text_files_in(input, prepared.skipped);
    paths.insert(paths.end(), found.begin(), found.end());
  }
  std::vector<std::byte> buffer(chunk_bytes);
  for (const std::string& path : paths) {
    for_chunks(path, buffer,
               [&](std::span<const std::byte> chunk) { prepared.samples += std::ssize(chunk); });
  }
  if (prepared.samples == 0)
    throw DataError("{}: not written: there is no text in {}", output.path, fmt::join(inputs, ", "));

  write_whole(output, [&](hdf5::File& file) {
    hdf5::Dataset tokens = file.create_dataset("tokens", DType::uint16, {prepared.samples});
    tokens.set_attribute("vocabulary", byte_values);
    tokens.set_attribute("tokenizer", "bytes");
    std::vector<std::uint16_t> chunk_tokens(chunk_bytes);
    std::int64_t done = 0;
    for (const std::string& path : paths) {
      for_chunks(path, buffer, [&](std::span<const std::byte> chunk) {
        if (done + std::ssize(chunk) > prepared.samples)
          throw DataError("{}: it changed while it was read", path);
        std::transform(chunk.begin(), chunk.end(), chunk_tokens.begin(),
                       [](std::byte b) { return std::to_integer<std::uint16_t>(b); });
        tokens.write_rows(done, std::ssize(chunk),
                          std::span<const std::uint16_t>(chunk_tokens.data(), chunk.size()));
        done += std::ssize(chunk);
      });
    }
    if (done != prepared.samples) throw DataError("{}: the input changed while it was read", output.path);
  });
  return prepared;
}

}  // namespace lockstep::data
