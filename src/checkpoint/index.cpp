// Reading the index of a checkpoint and checking it against the file.
#include "lockstep/checkpoint/index.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string_view>
#include <thread>
#include <type_traits>
#include <unordered_map>
#include <unordered_set>

#include "base/files.h"
#include "base/text.h"
#include "checkpoint/blocks.h"
#include "checkpoint/layout.h"
#include "checkpoint/run_files.h"
#include "lockstep/base/error.h"
#include "lockstep/comm/agreement.h"
#include "lockstep/hdf5/file.h"

template <>
struct nlohmann::adl_serializer<lockstep::checkpoint::AttributeValue> {
  static void to_json(json& message, const lockstep::checkpoint::AttributeValue& value) {
    std::visit([&](const auto& held) { message = held; }, value);
  }
  static void from_json(const json& message, lockstep::checkpoint::AttributeValue& value) {
    if (message.is_string())
      value = message.get<std::string>();
    else if (message.is_number_float())
      value = message.get<double>();
    else
      value = message.get<std::int64_t>();
  }
};

namespace lockstep::checkpoint {

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Position, step, epoch, samples, shards, seed)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(GroupEntry, path, attributes)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(FileIndex, file_bytes, version, position, world_size, created, digest,
                                   config, provenance, groups)

namespace {

using nlohmann::json;

/// Rank 0's index for the other ranks: the manifest as text, and the rest as JSON.
json message_of(const FileIndex& index) {
  json message = index;
  message["file"] = index.file->path();
  message["manifest"] = manifest_text(index.tensors);
  for (const TensorEntry& tensor : index.tensors) message["offsets"].push_back(tensor.offset);
  return message;
}

/// All but the file, which each rank opens itself.
FileIndex index_in(const json& message, const std::string& path) {
  auto index = message.get<FileIndex>();
  index.path = path;
  index.tensors = parse_manifest(message.at("manifest").get_ref<const std::string&>(), path);
  for (std::size_t t = 0; t < index.tensors.size(); ++t)
    message.at("offsets").at(t).get_to(index.tensors[t].offset);
  return index;
}

struct StoredArray {
  std::optional<DType> dtype;
  std::string_view type_name;
  std::vector<std::int64_t> shape;
  hdf5::Extent extent;
};
using StoredArrays = std::unordered_map<std::string, StoredArray>;

/// Accepts only types of attributes of checkpoints: a text of variable length is elsewhere in the file,
/// without a checksum.
AttributeValue read_attribute(const hdf5::Object& object, const std::string& name) {
  if (!object.has_plain_attribute(name)) {
    throw DataError("{}: attribute {} of {} is neither a number nor a text of fixed length",
                    object.file_path(), quote(name), object.name());
  }
  const std::optional<DType> dtype = object.attribute_dtype(name);
  if (!dtype) return object.text_attribute(name);
  if (is_floating(*dtype)) return object.double_attribute(name);
  return object.int64_attribute(name);
}

/// The result of walk(). Each group has one name, which excludes cycles of links.
struct Findings {
  FileIndex& index;
  StoredArrays arrays;
  std::unordered_set<std::uint64_t> groups;  ///< by address
};

/// Collects a group's attributes and arrays, and those of the groups in it.
void walk(const hdf5::Group& group, const std::string& path, int depth, Findings& found) {
  constexpr int deepest = 8;
  const std::string& file = found.index.path;
  if (depth > deepest) throw DataError("{}: /{}: groups are nested too deeply", file, path);
  if (!found.groups.insert(group.address()).second)
    throw DataError("{}: /{} is a second name of a group", file, path);
  GroupEntry entry{path, {}};
  for (const std::string& name : group.attribute_names())
    entry.attributes.emplace_back(name, read_attribute(group, name));
  bool holds_arrays = false;
  for (const hdf5::Link& link : group.links()) {
    if (!is_link_name(link.name))
      throw DataError("{}: /{}: {} is not a valid name in a checkpoint", file, path, quote(link.name));
    const std::string child = path + "/" + link.name;
    if (link.kind == hdf5::ObjectKind::group) {
      walk(group.open_group(link.name), child, depth + 1, found);
    } else if (link.kind == hdf5::ObjectKind::dataset) {
      const hdf5::Dataset dataset = group.open_contiguous(link.name);
      found.arrays.emplace(
          "/" + child, StoredArray{dataset.dtype(), dataset.type_name(), dataset.shape(), dataset.extent()});
      holds_arrays = true;
    } else {
      throw DataError("{}: the link /{} is broken", file, child);
    }
  }
  if (holds_arrays || !entry.attributes.empty()) found.index.groups.push_back(std::move(entry));
}

/// The size of a text comes from the file, so it is checked before memory is allocated.
std::string read_text_dataset(const hdf5::File& file, const std::string& name, std::uint64_t file_bytes) {
  const hdf5::Dataset dataset = file.open_contiguous(name);
  const hdf5::Extent extent = dataset.extent();
  if (extent.bytes > file_bytes || extent.offset > file_bytes - extent.bytes) {
    throw DataError("{}: /{} ({} bytes at {}) is not within the file's {} bytes: is it truncated?",
                    file.file_path(), name, extent.bytes, extent.offset, file_bytes);
  }
  return dataset.read_text();
}

std::string read_text_attribute(const hdf5::File& file, const std::string& name) {
  const AttributeValue value = read_attribute(file, name);
  if (const auto* text = std::get_if<std::string>(&value)) return *text;
  throw DataError("{}: attribute '{}' is not text", file.file_path(), name);
}

void read_root(const hdf5::File& file, FileIndex& index) {
  if (!file.has_plain_attribute("format") ||
      read_attribute(file, "format") != AttributeValue(std::string("lockstep"))) {
    throw DataError("{}: is an HDF5 file, but not a Lockstep checkpoint (no attribute format = lockstep)",
                    index.path);
  }
  const std::int64_t version = file.int64_attribute("format_version");
  constexpr std::int64_t no_version_ever = 1000;
  if (version < 1 || version >= no_version_ever)
    throw DataError("{}: invalid format_version {}", index.path, version);
  if (version > format_version) {
    throw UsageError("{}: has format_version {}; this build reads up to {}: use a newer one", index.path,
                     version, format_version);
  }
  index.version = static_cast<int>(version);
  constexpr std::int64_t max_count = std::int64_t{1} << 53;  // a resume computes with these counts
  for_position(index.position, [&]<class Number>(const char* name, Number& number) {
    if constexpr (std::is_unsigned_v<Number>) {
      number = file.uint64_attribute(name);
    } else {
      number = file.int64_attribute(name);
      if (number < 0 || number > max_count)
        throw DataError("{}: attribute '{}' is {}", index.path, name, number);
    }
  });
  index.world_size = file.int64_attribute("world_size");
  index.created = read_text_attribute(file, "created");
  if (!from_hex(read_text_attribute(file, "digest"), index.digest))
    throw DataError("{}: attribute 'digest' is not a digest", index.path);
}

void read_provenance(const hdf5::File& file, FileIndex& index) {
  // Information only: attributes of other kinds, which other programs may add, are skipped.
  if (file.kind("provenance") != hdf5::ObjectKind::group) return;
  const hdf5::Group provenance = file.open_group("provenance");
  for (const std::string& name : provenance.attribute_names()) {
    if (provenance.has_plain_attribute(name))
      index.provenance[name] = to_text(read_attribute(provenance, name));
  }
}

/// A path for an error text.
std::string short_text(const std::string& path) {
  constexpr std::size_t max_bytes = 300;
  return path.size() <= max_bytes ? path : quote(path);
}

/// Overlapping tensors could make a reader read the same bytes any number of times.
void check_overlaps(const FileIndex& index) {
  std::vector<const TensorEntry*> order;
  for (const TensorEntry& tensor : index.tensors) {
    if (tensor.bytes > 0) order.push_back(&tensor);
  }
  std::ranges::sort(order, {}, &TensorEntry::offset);
  for (std::size_t i = 1; i < order.size(); ++i) {
    if (order[i]->offset - order[i - 1]->offset < order[i - 1]->bytes)
      throw DataError("{}: {} overlaps {}", index.path, short_text(order[i]->path()),
                      short_text(order[i - 1]->path()));
  }
}

/// Checks that the file holds the tensors of the manifest and no others, and sets their offsets.
void match_manifest(FileIndex& index, StoredArrays& arrays) {
  for (TensorEntry& tensor : index.tensors) {
    const auto found = arrays.find(tensor.path());
    if (found == arrays.end())
      throw DataError("{}: {} is in the manifest but not in the file", index.path, short_text(tensor.path()));
    const StoredArray& array = found->second;
    if (array.dtype != tensor.dtype ||
        !std::equal(array.shape.begin(), array.shape.end(), tensor.shape.begin(), tensor.shape.end())) {
      throw DataError("{}: {} is {} [{}] in the file, but {} {} in the manifest", index.path,
                      short_text(tensor.path()), array.type_name, fmt::join(array.shape, ", "),
                      to_string(tensor.dtype), to_string(tensor.shape));
    }
    if (array.extent.bytes != tensor.bytes || tensor.bytes > index.file_bytes ||
        array.extent.offset > index.file_bytes - tensor.bytes) {
      throw DataError("{}: {} ({} bytes at {}) is not within the file's {} bytes: is it truncated?",
                      index.path, short_text(tensor.path()), tensor.bytes, array.extent.offset,
                      index.file_bytes);
    }
    tensor.offset = array.extent.offset;
    arrays.erase(found);
  }
  if (!arrays.empty()) {
    throw DataError("{}: {} is in the file but not in the manifest", index.path,
                    short_text(arrays.begin()->first));
  }
  check_overlaps(index);
}

FileIndex read_from(const std::string& path, const std::shared_ptr<const OpenFile>& open) {
  FileIndex index;
  index.path = path;
  index.file = open;
  index.file_bytes = index.file->size();
  if (index.file_bytes == 0) throw DataError("{}: is empty", path);
  const hdf5::File file = hdf5::File::open(open->path());
  read_root(file, index);
  index.config = read_text_dataset(file, "config", index.file_bytes);
  index.tensors = parse_manifest(read_text_dataset(file, "manifest", index.file_bytes), path);
  read_provenance(file, index);
  Findings found{index, {}, {file.address()}};
  for (const hdf5::Link& link : file.links()) {
    if (link.kind == hdf5::ObjectKind::group && link.name != "provenance")
      walk(file.open_group(link.name), link.name, 1, found);
  }
  std::sort(index.groups.begin(), index.groups.end(),
            [](const GroupEntry& a, const GroupEntry& b) { return a.path < b.path; });
  if (root_digest(index) != index.digest) {
    throw DataError("{}: the root digest does not match: manifest, configuration or attributes are damaged",
                    path);
  }
  match_manifest(index, found.arrays);
  return index;
}

}  // namespace

