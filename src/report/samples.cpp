// The samples of a run as a strip over time.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "base/files.h"
#include "lockstep/base/error.h"
#include "report/report.h"

namespace lockstep::report {
namespace {

namespace fs = std::filesystem;

std::string base64(std::string_view bytes) {
  constexpr std::string_view letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string text;
  text.reserve((bytes.size() + 2) / 3 * 4);
  for (std::size_t b = 0; b < bytes.size(); b += 3) {
    const std::size_t count = std::min<std::size_t>(3, bytes.size() - b);
    std::uint32_t group = 0;
    for (std::size_t i = 0; i < 3; ++i)
      group = group << 8 | (i < count ? static_cast<unsigned char>(bytes[b + i]) : 0U);
    for (std::size_t i = 0; i < 4; ++i) text += i <= count ? letters[group >> (18 - 6 * i) & 63] : '=';
  }
  return text;
}

constexpr std::size_t max_files = 40, max_text = 4'000;  // bytes of a text

/// `few` of the indices below `all`, equally spaced, with the last one and, if few > 1, the first.
std::vector<std::size_t> spread(std::size_t all, std::size_t few) {
  std::vector<std::size_t> places;
  for (std::size_t i = 0; i < few; ++i) places.push_back(few == 1 ? all - 1 : i * (all - 1) / (few - 1));
  return places;
}

/// An upper bound of a sample's bytes on the page: a picture as base64, or a text with every letter escaped.
std::size_t page_bytes_of(const fs::path& file) {
  std::error_code gone;
  const auto bytes = static_cast<std::size_t>(fs::file_size(file, gone));
  if (gone) return 0;
  constexpr std::size_t frame = 160;
  return frame + (file.extension() == ".png" ? (bytes + 2) / 3 * 4 : 6 * std::min(bytes, max_text));
}

json sample_of(const fs::path& file, std::size_t max_bytes) {
  json sample{{"name", file.stem().string()}};
  if (file.extension() == ".png") {
    sample["png"] = base64(read_text(file, max_bytes));
  } else {
    const OpenFile text(file, OpenFile::Mode::read);
    std::string start(std::min<std::uint64_t>(text.size(), max_text + 1), '\0');
    text.read_at(0, start.data(), start.size());
    sample["text"] = cut(start, max_text);
  }
  return sample;
}

}  // namespace

std::vector<json> samples_of(const RunLog& run, std::size_t max_bytes) {
  std::vector<fs::path> files;
  std::error_code gone;
  for (fs::directory_iterator entry(run.path + "/samples", gone), end; !gone && entry != end;
       entry.increment(gone)) {
    const std::string kind = entry->path().extension();
    if ((kind == ".png" || kind == ".txt") && entry->path().filename().string()[0] != '.')
      files.push_back(entry->path());
  }
  if (files.empty()) return {};
  std::ranges::sort(files);  // steps in names have leading zeros
  std::vector<std::size_t> bytes;
  for (const fs::path& file : files) bytes.push_back(page_bytes_of(file));
  std::size_t few = std::min(files.size(), max_files);
  const auto fits = [&] {
    std::size_t sum = 0;
    for (const std::size_t place : spread(files.size(), few)) sum += bytes[place];
    return sum <= max_bytes;
  };
  while (few > 0 && !fits()) --few;
  json strip = json::array();
  for (const std::size_t place : spread(files.size(), few)) {
    try {
      strip.push_back(sample_of(files[place], max_bytes));
    } catch (const Error&) {  // the file was removed meanwhile
    }
  }
  std::string count;
  if (strip.size() < files.size())
    count = fmt::format("Shows {} of {} samples, to limit the size of the page.", strip.size(), files.size());
  std::vector<json> parts{note(count)};
  if (!strip.empty()) parts.insert(parts.begin(), json{{"strip", std::move(strip)}});
  return parts;
}

}  // namespace lockstep::report
