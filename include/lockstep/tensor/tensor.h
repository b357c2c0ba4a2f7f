// Tensor: a handle on contiguous memory of one device, with a shape and an element type.
#pragma once

#include <cstdint>

#include "lockstep/base/error.h"
#include "lockstep/base/shape.h"
#include "lockstep/tensor/dtype.h"
#include "lockstep/tensor/storage.h"

namespace lockstep {

/// While one lives, tensors that its thread makes have shapes and types but no memory (PyTorch: device
/// "meta"): what a model would take is known before anything is made.
class MetaTensors {
 public:
  MetaTensors();
  ~MetaTensors();
  MetaTensors(const MetaTensors&) = delete;
  MetaTensors& operator=(const MetaTensors&) = delete;
};

/// Copying a Tensor copies the handle, not the elements; constness is the handle's, as with a pointer.
///
/// Layout. Elements are row-major, with one exception: a 4-D activation [N, C, H, W] may be stored in channel
/// blocks, physically [N, ceil(C / B), H, W, B] with B = channel_block(). B = 1 is plain NCHW, B = C is NHWC,
/// B = 8 or 16 is what convolutions like best. Lanes that pad the last block always hold zero. Only kernels
/// and kernels::Backend::to_layout look at B; everything that leaves the tape is plain.
class Tensor {
 public:
  Tensor() = default;  ///< no tensor: bool(t) is false

  /// Uninitialised CPU memory from the system.
  static Tensor empty(Shape shape, DType dtype = DType::float32);
  /// Zeroed CPU memory from the system.
  static Tensor zeros(Shape shape, DType dtype = DType::float32);
  /// A block from elsewhere (a pool). Throws UsageError if it is too small.
  static Tensor over(StorageRef storage, Shape shape, DType dtype, int channel_block = 1);
  /// Memory that somebody else owns and keeps alive.
  static Tensor view(void* data, Shape shape, DType dtype, Device device = Device::cpu());

  explicit operator bool() const noexcept { return data_ != nullptr; }
  const Shape& shape() const noexcept { return shape_; }  ///< extents
  /// Extent of a dimension; negative: from the last.
  std::int64_t size(int dimension) const { return shape_[dimension]; }
  std::int64_t numel() const noexcept { return shape_.numel(); }  ///< logical elements, without padding lanes
  DType dtype() const noexcept { return dtype_; }                 ///< type of the elements
  Device device() const noexcept { return device_; }              ///< where the memory is
  int channel_block() const noexcept { return channel_block_; }   ///< 1: plain
  std::int64_t stored_numel() const noexcept;  ///< elements in memory, padding lanes included
  /// With the padding of channel blocks.
  std::size_t bytes() const noexcept { return static_cast<std::size_t>(stored_numel()) * bytes_of(dtype_); }

  void* raw() const noexcept { return data_; }  ///< of the first element
  /// Throws UsageError if T is not the element type.
  template <class T>
  T* data() const {
    if (dtype_of<T> != dtype_) throw_wrong_dtype(dtype_of<T>);
    return static_cast<T*>(data_);
  }

  /// The same memory under another shape of as many elements. Throws UsageError otherwise, or if in channel
  /// blocks (B = 1 only).
  Tensor reshape(Shape shape) const;
  /// The same memory under another shape and layout of as many stored elements: [N, C, H, W] in channel
  /// blocks of C are the rows [N, H W, C]. Throws UsageError otherwise.
  Tensor stored_as(Shape shape, int channel_block = 1) const;
  /// Rows [begin, end) of the first dimension, sharing memory. Throws UsageError outside the range.
  Tensor rows(std::int64_t begin, std::int64_t end) const;
  /// The same shape, element type and layout without the memory: bool(t) is false.
  Tensor without_memory() const;

  /// Whether no other handle holds this memory, nor anybody outside: what is not needed here may be
  /// overwritten.
  bool is_only_handle() const noexcept { return storage_.is_only(); }
  /// Whether both begin at one address.
  bool shares_memory_with(const Tensor& other) const noexcept { return data_ == other.data_; }
  /// The number of the last operation or copy of a GPU's backend that wrote some of the block of memory that
  /// this is part of, among all of the process; 0: none. What a captured graph writes counted when it was
  /// captured; what others write (own kernels, transports) is not seen. Foreign memory: the greatest number,
  /// as anybody may write it.
  std::uint64_t last_write() const noexcept {
    return storage_ ? storage_->last_write.load(std::memory_order_relaxed) : ~std::uint64_t{0};
  }
  /// Called by Backend: the operation of this number has been enqueued, which writes this.
  void note_write(std::uint64_t operation) const noexcept {
    if (storage_) storage_->last_write.store(operation, std::memory_order_relaxed);
  }

 private:
  [[noreturn]] void throw_wrong_dtype(DType asked) const;

  StorageRef storage_;  // empty for a view of foreign memory
  void* data_ = nullptr;
  Shape shape_;
  DType dtype_ = DType::float32;
  Device device_;
  int channel_block_ = 1;
};

/// Elements that a tensor of this shape takes when stored in channel blocks of B.
std::int64_t stored_numel(const Shape& shape, int channel_block);

/// Copies elements between CPU tensors of equal shape, dtype and layout. Throws UsageError otherwise.
void copy_elements(const Tensor& from, const Tensor& to);

}  // namespace lockstep
