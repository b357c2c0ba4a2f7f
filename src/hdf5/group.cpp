// Links, and making and opening objects.
#include "lockstep/hdf5/group.h"

#include <algorithm>

#include "hdf5/library.h"
#include "lockstep/base/error.h"

namespace lockstep::hdf5 {
namespace {

struct NamedLink {
  std::string name;
  std::int64_t creation_order;
  bool is_hard;
};

extern "C" herr_t keep_link(hid_t, const char* name, const H5L_info_t* info, void* links) {
  try {
    static_cast<std::vector<NamedLink>*>(links)->push_back({name, info->corder, info->type == H5L_TYPE_HARD});
  } catch (...) {
    return -1;
  }
  return 0;
}

bool tracks_creation_order(hid_t group) {
  const Handle properties = owned_properties(H5Gget_create_plist(group));
  unsigned flags = 0;
  return properties && H5Pget_link_creation_order(properties.id(), &flags) >= 0 &&
         (flags & H5P_CRT_ORDER_INDEXED);
}

Handle without_time_stamps(hid_t property_class) {
  Handle properties = owned_properties(H5Pcreate(property_class));
  if (!properties || H5Pset_obj_track_times(properties.id(), false) < 0) {
    throw FailureError("HDF5 cannot make a property list: {}", last_failure().message);
  }
  return properties;
}

extern "C" herr_t refuse_to_leave(const char*, const char*, const char*, const char*, unsigned*, hid_t,
                                  void*) {
  return -1;
}

/// Looking at a name opens no other file, which may be one that never answers, or nobody's business.
Handle within_the_file() {
  Handle properties = owned_properties(H5Pcreate(H5P_LINK_ACCESS));
  if (!properties || H5Pset_elink_cb(properties.id(), refuse_to_leave, nullptr) < 0) {
    throw FailureError("HDF5 cannot make a property list: {}", last_failure().message);
  }
  return properties;
}

ObjectKind kind_of(hid_t object) {
  switch (object < 0 ? H5I_BADID : H5Iget_type(object)) {
    case H5I_GROUP:
      return ObjectKind::group;
    case H5I_DATASET:
      return ObjectKind::dataset;
    case H5I_DATATYPE:
      return ObjectKind::named_type;
    default:
      return ObjectKind::unreachable;
  }
}

const char* describe(ObjectKind kind) {
  switch (kind) {
    case ObjectKind::group:
      return "a group";
    case ObjectKind::dataset:
      return "a dataset";
    case ObjectKind::named_type:
      return "a type";
    case ObjectKind::unreachable:
      break;
  }
  return "a dangling link";
}

}  // namespace

std::vector<Link> Group::links(Order order) const {
  const LibraryLock lock;
  const bool by_creation = order == Order::creation && tracks_creation_order(id());
  std::vector<NamedLink> found;
  hsize_t position = 0;
  // In whatever order they come: HDF5's own sorting frees memory it never set when it meets a damaged link.
  checked(H5Literate(id(), by_creation ? H5_INDEX_CRT_ORDER : H5_INDEX_NAME, H5_ITER_NATIVE, &position,
                     keep_link, &found),
          file_path_, name_, "list the links");
  std::ranges::sort(found, [&](const NamedLink& a, const NamedLink& b) {
    return by_creation ? a.creation_order < b.creation_order : a.name < b.name;
  });
  std::vector<Link> links;
  links.reserve(found.size());
  for (NamedLink& link : found) {
    // Only what is no hard link could lead out of the file, and needs the guard.
    const ObjectKind what =
        link.is_hard ? kind_of(Handle(H5Oopen(id(), link.name.c_str(), H5P_DEFAULT), H5Oclose).id())
                     : kind(link.name);
    links.push_back({std::move(link.name), what});
  }
  return links;
}

bool Group::exists(std::string_view name) const {
  const LibraryLock lock;
  // HDF5 wants every group on the way to exist before it answers for the last.
  const std::string path = path_of(name);
  for (std::size_t slash = path.find('/', 1); slash != std::string::npos; slash = path.find('/', slash + 1)) {
    const std::string prefix = path.substr(0, slash);
    if (H5Lexists(id(), prefix.c_str(), H5P_DEFAULT) <= 0) return false;
  }
  return path == "/" || H5Lexists(id(), path.c_str(), H5P_DEFAULT) > 0;
}

ObjectKind Group::kind(std::string_view name) const {
  const LibraryLock lock;
  return kind_of(Handle(H5Oopen(id(), path_of(name).c_str(), within_the_file().id()), H5Oclose).id());
}

Group Group::open_group(std::string_view name) const {
  const LibraryLock lock;
  const std::string path = path_of(name);
  if (!exists(path)) throw DataError("{}: {} does not exist", file_path_, path);
  if (const ObjectKind what = kind(path); what != ObjectKind::group && what != ObjectKind::unreachable) {
    throw DataError("{}: {} is {}, not a group", file_path_, path, describe(what));
  }
  return {Handle(checked(H5Gopen2(id(), path.c_str(), H5P_DEFAULT), file_path_, path, "open"), H5Gclose),
          file_path_, path};
}

Dataset Group::open_dataset(std::string_view name) const {
  const LibraryLock lock;
  const std::string path = path_of(name);
  if (!exists(path)) throw DataError("{}: {} does not exist", file_path_, path);
  if (const ObjectKind what = kind(path); what != ObjectKind::dataset && what != ObjectKind::unreachable) {
    throw DataError("{}: {} is {}, not a dataset", file_path_, path, describe(what));
  }
  return {Handle(checked(H5Dopen2(id(), path.c_str(), H5P_DEFAULT), file_path_, path, "open"), H5Dclose),
          file_path_, path};
}

Dataset Group::open_contiguous(std::string_view name) const {
  const LibraryLock lock;
  const std::string path = path_of(name);
  Handle dataset(H5Oopen(id(), path.c_str(), within_the_file().id()), H5Oclose);
  if (!dataset) {
    const std::string why = last_failure().message;
    if (!exists(path)) throw DataError("{}: {} does not exist", file_path_, path);
    throw DataError("{}: {} leads nowhere in this file: {}", file_path_, path, why);
  }
  if (const ObjectKind what = kind_of(dataset.id()); what != ObjectKind::dataset)
    throw DataError("{}: {} is {}, not a dataset", file_path_, path, describe(what));
  // Before anything else is asked: of a virtual dataset even the shape lies in other files.
  const Handle properties =
      owned_properties(checked(H5Dget_create_plist(dataset.id()), file_path_, path, "open"));
  if (H5Pget_layout(properties.id()) != H5D_CONTIGUOUS || H5Pget_external_count(properties.id()) != 0)
    throw DataError("{}: {} does not lie in one piece in the file", file_path_, path);
  return {std::move(dataset), file_path_, path};
}

Group Group::create_group(std::string_view name) {
  const LibraryLock lock;
  const std::string path = path_of(name);
  const Handle properties = without_time_stamps(H5P_GROUP_CREATE);
  checked(H5Pset_link_creation_order(properties.id(), H5P_CRT_ORDER_TRACKED | H5P_CRT_ORDER_INDEXED),
          file_path_, path, "create");
  const hid_t group = H5Gcreate2(id(), path.c_str(), H5P_DEFAULT, properties.id(), H5P_DEFAULT);
  return {Handle(checked(group, file_path_, path, "create"), H5Gclose), file_path_, path};
}

Dataset Group::create(std::string_view name, std::int64_t type_id, std::span<const std::int64_t> shape) {
  const std::string path = path_of(name);
  const auto check = [&](auto result) { return checked(result, file_path_, path, "create"); };
  std::vector<hsize_t> extents;
  for (const std::int64_t extent : shape) {
    if (extent < 0) throw UsageError("{}: {}: an extent of {}", file_path_, path, extent);
    extents.push_back(static_cast<hsize_t>(extent));
  }
  const Handle space = owned_space(
      check(extents.empty() ? H5Screate(H5S_SCALAR)
                            : H5Screate_simple(static_cast<int>(extents.size()), extents.data(), nullptr)));
  const Handle properties = without_time_stamps(H5P_DATASET_CREATE);
  check(H5Pset_layout(properties.id(), H5D_CONTIGUOUS));
  check(H5Pset_alloc_time(properties.id(), H5D_ALLOC_TIME_EARLY));
  check(H5Pset_fill_time(properties.id(), H5D_FILL_TIME_NEVER));
  Handle dataset(
      check(H5Dcreate2(id(), path.c_str(), type_id, space.id(), H5P_DEFAULT, properties.id(), H5P_DEFAULT)),
      H5Dclose);
  return {std::move(dataset), file_path_, path};
}

Dataset Group::create_dataset(std::string_view name, ElementType type, std::span<const std::int64_t> shape) {
  const LibraryLock lock;
  return create(name, file_type(type).id(), shape);
}

Dataset Group::create_dataset(std::string_view name, const NamedType& type,
                              std::span<const std::int64_t> shape) {
  const LibraryLock lock;
  return create(name, type.id(), shape);
}

Dataset Group::create_text(std::string_view name, std::string_view text) {
  if (text.find('\0') != std::string_view::npos) {
    throw UsageError("{}: {} has a null byte inside", file_path_, path_of(name));
  }
  const LibraryLock lock;
  const std::string terminated(text);
  const Handle type = text_type(terminated.size() + 1);
  Dataset dataset = create(name, type.id(), {});
  checked(H5Dwrite(dataset.id(), type.id(), H5S_ALL, H5S_ALL, H5P_DEFAULT, terminated.c_str()), file_path_,
          dataset.name(), "write");
  return dataset;
}

NamedType Group::create_type(std::string_view name, ElementType type) {
  const LibraryLock lock;
  const std::string path = path_of(name);
  const Handle properties = without_time_stamps(H5P_DATATYPE_CREATE);
  Handle handle = file_type(type);
  checked(H5Tcommit2(id(), path.c_str(), handle.id(), H5P_DEFAULT, properties.id(), H5P_DEFAULT), file_path_,
          path, "create");
  return {std::move(handle), file_path_, path, type};
}

void Group::create_soft_link(std::string_view name, std::string_view target) {
  const LibraryLock lock;
  const std::string path = path_of(name);
  checked(H5Lcreate_soft(std::string(target).c_str(), id(), path.c_str(), H5P_DEFAULT, H5P_DEFAULT),
          file_path_, path, "create");
}

}  // namespace lockstep::hdf5
