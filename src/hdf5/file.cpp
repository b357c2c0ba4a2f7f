#include "lockstep/hdf5/file.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "base/files.h"
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

/// Properties for a look-up that opens no other file, as that could block forever.
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
    case H5I_DATASET: {
      // The extents of a virtual dataset would open the files that it is made of.
      const Handle properties = owned_properties(H5Dget_create_plist(object));
      if (!properties || H5Pget_layout(properties.id()) == H5D_VIRTUAL) return ObjectKind::dataset;
      const Handle space = owned_space(H5Dget_space(object));
      const bool is_null = space && H5Sget_simple_extent_type(space.id()) == H5S_NULL;
      return is_null ? ObjectKind::null_dataset : ObjectKind::dataset;
    }
    case H5I_DATATYPE:
      return ObjectKind::named_type;
    default:
      return ObjectKind::unreachable;
  }
}

/// The file that an external link leads to; empty for other links.
std::string linked_file(hid_t group, const std::string& path) {
  H5L_info_t info{};
  if (H5Lget_info(group, path.c_str(), &info, H5P_DEFAULT) < 0 || info.type != H5L_TYPE_EXTERNAL) return {};
  std::string value(info.u.val_size, '\0');
  const char *file = nullptr, *object = nullptr;
  const bool is_read = H5Lget_val(group, path.c_str(), value.data(), value.size(), H5P_DEFAULT) >= 0 &&
                       H5Lunpack_elink_val(value.data(), value.size(), nullptr, &file, &object) >= 0;
  return is_read ? file : "";
}

