// Loading rows.
#include "data/row_store.h"

#include "lockstep/base/error.h"

namespace lockstep::data {

RowStore::RowStore(hdf5::File file, hdf5::Dataset dataset, DType as, std::int64_t& memory_left_bytes)
    : path_(file.file_path()),
      dtype_(as),
      rows_(dataset.rows()),
      row_bytes_(static_cast<std::size_t>(dataset.row_numel()) * bytes_of(as)) {
  dataset.check_stored();
  // Elements may be wider in memory than they are in the file.
  if (dataset.numel() > (std::int64_t{1} << 58)) {
    throw DataError("{}: {} claims {} elements, more than any machine could hold", path_, dataset.name(),
                    dataset.numel());
  }
  const std::size_t bytes = static_cast<std::size_t>(rows_) * row_bytes_;
  if (static_cast<std::int64_t>(bytes) <= memory_left_bytes) {
    memory_ = std::make_unique_for_overwrite<std::byte[]>(bytes);
    dataset.read(dtype_, {memory_.get(), bytes});
    memory_left_bytes -= static_cast<std::int64_t>(bytes);
  } else {
    file_ = std::make_unique<hdf5::File>(std::move(file));
    dataset_ = std::make_unique<hdf5::Dataset>(std::move(dataset));
  }
}

const std::byte* RowStore::load_rows(std::int64_t begin, std::int64_t count) const {
  const std::size_t bytes = static_cast<std::size_t>(count) * row_bytes_;
  if (scratch_.size() < bytes) scratch_.resize(bytes);
  dataset_->read_rows(begin, count, dtype_, {scratch_.data(), bytes});
  return scratch_.data();
}

}  // namespace lockstep::data