const GroupEntry* FileIndex::group(std::string_view group_path) const {
  const auto found = std::find_if(groups.begin(), groups.end(),
                                  [&](const GroupEntry& group) { return group.path == group_path; });
  return found == groups.end() ? nullptr : &*found;
}

std::string FileIndex::default_weights() const {
  std::set<std::string_view> of_model, averages;
  for (const TensorEntry& tensor : tensors) {
    if (tensor.group == "model") of_model.insert(tensor.name);
    if (tensor.group.starts_with("ema/")) averages.insert(tensor.group);
  }
  const bool has_model =
      averages.empty() || std::all_of(tensors.begin(), tensors.end(), [&](const TensorEntry& tensor) {
        return !averages.contains(tensor.group) || of_model.contains(tensor.name);
      });
  if (has_model) return "model";
  if (averages.size() > 1)
    throw UsageError("{}: has no model, but the averages {}; choose one with --weights", path,
                     fmt::join(averages, ", "));
  return std::string(*averages.begin());
}

std::uint64_t FileIndex::payload_bytes() const {
  std::uint64_t bytes = 0;
  for (const TensorEntry& tensor : tensors) bytes += tensor.bytes;
  return bytes;
}

FileIndex read_index(const std::string& path) {
  return read_live(path, [&](const auto& file) { return read_from(path, file); });
}

FileIndex read_index(const std::string& path, comm::HostGroup& world) {
  const comm::NamedCall call(world, "calls read_index: " + file_name_of(path));
  for (int attempt = 1;; ++attempt) {
    FileIndex index;
    const json message = from_rank_0(world, [&] {
      index = read_index(path);
      return world.size() == 1 ? json() : message_of(index);
    });
    if (world.size() == 1) return index;
    comm::run_on_all(world, [&] {
      if (world.rank() == 0) return;
      index = index_in(message, path);
      index.file = open_if_there(message.at("file").get<std::string>());
    });
    // The run may have pruned the file before this rank opened it, or a network file system shows it late.
    const std::uint8_t open = index.file != nullptr;
    if (std::ranges::count(comm::all_gather_values(world, open), 0) == 0) return index;
    if (attempt == max_live_attempts)
      throw DataError("{}: does not exist on every rank: {}", path, message.at("file").get<std::string>());
    constexpr double delays = max_live_attempts * (max_live_attempts - 1) / 2;
    if (!open)
      std::this_thread::sleep_for(std::chrono::duration<double>(name_delay_s(world) * attempt / delays));
  }
}

}  // namespace lockstep::checkpoint
