#include "hdf5/raw_rows.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <functional>
#include <numeric>

#include "hdf5/library.h"

namespace lockstep::hdf5 {
namespace {

constexpr std::uint64_t unknown = HADDR_UNDEF;

/// Bytes from one index to the next, by dimension.
std::vector<std::size_t> strides_of(const std::vector<std::int64_t>& extents, std::size_t element_bytes) {
  std::vector<std::size_t> strides(extents.size(), element_bytes);
  for (std::size_t d = extents.size() - 1; d > 0; --d)
    strides[d - 1] = strides[d] * static_cast<std::size_t>(extents[d]);
  return strides;
}

/// Whether HDF5 reads an object by system calls of this file, which does not begin with a block of other
/// bytes: not every release counts them in addresses.
bool is_read_from(hid_t object, const OpenFile& opened) {
  const Handle file(H5Iget_file_id(object), H5Fclose);
  const Handle access = owned_properties(H5Fget_access_plist(file.id())),
               creation = owned_properties(H5Fget_create_plist(file.id()));
  hsize_t other_bytes = 0;
  void* descriptor = nullptr;
  if (H5Pget_driver(access.id()) != H5FD_SEC2 || H5Pget_userblock(creation.id(), &other_bytes) < 0 ||
      other_bytes > 0 || H5Fget_vfd_handle(file.id(), H5P_DEFAULT, &descriptor) < 0)
    return false;
  struct stat of_hdf5 {
  }, of_file{};
  return ::fstat(*static_cast<const int*>(descriptor), &of_hdf5) == 0 &&
         ::fstat(opened.descriptor(), &of_file) == 0 && of_hdf5.st_dev == of_file.st_dev &&
         of_hdf5.st_ino == of_file.st_ino;
}

}  // namespace

RawRows::RawRows(const Dataset& dataset) : path_(dataset.file_path()), shape_(dataset.shape()) {}

std::optional<RawRows> RawRows::of(const Dataset& dataset, const OpenFile& file) {
  if (!dataset.dtype() || dataset.shape().empty() || dataset.numel() == 0) return std::nullopt;
  const LibraryLock lock;
  const Handle type = owned_type(H5Dget_type(dataset.id()));
  RawRows rows(dataset);
  rows.descriptor_ = file.descriptor();
  if (!is_read_from(dataset.id(), file) ||
      (bytes_of(*dataset.dtype()) > 1 && H5Tget_order(type.id()) != H5T_ORDER_LE) || !rows.find(dataset))
    return std::nullopt;
  return rows;
}

bool RawRows::find(const Dataset& dataset) {
  const Handle properties = owned_properties(H5Dget_create_plist(dataset.id()));
  const H5D_layout_t layout = H5Pget_layout(properties.id());
  if ((layout != H5D_CONTIGUOUS && layout != H5D_CHUNKED) || H5Pget_nfilters(properties.id()) != 0)
    return false;
  chunk_ = shape_;
  if (layout == H5D_CHUNKED) {
    std::array<hsize_t, H5S_MAX_RANK> extents{};
    if (H5Pget_chunk(properties.id(), H5S_MAX_RANK, extents.data()) < 0) return false;
    std::copy_n(extents.begin(), chunk_.size(), chunk_.begin());
  }
  for (std::size_t d = 0; d < shape_.size(); ++d) grid_.push_back((shape_[d] - 1) / chunk_[d] + 1);
  const std::size_t element_bytes = bytes_of(*dataset.dtype());
  chunk_strides_ = strides_of(chunk_, element_bytes);
  strides_ = strides_of(shape_, element_bytes);
  const auto chunks = std::accumulate(grid_.begin(), grid_.end(), std::int64_t{1}, std::multiplies());
  offsets_.assign(static_cast<std::size_t>(chunks), unknown);
  if (layout == H5D_CONTIGUOUS)
    offsets_[0] = H5Dget_offset(dataset.id());
  else if (!find_chunks(dataset))
    return false;
  return std::ranges::find(offsets_, unknown) == offsets_.end();
}

/// The number of the chunk that begins at this element.
std::size_t RawRows::chunk_at(const std::vector<std::uint64_t>& first_element) const {
  std::size_t number = 0;
  for (std::size_t d = 0; d < grid_.size(); ++d)
    number = number * static_cast<std::size_t>(grid_[d]) +
             static_cast<std::size_t>(first_element[d]) / static_cast<std::size_t>(chunk_[d]);
  return number;
}

bool RawRows::find_chunks(const Dataset& dataset) {
  std::vector<hsize_t> first(shape_.size());
#if H5_VERSION_GE(1, 14, 0)
  const auto add = [&](const hsize_t* element, haddr_t offset) {
    first.assign(element, element + shape_.size());
    const std::size_t chunk = chunk_at({first.begin(), first.end()});
    if (chunk < offsets_.size()) offsets_[chunk] = offset;
  };
  const auto call = [](const hsize_t* element, unsigned, haddr_t offset, hsize_t, void* with) {
    (*static_cast<const decltype(add)*>(with))(element, offset);
    return H5_ITER_CONT;
  };
  return H5Dchunk_iter(dataset.id(), H5P_DEFAULT, call, const_cast<void*>(static_cast<const void*>(&add))) >=
         0;
#else
  constexpr std::size_t max_chunks = 256;  // 0.1 s
  const Handle space = owned_space(H5Dget_space(dataset.id()));
  for (std::size_t i = 0; i < offsets_.size() && offsets_.size() <= max_chunks; ++i) {
    unsigned filters = 0;
    haddr_t offset = HADDR_UNDEF;
    hsize_t bytes = 0;
    if (H5Dget_chunk_info(dataset.id(), space.id(), i, first.data(), &filters, &offset, &bytes) < 0)
      return false;
    const std::size_t chunk = chunk_at({first.begin(), first.end()});
    if (chunk < offsets_.size()) offsets_[chunk] = offset;
  }
  return true;
#endif
}

/// Calls use(chunk, first row in it, rows, their place among the rows) until it returns false, which is then
/// the result.
template <class Use>
bool RawRows::for_each_part(std::int64_t begin, std::int64_t count, const Use& use) const {
  const std::size_t chunks_of_band = offsets_.size() / static_cast<std::size_t>(grid_[0]);
  for (std::int64_t row = begin; row < begin + count;) {  // a band of chunks at a time
    const std::int64_t band = row / chunk_[0], first = row - band * chunk_[0],
                       rows = std::min(begin + count - row, chunk_[0] - first);
    for (std::size_t i = 0; i < chunks_of_band; ++i)
      if (!use(static_cast<std::size_t>(band) * chunks_of_band + i, first, rows, row - begin)) return false;
    row += rows;
  }
  return true;
}

bool RawRows::read(std::int64_t begin, std::int64_t count, std::byte* out) const {
  return for_each_part(
      begin, count, [&](std::size_t chunk, std::int64_t first_row, std::int64_t rows, std::int64_t place) {
        return read_chunk(chunk, first_row, rows, out + static_cast<std::size_t>(place) * strides_[0]);
      });
}

void RawRows::expect(std::int64_t begin, std::int64_t count) const {
  for_each_part(begin, count,
                [&](std::size_t chunk, std::int64_t first_row, std::int64_t rows, std::int64_t) {
                  const auto bytes = rows * static_cast<std::int64_t>(chunk_strides_[0]);
                  ::posix_fadvise(descriptor_, static_cast<off_t>(offset_of(chunk, first_row)), bytes,
                                  POSIX_FADV_WILLNEED);
                  return true;
                });
}

/// Some rows of a chunk into rows of the dataset, of which the first begins at `out`.
bool RawRows::read_chunk(std::size_t chunk, std::int64_t first_row, std::int64_t rows, std::byte* out) const {
  const std::size_t row_bytes = chunk_strides_[0], bytes = static_cast<std::size_t>(rows) * row_bytes;
  const std::uint64_t offset = offset_of(chunk, first_row);
  if (std::equal(chunk_.begin() + 1, chunk_.end(), shape_.begin() + 1)) return read_bytes(offset, out, bytes);
  thread_local std::vector<std::byte> scratch;  // grows to the most that a thread reads
  if (scratch.size() < bytes) scratch.resize(bytes);
  if (!read_bytes(offset, scratch.data(), bytes)) return false;
  for (std::size_t row = 0; row < static_cast<std::size_t>(rows); ++row)
    place(chunk, 1, scratch.data() + row * row_bytes, out + row * strides_[0]);
  return true;
}

/// Copies what the chunk has of a row. `from` and `to` begin with the dimension's first index, of the chunk
/// and of the dataset. What a chunk at an edge has beyond the dataset is left out.
void RawRows::place(std::size_t chunk, std::size_t dimension, const std::byte* from, std::byte* to) const {
  std::size_t later = 1;  // chunks of the dimensions behind this one
  for (std::size_t d = dimension + 1; d < grid_.size(); ++d) later *= static_cast<std::size_t>(grid_[d]);
  const std::int64_t first = static_cast<std::int64_t>(chunk / later) % grid_[dimension] * chunk_[dimension];
  const auto count = static_cast<std::size_t>(std::min(chunk_[dimension], shape_[dimension] - first));
  const std::size_t stride = strides_[dimension];
  to += static_cast<std::size_t>(first) * stride;
  if (dimension + 1 == grid_.size()) {
    std::memcpy(to, from, count * stride);
    return;
  }
  for (std::size_t i = 0; i < count; ++i)
    place(chunk, dimension + 1, from + i * chunk_strides_[dimension], to + i * stride);
}

bool RawRows::read_bytes(std::uint64_t offset, std::byte* out, std::size_t bytes) const {
  while (bytes > 0) {
    const ssize_t read = ::pread(descriptor_, out, bytes, static_cast<off_t>(offset));
    if (read < 0 && errno == EINTR) continue;
    if (read < 0) throw_system_error(errno, path_, "read");
    if (read == 0) return false;
    out += read;
    offset += static_cast<std::uint64_t>(read);
    bytes -= static_cast<std::size_t>(read);
  }
  return true;
}

}  // namespace lockstep::hdf5
