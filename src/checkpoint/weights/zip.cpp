// A directory at the end of a zip archive lists the entries, and each entry has a header of its own. Both are
// compared, as programs differ in which of them they use.
#include "checkpoint/weights/zip.h"

#include <zlib.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <limits>

#include "base/text.h"
#include "lockstep/base/error.h"

namespace lockstep::checkpoint {
namespace {

static_assert(std::endian::native == std::endian::little, "numbers of the format are little endian");

constexpr std::string_view entry_signature = "PK\3\4", directory_signature = "PK\1\2",
                           end_signature = "PK\5\6", wide_end_signature = "PK\6\6",
                           wide_locator_signature = "PK\6\7";
constexpr std::size_t entry_header_bytes = 30, directory_header_bytes = 46, end_bytes = 22,
                      wide_end_bytes = 56, wide_locator_bytes = 20;
constexpr std::uint16_t is_encrypted = 0x2041, sizes_follow = 0x8, name_is_utf8 = 0x800, zip64_field = 1;
/// The value of a 16- or 32-bit field if the number is in a 64-bit field elsewhere.
constexpr std::uint16_t in_wide_16 = 0xffff;
constexpr std::uint32_t in_wide_32 = 0xffffffff;

template <class T>
T number_at(std::string_view bytes, std::size_t at) {
  T value;
  std::memcpy(&value, bytes.data() + at, sizeof value);
  return value;
}

std::uint32_t crc32_of(std::span<const std::byte> bytes, std::uint32_t before = 0) {
  return static_cast<std::uint32_t>(
      ::crc32_z(before, reinterpret_cast<const Bytef*>(bytes.data()), bytes.size()));
}

bool leads_out(std::string_view name) {
  if (name.empty() || name.front() == '/' || name.find('\\') != std::string_view::npos) return true;
  for (std::size_t begin = 0; begin <= name.size();) {
    const std::size_t end = std::min(name.find('/', begin), name.size());
    if (name.substr(begin, end - begin) == "..") return true;
    begin = end + 1;
  }
  return false;
}

std::string read_text(const OpenFile& file, std::uint64_t offset, std::uint64_t bytes) {
  std::string text(bytes, '\0');
  file.read_at(offset, text.data(), bytes);
  return text;
}

/// The place of the directory.
struct Directory {
  std::uint64_t offset = 0, bytes = 0, entries = 0;
};

/// The directory by the 64-bit record, which a locator in front of the end record points to. `end` is that
/// record with its directory.
Directory wide_directory(const OpenFile& file, std::string_view locator, const Directory& end,
                         std::uint64_t locator_offset) {
  const auto offset = number_at<std::uint64_t>(locator, 8);
  if (locator_offset < wide_end_bytes || offset > locator_offset - wide_end_bytes)
    throw DataError("{}: its zip64 record is not within the file", file.path());
  const std::string record = read_text(file, offset, wide_end_bytes);
  if (!record.starts_with(wide_end_signature))
    throw DataError("{}: its zip64 record is not at the offset in its end record", file.path());
  const Directory wide{number_at<std::uint64_t>(record, 48), number_at<std::uint64_t>(record, 40),
                       number_at<std::uint64_t>(record, 32)};
  const auto differs = [](std::uint64_t narrow, std::uint64_t wide_number, std::uint64_t in_wide) {
    return narrow != in_wide && narrow != wide_number;
  };
  if (number_at<std::uint64_t>(record, 16) != 0 || number_at<std::uint64_t>(record, 24) != wide.entries)
    throw DataError("{}: is a part of a multi-part archive", file.path());
  if (differs(end.offset, wide.offset, in_wide_32) || differs(end.bytes, wide.bytes, in_wide_32) ||
      differs(end.entries, wide.entries, in_wide_16))
    throw DataError("{}: its end record and its zip64 record disagree", file.path());
  if (wide.offset > offset || wide.bytes != offset - wide.offset)
    throw DataError("{}: its directory does not end at its zip64 record", file.path());
  return wide;
}

Directory find_directory(const OpenFile& file, std::uint64_t file_bytes) {
  constexpr std::uint64_t max_comment_bytes = 0xffff;
  const std::uint64_t tail_bytes =
      std::min<std::uint64_t>(file_bytes, end_bytes + max_comment_bytes + wide_locator_bytes);
  const std::string tail = read_text(file, file_bytes - tail_bytes, tail_bytes);
  for (std::size_t at = tail.size() < end_bytes ? std::string::npos
                                                : tail.rfind(end_signature, tail.size() - end_bytes);
       at != std::string::npos; at = at == 0 ? std::string::npos : tail.rfind(end_signature, at - 1)) {
    const std::string_view end = std::string_view(tail).substr(at);
    if (number_at<std::uint16_t>(end, 20) != end.size() - end_bytes) continue;
    const Directory directory{number_at<std::uint32_t>(end, 16), number_at<std::uint32_t>(end, 12),
                              number_at<std::uint16_t>(end, 10)};
    const std::uint64_t offset = file_bytes - end.size();
    if (at >= wide_locator_bytes) {
      const std::string_view locator =
          std::string_view(tail).substr(at - wide_locator_bytes, wide_locator_bytes);
      if (locator.starts_with(wide_locator_signature))
        return wide_directory(file, locator, directory, offset - wide_locator_bytes);
    }
    if (number_at<std::uint32_t>(end, 4) != 0 || number_at<std::uint16_t>(end, 8) != directory.entries)
      throw DataError("{}: is a part of a multi-part archive", file.path());
    if (directory.offset > offset || directory.bytes != offset - directory.offset)
      throw DataError("{}: its directory does not end at its end record", file.path());
    return directory;
  }
  throw DataError("{}: has no end of a zip archive: is it truncated?", file.path());
}

/// An entry of the directory.
struct Listed {
  ZipEntry entry;
  std::uint64_t header_offset = 0;
  std::uint16_t flags = 0;
};

/// Replaces sizes and the offset that exceed 32 bits by those in the zip64 field of `extra`.
void take_wide_numbers(std::string_view extra, std::array<std::uint64_t*, 3> numbers, const std::string& path,
                       const std::string& name) {
  if (std::ranges::all_of(numbers, [](const std::uint64_t* number) { return *number != in_wide_32; })) return;
  while (extra.size() >= 4) {
    const auto id = number_at<std::uint16_t>(extra, 0);
    const std::size_t bytes = number_at<std::uint16_t>(extra, 2);
    if (bytes > extra.size() - 4) break;
    std::string_view field = extra.substr(4, bytes);
    extra.remove_prefix(4 + bytes);
    if (id != zip64_field) continue;
    for (std::uint64_t* const number : numbers) {
      if (*number != in_wide_32) continue;
      if (field.size() < sizeof *number) throw DataError("{}: {} lacks its size", path, quote(name));
      *number = number_at<std::uint64_t>(field, 0);
      field.remove_prefix(sizeof *number);
    }
    return;
  }
  throw DataError("{}: {} lacks its size", path, quote(name));
}

/// Removes the next entry from the front of the directory.
Listed next_listed(std::string_view& directory, const std::string& path) {
  if (directory.size() < directory_header_bytes || !directory.starts_with(directory_signature))
    throw DataError("{}: its directory is damaged", path);
  const std::string_view header = directory.substr(0, directory_header_bytes);
  const std::size_t name_bytes = number_at<std::uint16_t>(header, 28),
                    extra_bytes = number_at<std::uint16_t>(header, 30),
                    comment_bytes = number_at<std::uint16_t>(header, 32);
  directory.remove_prefix(directory_header_bytes);
  if (name_bytes + extra_bytes + comment_bytes > directory.size())
    throw DataError("{}: its directory is damaged", path);
  Listed listed;
  listed.entry.name = directory.substr(0, name_bytes);
  const std::string_view extra = directory.substr(name_bytes, extra_bytes);
  directory.remove_prefix(name_bytes + extra_bytes + comment_bytes);

  const std::string& name = listed.entry.name;
  if (leads_out(name)) throw DataError("{}: the name {} leads out of the archive", path, quote(name));
  listed.flags = number_at<std::uint16_t>(header, 8);
  if (listed.flags & is_encrypted) throw DataError("{}: {} is encrypted", path, quote(name));
  if (const auto method = number_at<std::uint16_t>(header, 10); method != 0)
    throw DataError("{}: {} is compressed (method {}), which torch.save never does: store it", path,
                    quote(name), method);
  listed.entry.crc32 = number_at<std::uint32_t>(header, 16);
  std::uint64_t compressed_bytes = number_at<std::uint32_t>(header, 20);
  listed.entry.bytes = number_at<std::uint32_t>(header, 24);
  listed.header_offset = number_at<std::uint32_t>(header, 42);
  take_wide_numbers(extra, {&listed.entry.bytes, &compressed_bytes, &listed.header_offset}, path, name);
  if (compressed_bytes != listed.entry.bytes)
    throw DataError("{}: {} has {} stored bytes instead of {}", path, quote(name), compressed_bytes,
                    listed.entry.bytes);
  return listed;
}

/// Compares the entry's own header with the directory, and finds its bytes.
void locate(const OpenFile& file, Listed& listed, std::uint64_t directory_offset) {
  ZipEntry& entry = listed.entry;
  const auto outside = [&] {
    return DataError("{}: {} ({} bytes at {}) is not within the archive: is it truncated?", file.path(),
                     quote(entry.name), entry.bytes, listed.header_offset);
  };
  const std::uint64_t header_bytes = entry_header_bytes + entry.name.size();
  if (listed.header_offset > directory_offset || header_bytes > directory_offset - listed.header_offset)
    throw outside();
  const std::string header = read_text(file, listed.header_offset, header_bytes);
  const auto bytes = number_at<std::uint32_t>(header, 22);
  const bool has_size = (listed.flags & sizes_follow) == 0 && bytes != in_wide_32;
  if (!header.starts_with(entry_signature) || number_at<std::uint16_t>(header, 6) != listed.flags ||
      number_at<std::uint16_t>(header, 8) != 0 || number_at<std::uint16_t>(header, 26) != entry.name.size() ||
      std::string_view(header).substr(entry_header_bytes) != entry.name || (has_size && bytes != entry.bytes))
    throw DataError("{}: the directory and the entry disagree on {}", file.path(), quote(entry.name));
  const std::uint64_t left = directory_offset - listed.header_offset - header_bytes;
  const auto extra_bytes = number_at<std::uint16_t>(header, 28);
  if (extra_bytes > left || entry.bytes > left - extra_bytes) throw outside();
  entry.offset = listed.header_offset + header_bytes + extra_bytes;
}

}  // namespace

ZipFile::ZipFile(const std::string& path) : file_(path, OpenFile::Mode::read), file_bytes_(file_.size()) {
  constexpr std::uint64_t max_directory_bytes = std::uint64_t{64} << 20;
  const Directory found = find_directory(file_, file_bytes_);
  if (found.bytes > max_directory_bytes)
    throw DataError("{}: its directory has {} bytes, more than the {} allowed", path, found.bytes,
                    max_directory_bytes);
  const std::string text = read_text(file_, found.offset, found.bytes);
  std::string_view directory = text;
  std::vector<Listed> all;
  while (!directory.empty()) all.push_back(next_listed(directory, path));
  if (all.size() != found.entries)
    throw DataError("{}: its directory lists {} instead of {}", path, pluralized(all.size(), "entry"),
                    found.entries);
  std::ranges::stable_sort(all, {}, &Listed::header_offset);
  std::uint64_t end = 0;
  for (Listed& listed : all) {
    locate(file_, listed, found.offset);
    if (listed.header_offset < end)
      throw DataError("{}: {} overlaps {}", path, quote(listed.entry.name), quote(entries_.back().name));
    end = listed.entry.offset + listed.entry.bytes;
    has_checksums_ = has_checksums_ || listed.entry.crc32 != 0;
    entries_.push_back(std::move(listed.entry));
  }
  for (std::size_t i = 0; i < entries_.size(); ++i) {
    if (!by_name_.emplace(entries_[i].name, i).second)
      throw DataError("{}: {} occurs twice", path, quote(entries_[i].name));
  }
}

std::optional<std::size_t> ZipFile::find(std::string_view name) const {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? std::nullopt : std::optional(found->second);
}

void ZipFile::read(std::size_t entry, std::uint64_t offset, std::span<std::byte> out) const {
  const ZipEntry& from = entries_.at(entry);
  if (offset > from.bytes || out.size() > from.bytes - offset)
    throw UsageError("{}: {} has {} bytes, fewer than {} from {} on", path(), quote(from.name), from.bytes,
                     out.size(), offset);
  file_.read_at(from.offset + offset, out.data(), out.size());
}

std::string ZipFile::text(std::size_t entry, std::uint64_t max_bytes) const {
  const ZipEntry& from = entries_.at(entry);
  if (from.bytes > max_bytes)
    throw DataError("{}: {} has {} bytes, more than the {} allowed", path(), quote(from.name), from.bytes,
                    max_bytes);
  std::string text = read_text(file_, from.offset, from.bytes);
  check(entry, std::as_bytes(std::span(text)));
  return text;
}

void ZipFile::check(std::size_t entry) const {
  constexpr std::uint64_t piece_bytes = std::uint64_t{1} << 20;
  const ZipEntry& from = entries_.at(entry);
  std::vector<std::byte> piece(std::min(piece_bytes, from.bytes));
  std::uint32_t crc32 = 0;
  for (std::uint64_t offset = 0; offset < from.bytes; offset += piece.size()) {
    piece.resize(std::min(piece_bytes, from.bytes - offset));
    read(entry, offset, piece);
    crc32 = crc32_of(piece, crc32);
  }
  check(from, crc32);
}

void ZipFile::check(std::size_t entry, std::span<const std::byte> bytes) const {
  check(entries_.at(entry), crc32_of(bytes));
}

void ZipFile::check(const ZipEntry& entry, std::uint32_t crc32) const {
  if (has_checksums_ && crc32 != entry.crc32)
    throw DataError("{}: {} is damaged: its CRC-32 is {:08x}, not {:08x}", path(), quote(entry.name), crc32,
                    entry.crc32);
}

namespace {

template <class T>
void append(std::string& text, std::type_identity_t<T> value) {
  text.append(reinterpret_cast<const char*>(&value), sizeof value);
}

std::uint32_t narrowed(std::uint64_t number) {
  return static_cast<std::uint32_t>(std::min<std::uint64_t>(number, in_wide_32));
}

/// The common fields of an entry's header and the directory, from the version to the lengths of name and
/// extra field.
void append_shared(std::string& text, const ZipEntry& entry, std::size_t extra_bytes) {
  constexpr std::uint16_t version_with_zip64 = 45, stored = 0;
  constexpr std::uint32_t midnight_1980 =
      0x21u << 16;  // the smallest time of the format, so that files have the same bytes every time
  append<std::uint16_t>(text, version_with_zip64);
  append<std::uint16_t>(text, name_is_utf8);
  append<std::uint16_t>(text, stored);
  append<std::uint32_t>(text, midnight_1980);
  append<std::uint32_t>(text, entry.crc32);
  append<std::uint32_t>(text, narrowed(entry.bytes));
  append<std::uint32_t>(text, narrowed(entry.bytes));
  append<std::uint16_t>(text, static_cast<std::uint16_t>(entry.name.size()));
  append<std::uint16_t>(text, static_cast<std::uint16_t>(extra_bytes));
}

/// A field of the numbers that do not fit into 32 bits; empty if all do.
std::string zip64_field_of(std::initializer_list<std::uint64_t> numbers) {
  std::string values, field;
  for (const std::uint64_t number : numbers)
    if (number >= in_wide_32) append<std::uint64_t>(values, number);
  if (values.empty()) return {};
  append<std::uint16_t>(field, zip64_field);
  append<std::uint16_t>(field, static_cast<std::uint16_t>(values.size()));
  return field + values;
}

}  // namespace

void ZipWriter::write(std::string_view bytes) {
  file_.write_at(end_, bytes.data(), bytes.size());
  end_ += bytes.size();
}

void ZipWriter::add(const std::string& name, std::span<const std::byte> bytes) {
  constexpr std::uint64_t alignment_bytes = 64;
  constexpr std::uint16_t padding_field = 0x4246;  // "FB", as PyTorch pads
  Added added{{name, 0, bytes.size(), crc32_of(bytes)}, end_};
  std::string extra = zip64_field_of({bytes.size(), bytes.size()});
  const std::uint64_t unpadded = end_ + entry_header_bytes + name.size() + extra.size() + 4;
  const std::uint64_t padding = (alignment_bytes - unpadded % alignment_bytes) % alignment_bytes;
  append<std::uint16_t>(extra, padding_field);
  append<std::uint16_t>(extra, static_cast<std::uint16_t>(padding));
  extra.append(padding, '\0');
  std::string header(entry_signature);
  append_shared(header, added.entry, extra.size());
  write(header + name + extra);
  added.entry.offset = end_;
  write({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
  added_.push_back(std::move(added));
}

void ZipWriter::finish() {
  constexpr std::uint16_t made_by = 45;
  const std::uint64_t directory_offset = end_;
  std::string text;
  for (const Added& added : added_) {
    const ZipEntry& entry = added.entry;
    const std::string extra = zip64_field_of({entry.bytes, entry.bytes, added.header_offset});
    text += directory_signature;
    append<std::uint16_t>(text, made_by);
    append_shared(text, entry, extra.size());
    append<std::uint64_t>(text, 0);  // comment, disk, attributes
    append<std::uint16_t>(text, 0);
    append<std::uint32_t>(text, narrowed(added.header_offset));
    text += entry.name + extra;
  }
  const std::uint64_t directory_bytes = text.size(), wide_offset = end_ + text.size();
  text += wide_end_signature;
  append<std::uint64_t>(text, wide_end_bytes - 12);
  append<std::uint16_t>(text, made_by);
  append<std::uint16_t>(text, made_by);
  append<std::uint64_t>(text, 0);  // disks
  append<std::uint64_t>(text, added_.size());
  append<std::uint64_t>(text, added_.size());
  append<std::uint64_t>(text, directory_bytes);
  append<std::uint64_t>(text, directory_offset);
  text += wide_locator_signature;
  append<std::uint32_t>(text, 0);
  append<std::uint64_t>(text, wide_offset);
  append<std::uint32_t>(text, 1);
  const auto count = static_cast<std::uint16_t>(std::min<std::size_t>(added_.size(), in_wide_16));
  text += end_signature;
  append<std::uint32_t>(text, 0);  // disks
  append<std::uint16_t>(text, count);
  append<std::uint16_t>(text, count);
  append<std::uint32_t>(text, narrowed(directory_bytes));
  append<std::uint32_t>(text, narrowed(directory_offset));
  append<std::uint16_t>(text, 0);  // comment
  write(text);
}

}  // namespace lockstep::checkpoint
