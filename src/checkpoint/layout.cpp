#include "checkpoint/layout.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <map>
#include <new>
#include <optional>
#include <set>
#include <span>
#include <string_view>
#include <vector>

#include "base/files.h"
#include "base/text.h"
#include "checkpoint/blocks.h"
#include "lockstep/base/error.h"
#include "lockstep/hdf5/file.h"

namespace lockstep::checkpoint {
namespace {

constexpr const char* memory_name = "the layout in memory";

}  // namespace

MemoryFile::MemoryFile() {
  // Without a file system in memory it uses a local disk: the file is small and short-lived.
  const char* const variable = std::getenv("TMPDIR");
  for (const std::string directory : {"/dev/shm", variable ? variable : "/tmp"}) {
    path_ = directory + "/lockstep-layout-XXXXXX";
    descriptor_ = ::mkostemp(path_.data(), O_CLOEXEC);
    if (descriptor_ >= 0) return;
  }
  throw_system_error(errno, path_, "create (TMPDIR names the folder)");
}

MemoryFile::~MemoryFile() {
  unlink();
  ::close(descriptor_);
}

void MemoryFile::unlink() noexcept {
  if (!path_.empty()) ::unlink(path_.c_str());
  path_.clear();
}

std::uint64_t MemoryFile::size() const {
  struct stat status {};
  if (::fstat(descriptor_, &status) != 0) throw_system_error(errno, memory_name, "look at");
  return static_cast<std::uint64_t>(status.st_size);
}

void MemoryFile::copy_to(OpenFile& file, std::uint64_t from, std::uint64_t to) const {
  const auto last = static_cast<off_t>(to);
  std::vector<std::byte> buffer(std::min(to - from, std::uint64_t{1} << 20));
  for (auto begin = static_cast<off_t>(from), end = begin; begin < last; begin = end) {
    begin = ::lseek(descriptor_, begin, SEEK_DATA);
    if (begin < 0 && errno == ENXIO) return;  // only a hole is left
    end = begin < 0 ? begin : ::lseek(descriptor_, begin, SEEK_HOLE);
    if (end < 0) throw_system_error(errno, memory_name, "search");
    end = std::min(end, last);
    for (off_t at = begin; at < end;) {
      const ssize_t done = ::pread(descriptor_, buffer.data(),
                                   std::min(buffer.size(), static_cast<std::size_t>(end - at)), at);
      if (done <= 0) throw_system_error(done < 0 ? errno : EIO, memory_name, "read");
      file.write_at(static_cast<std::uint64_t>(at), buffer.data(), static_cast<std::uint64_t>(done));
      at += done;
    }
  }
}

namespace {

constexpr std::uint64_t page_bytes = 4096;
constexpr std::array<std::string_view, 5> names_of_the_root{"config", "manifest", "provenance", "bfloat16",
                                                            "float16"};

void check_section_path(const std::string& path) {
  const std::string_view first = std::string_view(path).substr(0, path.find('/'));
  bool good = std::ranges::find(names_of_the_root, first) == names_of_the_root.end();
  for (std::string_view rest = path;;) {
    const std::size_t slash = rest.find('/');
    good = good && is_link_name(rest.substr(0, slash));
    if (slash == std::string_view::npos) break;
    rest.remove_prefix(slash + 1);
  }
  if (!good) throw UsageError("{} is not a valid section of a checkpoint", quote(path));
}

TensorEntry entry_of(const Section& section, const NamedTensor& tensor, const kernels::Backend* backend) {
  TensorEntry entry;
  entry.group = section.path;
  entry.name = tensor.name;
  entry.dtype = tensor.value.dtype();
  entry.shape = tensor.shape();
  entry.bytes = tensor.bytes();
  if (!is_link_name(tensor.name)) {
    throw UsageError("{}: {} is not a valid name in a checkpoint", section.path, quote(tensor.name));
  }
  if (!is_storable(entry.dtype))
    throw UsageError("{}: a checkpoint cannot hold {}", entry.path(), to_string(entry.dtype));
  const Device device = tensor.value.device();
  if (device != Device::cpu() && (!backend || backend->device() != device)) {
    throw UsageError("{}: is on {}; only CPU memory can be saved without that device's backend", entry.path(),
                     to_string(device));
  }
  if (tensor.value.channel_block() != 1)
    throw UsageError("{}: is stored in channel blocks, not row-major", entry.path());
  return entry;
}

/// Creates the group of this path and its parents.
hdf5::Group make_group(hdf5::File& file, const std::string& path) {
  for (std::size_t slash = path.find('/'); slash != std::string::npos; slash = path.find('/', slash + 1)) {
    if (const std::string prefix = path.substr(0, slash); !file.exists(prefix)) file.create_group(prefix);
  }
  return file.exists(path) ? file.open_group(path) : file.create_group(path);
}

void write_root_attributes(hdf5::File& file, const FileIndex& index) {
  file.set_attribute("format", "lockstep");
  file.set_attribute("format_version", index.version);
  for_position(index.position, [&](const char* name, auto number) { file.set_attribute(name, number); });
  file.set_attribute("world_size", index.world_size);
  file.set_attribute("created", index.created);
}

/// The 16-bit float types that the tensors need, under their names.
std::map<DType, hdf5::NamedType> make_types(hdf5::File& file, const FileIndex& index) {
  std::map<DType, hdf5::NamedType> types;
  for (const TensorEntry& tensor : index.tensors) {
    if (tensor.dtype != DType::bfloat16 && tensor.dtype != DType::float16) continue;
    if (types.contains(tensor.dtype)) continue;
    const std::string_view name = to_string(tensor.dtype);
    types.emplace(tensor.dtype, file.create_type(name, tensor.dtype));
  }
  return types;
}

}  // namespace

bool is_link_name(std::string_view name) {
  return !name.empty() && name != "." && name != ".." &&
         name.find_first_of(std::string_view("/\n\0", 3)) == std::string_view::npos;
}

FileIndex index_of(const StateDict& state_dict) {
  FileIndex index;
  index.version = format_version;
  index.position = state_dict.position;
  for_position(index.position, [](const char* name, auto number) {
    if (std::is_signed_v<decltype(number)> && number < 0)
      throw UsageError("a checkpoint cannot have {} {}: it must be 0 or more", name, number);
  });
  index.config = state_dict.config;
  index.provenance = state_dict.provenance;
  std::set<std::string> paths;
  for (const Section& section : state_dict.sections) {
    check_section_path(section.path);
    if (index.group(section.path))
      throw UsageError("two sections of a checkpoint have the name '{}'", section.path);
    GroupEntry group{section.path, {}};
    for (const Attribute& attribute : section.attributes)
      group.attributes.emplace_back(attribute.name, attribute.value);
    std::sort(group.attributes.begin(), group.attributes.end(),
              [](const auto& a, const auto& b) { return a.first < b.first; });
    index.groups.push_back(std::move(group));
    for (const NamedTensor& tensor : section.tensors) {
      index.tensors.push_back(entry_of(section, tensor, state_dict.backend));
      if (!paths.insert(index.tensors.back().path()).second) {
        throw UsageError("two tensors of a checkpoint have the name {}", index.tensors.back().path());
      }
    }
  }
  for (const GroupEntry& group : index.groups) {
    if (paths.contains("/" + group.path)) throw UsageError("/{} is both a tensor and a section", group.path);
  }
  std::sort(index.groups.begin(), index.groups.end(),
            [](const GroupEntry& a, const GroupEntry& b) { return a.path < b.path; });
  return index;
}

Layout::Layout(FileIndex& index) try {
  hdf5::CreateOptions options;
  options.existing = hdf5::CreateOptions::Existing::replace;
  options.checksummed = true;
  options.alignment_bytes = page_bytes;
  options.alignment_from_bytes = block_bytes;
  file_ = std::make_unique<hdf5::File>(hdf5::File::create(memory_.path(), options));
  memory_.unlink();
  hdf5::File& file = *file_;
  write_root_attributes(file, index);
  file.create_text("config", index.config);
  hdf5::Group provenance = file.create_group("provenance");
  for (const auto& [name, value] : index.provenance) provenance.set_attribute(name, value);
  for (const GroupEntry& entry : index.groups) {
    hdf5::Group group = make_group(file, entry.path);
    for (const auto& [name, value] : entry.attributes) {
      std::visit([&, &key = name](const auto& held) { group.set_attribute(key, held); }, value);
    }
  }
  const std::map<DType, hdf5::NamedType> types = make_types(file, index);
  const std::string* group_path = nullptr;
  std::optional<hdf5::Group> group;
  for (TensorEntry& tensor : index.tensors) {
    if (!group_path || *group_path != tensor.group) {
      group.emplace(file.open_group(tensor.group));
      group_path = &tensor.group;
    }
    const auto type = types.find(tensor.dtype);
    const hdf5::Dataset dataset =
        type != types.end() ? group->create_dataset(tensor.name, type->second, tensor.shape.extents())
                            : group->create_dataset(tensor.name, tensor.dtype, tensor.shape.extents());
    tensor.offset = dataset.extent().offset;
  }
} catch (const hdf5::NoMemory&) {  // the data are not at fault
  throw std::bad_alloc();
}

Layout::~Layout() = default;

void Layout::finish(const FileIndex& index) try {
  file_->create_text("manifest", manifest_text(index.tensors));
  file_->set_attribute("digest", to_hex(index.digest));
  file_->close();
  for (const FileExtent& place : file_extents_of(index)) {
    if (place.bytes > 0) elements_.push_back(place);
  }
  std::ranges::sort(elements_, {}, &FileExtent::offset);
} catch (const hdf5::NoMemory&) {
  throw std::bad_alloc();
}

/// Copies the gaps between tensors: a page of the memory may hold structure and space for elements.
void Layout::copy_to(OpenFile& file) const {
  const std::uint64_t size = memory_.size();
  file.truncate(size);
  std::uint64_t begin = 0;
  for (const FileExtent& place : elements_) {
    if (begin < place.offset) memory_.copy_to(file, begin, place.offset);
    begin = place.offset + place.bytes;
  }
  memory_.copy_to(file, begin, size);
}

std::uint64_t max_file_bytes(const FileIndex& index) {
  constexpr std::uint64_t structure_bytes_per_object = 2 * page_bytes;
  return index.payload_bytes() + index.config.size() +
         (index.tensors.size() + index.groups.size() + 64) * structure_bytes_per_object;
}

namespace {

/// Removes the text up to the next `end` from the front, with `end`, and returns it.
std::optional<std::string_view> take_until(std::string_view& text, char end) {
  const std::size_t at = text.find(end);
  if (at == std::string_view::npos) return std::nullopt;
  const std::string_view front = text.substr(0, at);
  text.remove_prefix(at + 1);
  return front;
}

/// "[2,3]"; false if it is something else.
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
  if (!is_storable(entry.dtype)) return std::nullopt;
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
    if (!entry) throw DataError("{}: /manifest: line {} is malformed", file, tensors.size() + 1);
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

std::string digested_text(const FileIndex& index, bool for_readers) {
  std::string text = fmt::format("format_version {}\n", index.version);
  for_position(index.position, [&](const char* name, auto number) {
    fmt::format_to(std::back_inserter(text), "{} {}\n", name, number);
  });
  for (const GroupEntry& group : index.groups) {
    for (const auto& [name, value] : group.attributes) {
      constexpr std::array types{"integer", "number", "text"};
      const std::string type = for_readers ? types.at(value.index()) : fmt::format("{}", value.index());
      fmt::format_to(std::back_inserter(text), "/{} {} {} {}\n", group.path, name, type, to_text(value));
    }
  }
  const std::string manifest = manifest_text(index.tensors);
  if (for_readers)  // the first different line is more useful than a size
    return fmt::format("{}{}\nconfig {}\n{}manifest {}\n", text, index.config, index.config.size(), manifest,
                       manifest.size());
  fmt::format_to(std::back_inserter(text), "config {}\n{}manifest {}\n", index.config.size(), index.config,
                 manifest.size());
  return text + manifest;
}

std::uint64_t root_digest(const FileIndex& index) {
  const std::string text = digested_text(index);
  return digest_of(text.data(), text.size());
}

}  // namespace lockstep::checkpoint
