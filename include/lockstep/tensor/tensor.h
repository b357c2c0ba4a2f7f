// Tensor: a handle on contiguous memory of one device, with a shape and an element type.
#pragma once

#include <cstdint>

#include "lockstep/base/error.h"
#include "lockstep/base/shape.h"
#include "lockstep/tensor/dtype.h"
#include "lockstep/tensor/storage.h"

namespace lockstep {

/// During its life, tensors that its thread creates have shapes and types but no memory (PyTorch: device
/// "meta"). So the memory that a model needs is known before the model exists.
class MetaTensors {
 public:
  MetaTensors();
  ~MetaTensors();
  MetaTensors(const MetaTensors&) = delete;
  MetaTensors& operator=(const MetaTensors&) = delete;
};

/// Copying a Tensor copies the handle, not the elements; constness is the handle's, as with a pointer.
///
/// Layout. Elements are row-major, with one exception: an activation [N, C, H, W] or [N, C, D, H, W] may be
/// stored in channel blocks, physically [N, ceil(C / B), H, W, B] with B = channel_block(). B = 1 is plain
/// NCHW, B = C is NHWC, B = 8 or 16 is what convolutions like best. Lanes that pad the last block always hold
/// zero. Only kernels and kernels::Backend::to_layout look at B; everything that leaves the tape is plain.
class Tensor {
 public:
  Tensor() = default;  ///< empty: bool(t) is false

  /// Uninitialised CPU memory from the system.
  static Tensor empty(Shape shape, DType dtype = DType::float32);
  /// Zeroed CPU memory from the system.
  static Tensor zeros(Shape shape, DType dtype = DType::float32);
  /// A tensor in a block of other memory (a pool). Throws UsageError if it is too small.
  static Tensor over(StorageRef storage, Shape shape, DType dtype, int channel_block = 1);
  /// A tensor in memory that the caller owns and keeps alive.
  static Tensor view(void* data, Shape shape, DType dtype, Device device = Device::cpu());

  explicit operator bool() const noexcept { return data_ != nullptr; }
  const Shape& shape() const noexcept { return shape_; }  ///< extents
  /// Extent of a dimension; negative d counts from the end.
  std::int64_t size(int dimension) const { return shape_[dimension]; }
  std::int64_t numel() const noexcept { return shape_.numel(); }  ///< logical elements, without padding lanes
  DType dtype() const noexcept { return dtype_; }                 ///< type of the elements
  Device device() const noexcept { return device_; }              ///< where the memory is
  int channel_block() const noexcept { return channel_block_; }   ///< 1: plain
  std::int64_t stored_numel() const noexcept;  ///< elements in memory, padding lanes included
  /// With the padding of channel blocks.
  std::size_t bytes() const noexcept { return static_cast<std::size_t>(stored_numel()) * bytes_of(dtype_); }

  void* raw() const noexcept { return data_; }  ///< address of the first element
  /// Throws UsageError if T is not the element type.
  template <class T>
  T* data() const {
    if (dtype_of<T> != dtype_) throw_wrong_dtype(dtype_of<T>);
    return static_cast<T*>(data_);
  }

  /// The same memory with another shape. Throws UsageError if the number of elements differs, or in channel
  /// blocks (B > 1).
  Tensor reshape(Shape shape) const;
  /// The same memory with another shape and layout: [N, C, H, W] in channel blocks of C are the rows [N, H W,
  /// C]. Throws UsageError if the number of stored elements differs.
  Tensor stored_as(Shape shape, int channel_block = 1) const;
  /// Rows [begin, end) of the first dimension, sharing memory. Throws UsageError if they are out of range.
  Tensor rows(std::int64_t begin, std::int64_t end) const;
  /// The same shape, element type and layout without the memory: bool(t) is false.
  Tensor without_memory() const;

  /// Whether this is the only handle on the memory, which nobody else owns: it may be overwritten.
  bool is_only_handle() const noexcept { return storage_.is_only(); }
  /// Whether both begin at the same address.
  bool shares_memory_with(const Tensor& other) const noexcept { return data_ == other.data_; }
  /// The number, within the process, of the last operation or copy of a GPU's backend that wrote to this
  /// tensor's block of memory; 0: none. Writes of a captured graph count at its capture; writes of other code
  /// (own kernels, transports) do not count. Foreign memory has the maximum, as anybody may write it.
  std::uint64_t last_write() const noexcept {
    return storage_ ? storage_->last_write.load(std::memory_order_relaxed) : ~std::uint64_t{0};
  }
  /// Called by Backend: it has enqueued the operation of this number, which writes to this tensor.
  void note_write(std::uint64_t operation) const noexcept {
    if (storage_) storage_->last_write.store(operation, std::memory_order_relaxed);
  }

 private:
  [[noreturn]] void throw_wrong_dtype(DType requested) const;

  StorageRef storage_;  // empty for a view of foreign memory
  void* data_ = nullptr;
  Shape shape_;
  DType dtype_ = DType::float32;
  Device device_;
  int channel_block_ = 1;
};

/// The positions of images [N, C, H, W], or of volumes [N, C, D, H, W].
std::int64_t positions_of(const Shape& shape);
/// Elements in memory of a tensor of this shape in channel blocks of B.
std::int64_t stored_numel(const Shape& shape, int channel_block);

/// Copies elements between CPU tensors of equal shape, dtype and layout. Throws UsageError otherwise.
void copy_elements(const Tensor& from, const Tensor& to);

}  // namespace lockstep
