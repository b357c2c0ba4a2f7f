// Tokens from text files, one a byte.
#include <fmt/ranges.h>
#include <algorithm>
#include <array>
#include <filesystem>
#include <span>
#include <string_view>

#include "data/input.h"
#include "data/prepare.h"
#include "lockstep/base/error.h"

namespace lockstep::data {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t byte_values = 256;
constexpr std::size_t chunk_bytes = 1 << 20;

/// Why the file is no text of bytes, as its start tells; empty if it is.
std::string other_than_text(const std::string& path) {
  struct Kind {
    std::string_view start;
    const char* name;
  };
  using namespace std::string_view_literals;
  constexpr std::array kinds{Kind{"PK\3\4"sv, "a zip archive: unpack it"},
                             Kind{"BZh"sv, "packed by bzip2: unpack it"},
                             Kind{"\xFD\x37zXZ"sv, "packed by xz: unpack it"},
                             Kind{"\x28\xB5\x2F\xFD"sv, "packed by zstd: unpack it"},
                             Kind{"7z\xBC\xAF"sv, "a 7z archive: unpack it"},
                             Kind{"Rar!"sv, "a rar archive: unpack it"},
                             Kind{"\x1F\x8B"sv, "gzipped twice: unpack it"},
                             Kind{"%PDF-"sv, "a PDF: export its text"},
                             Kind{"PAR1"sv, "a Parquet file: export its text"},
                             Kind{"\xFF\xFE"sv, "UTF-16: convert it (iconv -f utf-16 -t utf-8)"},
                             Kind{"\xFE\xFF"sv, "UTF-16: convert it (iconv -f utf-16 -t utf-8)"}};
  Input input(path);
  std::string start(8192, '\0');
  start.resize(input.read(std::as_writable_bytes(std::span(start))));
  for (const Kind& kind : kinds)
    if (start.starts_with(kind.start)) return kind.name;
  const auto is_control = [](char c) {
    return (static_cast<unsigned char>(c) < 0x20 &&
            std::string_view("\b\t\n\v\f\r\x1B").find(c) == std::string_view::npos) ||
           c == 0x7F;
  };
  const auto controls = std::ranges::count_if(start, is_control);
  if (start.find('\0') == start.npos && 50 * controls <= std::ssize(start)) return "";
  return "not text, as its start has other bytes (tokens go into an HDF5 file by h5py: docs/data.md)";
}

/// The regular files in a folder and its subfolders, by name; those that are not text go to `notes`.
std::vector<std::string> text_files_in(const std::string& folder, std::vector<std::string>& notes) {
  std::vector<std::string> found, texts;
  std::error_code error;
  for (fs::recursive_directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    // A link could add the same text twice, or lead out of the folder.
    if (!entry->is_symlink() && entry->is_regular_file()) found.push_back(entry->path().string());
  }
  if (error) throw DataError("{}: cannot list: {}", folder, error.message());
  std::sort(found.begin(), found.end());
  for (std::string& path : found) {
    if (const std::string why = other_than_text(path); !why.empty()) {
      notes.push_back(fmt::format("skipped {}: it is {}", path, why));
    } else {
      texts.push_back(std::move(path));
    }
  }
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
  Prepared prepared{.samples = 0, .image = {}, .element_type = "uint16", .classes = byte_values};
  std::vector<std::string> paths;
  for (const std::string& input : inputs) {
    std::error_code ignored;
    if (!fs::is_directory(input, ignored)) {
      if (const std::string why = other_than_text(input); !why.empty())
        throw DataError("{}: not written: {} is {}", output.path, input, why);
      paths.push_back(input);
      continue;
    }
    const std::vector<std::string> found = text_files_in(input, prepared.notes);
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