const char* describe(ObjectKind kind) {
  switch (kind) {
    case ObjectKind::group:
      return "a group";
    case ObjectKind::dataset:
      return "a dataset";
    case ObjectKind::null_dataset:
      return "without elements";
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
  // Sorted here: HDF5's own sorting frees uninitialised memory when it meets a damaged link.
  checked(H5Literate(id(), by_creation ? H5_INDEX_CRT_ORDER : H5_INDEX_NAME, H5_ITER_NATIVE, &position,
                     keep_link, &found),
          file_path_, name_, "list the links");
  std::ranges::sort(found, [&](const NamedLink& a, const NamedLink& b) {
    return by_creation ? a.creation_order < b.creation_order : a.name < b.name;
  });
  std::vector<Link> links;
  links.reserve(found.size());
  for (NamedLink& link : found) {
    // Only soft and external links can lead out of the file.
    const ObjectKind what =
        link.is_hard ? kind_of(Handle(H5Oopen(id(), link.name.c_str(), H5P_DEFAULT), H5Oclose).id())
                     : kind(link.name);
    links.push_back({std::move(link.name), what});
  }
  return links;
}

bool Group::exists(std::string_view name) const {
  const LibraryLock lock;
  // HDF5 needs every parent group to exist for this call.
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

std::string Group::path_of_kind(std::string_view name, ObjectKind expected) const {
  const std::string path = path_of(name);
  if (!exists(path)) throw DataError("{}: {} does not exist", file_path_, path);
  if (const ObjectKind what = kind(path); what != expected && what != ObjectKind::unreachable)
    throw DataError("{}: {} is {}, not {}", file_path_, path, describe(what), describe(expected));
  return path;
}

Group Group::open_group(std::string_view name) const {
  const LibraryLock lock;
  const std::string path = path_of_kind(name, ObjectKind::group);
  return {Handle(checked(H5Gopen2(id(), path.c_str(), H5P_DEFAULT), file_path_, path, "open"), H5Gclose),
          file_path_, path};
}

Dataset Group::open_dataset(std::string_view name) const {
  const LibraryLock lock;
  const std::string path = path_of_kind(name, ObjectKind::dataset);
  const std::string other = linked_file(id(), path);
  const hid_t dataset = H5Dopen2(id(), path.c_str(), H5P_DEFAULT);
  if (dataset < 0 && !other.empty())
    throw DataError("{}: {} is a link into {}, which cannot be opened: {}", file_path_, path, other,
                    last_failure().message);
  return {Handle(checked(dataset, file_path_, path, "open"), H5Dclose), file_path_, path};
}

Dataset Group::open_contiguous(std::string_view name) const {
  const LibraryLock lock;
  const std::string path = path_of(name);
  Handle dataset(H5Oopen(id(), path.c_str(), within_the_file().id()), H5Oclose);
  if (!dataset) {
    const std::string why = last_failure().message;
    if (!exists(path)) throw DataError("{}: {} does not exist", file_path_, path);
    throw DataError("{}: {} does not lead to an object in this file: {}", file_path_, path, why);
  }
  if (const ObjectKind what = kind_of(dataset.id()); what != ObjectKind::dataset)
    throw DataError("{}: {} is {}, not a dataset", file_path_, path, describe(what));
  // Checked first, because even the shape of a virtual dataset is in other files.
  const Handle properties =
      owned_properties(checked(H5Dget_create_plist(dataset.id()), file_path_, path, "open"));
  if (H5Pget_layout(properties.id()) != H5D_CONTIGUOUS || H5Pget_external_count(properties.id()) != 0)
    throw DataError("{}: {} is not contiguous in the file", file_path_, path);
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
    if (extent < 0) throw UsageError("{}: {}: extent {} is negative", file_path_, path, extent);
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

Dataset Group::create_dataset(std::string_view name, DType dtype, std::span<const std::int64_t> shape) {
  const LibraryLock lock;
  return create(name, number_type(dtype).id(), shape);
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

Dataset Group::create_texts(std::string_view name, std::size_t max_bytes,
                            std::span<const std::int64_t> shape) {
  const LibraryLock lock;
  return create(name, text_type(max_bytes + 1).id(), shape);
}

NamedType Group::create_type(std::string_view name, DType dtype) {
  const LibraryLock lock;
  const std::string path = path_of(name);
  const Handle properties = without_time_stamps(H5P_DATATYPE_CREATE);
  Handle handle = number_type(dtype);
  checked(H5Tcommit2(id(), path.c_str(), handle.id(), H5P_DEFAULT, properties.id(), H5P_DEFAULT), file_path_,
          path, "create");
  return {std::move(handle), file_path_, path, dtype};
}

void Group::create_soft_link(std::string_view name, std::string_view target) {
  const LibraryLock lock;
  const std::string path = path_of(name);
  checked(H5Lcreate_soft(std::string(target).c_str(), id(), path.c_str(), H5P_DEFAULT, H5P_DEFAULT),
          file_path_, path, "create");
}

namespace {

enum class Locking { as_the_environment_says, tolerant, off };

Handle access_properties(const std::string& path, Locking locking,
                         H5F_close_degree_t degree = H5F_CLOSE_STRONG) {
  Handle access = owned_properties(checked(H5Pcreate(H5P_FILE_ACCESS), path, "", "open"));
  const auto check = [&](herr_t result) { checked(result, path, "", "open"); };
  check(H5Pset_fapl_sec2(access.id()));
  check(H5Pset_fclose_degree(access.id(), degree));
  if (locking != Locking::as_the_environment_says) {
    check(H5Pset_file_locking(access.id(), locking == Locking::tolerant, true));
  }
  return access;
}

/// Throws the system's reason if there is one, otherwise a known cause or HDF5's message.
[[noreturn]] void throw_cannot_open(const std::string& path, bool for_writing, const Failure& failure) {
  if (failure.system_error == EAGAIN)
    throw FailureError("{}: cannot open: another program has it open for writing", path);
  if (failure.system_error > 0) throw_system_error(failure.system_error, path, "open");
  struct stat status {};
  if (stat(path.c_str(), &status) != 0) throw_system_error(errno, path, "open");
  if (S_ISDIR(status.st_mode)) throw DataError("{}: cannot open: it is a directory, not an HDF5 file", path);
  if (access(path.c_str(), for_writing ? R_OK | W_OK : R_OK) != 0) throw_system_error(errno, path, "open");
  if (status.st_size == 0) throw DataError("{}: cannot open: the file is empty", path);
  if (H5Fis_hdf5(path.c_str()) == 0) throw DataError("{}: cannot open: it is not an HDF5 file", path);
  throw DataError("{}: cannot open: {}", path, failure.message);
}

struct Attempt {
  Handle file;
  Failure failure;  // copied now, as the next call into the library clears its error stack
};

Attempt attempt_open(const std::string& path, bool for_writing, Locking locking,
                     H5F_close_degree_t degree = H5F_CLOSE_STRONG) {
  const Handle access = access_properties(path, locking, degree);
  Attempt attempt;
  attempt.file =
      Handle(H5Fopen(path.c_str(), for_writing ? H5F_ACC_RDWR : H5F_ACC_RDONLY, access.id()), H5Fclose);
  if (!attempt.file) attempt.failure = last_failure();
  return attempt;
}

/// HDF5 would open any kind of file, and wait forever on a named pipe.
void check_kind(const std::string& path) {
  struct stat status {};
  if (stat(path.c_str(), &status) == 0 && !S_ISREG(status.st_mode) && !S_ISDIR(status.st_mode))
    throw DataError("{}: cannot open: it is not a regular file", path);
}

Handle open_file(const std::string& path, bool for_writing) {
  check_kind(path);
  const bool environment_decides = for_writing || std::getenv("HDF5_USE_FILE_LOCKING") != nullptr;
  const Locking locking = environment_decides ? Locking::as_the_environment_says : Locking::tolerant;
  Attempt attempt = attempt_open(path, for_writing, locking);
  // HDF5 has the file open itself, as a source of a virtual dataset.
  if (attempt.failure.message.find("close degree") != std::string::npos)
    attempt = attempt_open(path, for_writing, locking, H5F_CLOSE_WEAK);
  if (!attempt.file && !environment_decides) {
    // Some network file systems do not support locks, which a reader does not need.
    const int reason = attempt.failure.system_error;
    if (reason == ENOLCK || reason == EOPNOTSUPP) attempt = attempt_open(path, for_writing, Locking::off);
  }
  if (!attempt.file) throw_cannot_open(path, for_writing, attempt.failure);
  return std::move(attempt.file);
}

bool is_in_memory(hid_t file) {
  const Handle access = owned_properties(H5Fget_access_plist(file));
  return H5Pget_driver(access.id()) == H5FD_CORE;
}

/// The file of this path that is open in memory; none: there is none.
Handle open_in_memory(const std::string& path) {
  const ssize_t count = H5Fget_obj_count(hid_t{H5F_OBJ_ALL}, H5F_OBJ_FILE);
  std::vector<hid_t> files(static_cast<std::size_t>(std::max<ssize_t>(count, 0)));
  H5Fget_obj_ids(hid_t{H5F_OBJ_ALL}, H5F_OBJ_FILE, files.size(), files.data());
  std::string name(path.size() + 1, '\0');
  for (const hid_t file : files)
    if (is_in_memory(file) && H5Fget_name(file, name.data(), name.size()) == std::ssize(path) &&
        name.starts_with(path))
      return Handle(H5Freopen(file), H5Fclose);
  return {};
}

hid_t open_root(hid_t file, const std::string& path) {
  return checked(H5Gopen2(file, "/", H5P_DEFAULT), path, "/", "open");
}

}  // namespace

File::File(Handle file, const std::string& path)
    : Group(Handle(open_root(file.id(), path), H5Gclose), path, "/"), file_(std::move(file)) {}

File& File::operator=(File&& other) noexcept {
  if (this != &other) {
    handle_.close();
    file_ = std::move(other.file_);
    Group::operator=(std::move(other));
  }
  return *this;
}

File::~File() { handle_.close(); }

File File::open(const std::string& path) {
  const LibraryLock lock;
  Handle in_memory = open_in_memory(path);
  return {in_memory ? std::move(in_memory) : open_file(path, false), path};
}

File File::open_for_writing(const std::string& path) {
  const LibraryLock lock;
  return {open_file(path, true), path};
}

File File::create(const std::string& path, const CreateOptions& options) {
  const LibraryLock lock;
  const auto check = [&](auto result) { return checked(result, path, "", "create"); };
  const Handle access = access_properties(path, Locking::as_the_environment_says);
  constexpr std::size_t increment_bytes = 1 << 20;
  if (options.in_memory) check(H5Pset_fapl_core(access.id(), increment_bytes, false));
  if (options.checksummed) check(H5Pset_libver_bounds(access.id(), H5F_LIBVER_V110, H5F_LIBVER_V110));
  check(H5Pset_alignment(access.id(), options.alignment_from_bytes, options.alignment_bytes));
  const Handle creation = owned_properties(check(H5Pcreate(H5P_FILE_CREATE)));
  check(H5Pset_link_creation_order(creation.id(), H5P_CRT_ORDER_TRACKED | H5P_CRT_ORDER_INDEXED));
  check(H5Pset_obj_track_times(creation.id(), false));
  const bool replace = options.existing == CreateOptions::Existing::replace;
  Handle file(H5Fcreate(path.c_str(), replace ? H5F_ACC_TRUNC : H5F_ACC_EXCL, creation.id(), access.id()),
              H5Fclose);
  if (!file) throw_failure(path, "", "create");
  return {std::move(file), path};
}

bool File::in_memory() const {
  const LibraryLock lock;
  return is_in_memory(file_.id());
}

void File::flush() {
  const LibraryLock lock;
  checked(H5Fflush(file_.id(), H5F_SCOPE_LOCAL), file_path_, "", "write");
}

void File::close() {
  if (!file_) return;
  const LibraryLock lock;
  handle_.close();
  checked(H5Fclose(file_.release()), file_path_, "", "write");
}

}  // namespace lockstep::hdf5
