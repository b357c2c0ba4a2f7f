#include "lockstep/tensor/tensor.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

/// In the order of the enumeration.
constexpr std::array<std::string_view, 12> dtype_names{"float32", "bfloat16", "float16", "float64",
                                                       "int64",   "int32",    "uint8",   "int16",
                                                       "int8",    "uint64",   "uint32",  "uint16"};

thread_local int meta_tensors = 0;  // number of live objects

}  // namespace

std::string_view to_string(DType type) { return dtype_names.at(static_cast<std::size_t>(type)); }

DType dtype_named(std::string_view name) {
  const auto found = std::ranges::find(dtype_names, name);
  if (found == dtype_names.end()) throw UsageError("unknown element type '{}'", name);
  return static_cast<DType>(found - dtype_names.begin());
}

std::string to_string(const Device& device) {
  return device.kind == Device::Kind::cpu ? "cpu" : fmt::format("cuda:{}", device.index);
}

MetaTensors::MetaTensors() { ++meta_tensors; }
MetaTensors::~MetaTensors() { --meta_tensors; }

std::int64_t positions_of(const Shape& shape) {
  std::int64_t positions = 1;
  for (int d = 2; d < shape.rank(); ++d) positions *= shape[d];
  return positions;
}

std::int64_t stored_numel(const Shape& shape, int channel_block) {
  if (channel_block == 1) return shape.numel();
  const std::int64_t blocks = (shape[1] + channel_block - 1) / channel_block;
  return shape[0] * blocks * positions_of(shape) * channel_block;
}

std::int64_t Tensor::stored_numel() const noexcept { return lockstep::stored_numel(shape_, channel_block_); }

Tensor Tensor::empty(Shape shape, DType dtype) {
  if (meta_tensors > 0) return view(nullptr, shape, dtype);
  return over(allocate_cpu(static_cast<std::size_t>(shape.numel()) * bytes_of(dtype)), shape, dtype);
}

Tensor Tensor::zeros(Shape shape, DType dtype) {
  Tensor tensor = empty(shape, dtype);
  if (tensor.raw()) std::memset(tensor.raw(), 0, tensor.bytes());
  return tensor;
}

Tensor Tensor::over(StorageRef storage, Shape shape, DType dtype, int channel_block) {
  if (channel_block != 1 && shape.rank() != 4 && shape.rank() != 5) {
    throw UsageError(
        "shape {} cannot be stored in channel blocks: it is neither [N, C, H, W] nor [N, C, D, H, W]",
        to_string(shape));
  }
  Tensor tensor;
  tensor.data_ = storage->data;
  tensor.device_ = storage->device;
  tensor.shape_ = shape;
  tensor.dtype_ = dtype;
  tensor.channel_block_ = channel_block;
  if (tensor.bytes() > storage->bytes) {
    throw UsageError("a block of {} bytes cannot hold {} of {}", storage->bytes, to_string(dtype),
                     to_string(shape));
  }
  tensor.storage_ = std::move(storage);
  return tensor;
}

Tensor Tensor::view(void* data, Shape shape, DType dtype, Device device) {
  Tensor tensor;
  tensor.data_ = data;
  tensor.device_ = device;
  tensor.shape_ = shape;
  tensor.dtype_ = dtype;
  return tensor;
}

Tensor Tensor::reshape(Shape shape) const {
  if (shape.numel() != numel() || channel_block_ != 1) {
    throw UsageError("a tensor of shape {} (channel block {}) cannot be viewed as {}", to_string(shape_),
                     channel_block_, to_string(shape));
  }
  Tensor tensor = *this;
  tensor.shape_ = shape;
  return tensor;
}

Tensor Tensor::stored_as(Shape shape, int channel_block) const {
  if ((channel_block != 1 && shape.rank() != 4 && shape.rank() != 5) ||
      lockstep::stored_numel(shape, channel_block) != stored_numel()) {
    throw UsageError("a tensor of shape {} (channel block {}) cannot be viewed as {} (channel block {})",
                     to_string(shape_), channel_block_, to_string(shape), channel_block);
  }
  Tensor tensor = *this;
  tensor.shape_ = shape;
  tensor.channel_block_ = channel_block;
  return tensor;
}

Tensor Tensor::rows(std::int64_t begin, std::int64_t end) const {
  const std::int64_t extent = size(0);
  if (begin < 0 || end < begin || end > extent) {
    throw UsageError("rows [{}, {}) are out of range for shape {}", begin, end, to_string(shape_));
  }
  std::array<std::int64_t, Shape::max_rank> extents{};
  std::copy(shape_.begin(), shape_.end(), extents.begin());
  extents[0] = end - begin;
  Tensor tensor = *this;
  tensor.shape_ =
      Shape(std::span<const std::int64_t>(extents.data(), static_cast<std::size_t>(shape_.rank())));
  const std::size_t row_bytes = extent == 0 ? 0 : bytes() / static_cast<std::size_t>(extent);
  tensor.data_ = static_cast<char*>(data_) + static_cast<std::size_t>(begin) * row_bytes;
  return tensor;
}

Tensor Tensor::without_memory() const {
  Tensor tensor = view(nullptr, shape_, dtype_, device_);
  tensor.channel_block_ = channel_block_;
  return tensor;
}

void Tensor::throw_wrong_dtype(DType requested) const {
  throw UsageError("cannot read a tensor of {} as {}", to_string(dtype_), to_string(requested));
}

void copy_elements(const Tensor& from, const Tensor& to) {
  if (!(from.shape() == to.shape()) || from.dtype() != to.dtype() ||
      from.channel_block() != to.channel_block()) {
    throw UsageError("cannot copy {} {} into {} {}", to_string(from.dtype()), to_string(from.shape()),
                     to_string(to.dtype()), to_string(to.shape()));
  }
  if (from.bytes() > 0) std::memcpy(to.raw(), from.raw(), from.bytes());
}

}  // namespace lockstep
