// ParameterBuffer: the memory of the parameters if each rank updates only the elements it owns (ZeRO-1), and
// the all-gathers that give all ranks all elements.
#pragma once

#include <cstddef>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "ddp/gradient_buffer.h"
#include "lockstep/autograd/param.h"
#include "lockstep/autograd/partition.h"
#include "lockstep/comm/communicator.h"
#include "lockstep/comm/slices.h"
#include "lockstep/ddp/bucket_plan.h"
#include "lockstep/kernels/backend.h"

namespace lockstep::ddp {

/// Which elements of each bucket each rank owns.
class BucketPartition {
 public:
  /// params: of a model; plans have its trainable parameters, in order.
  BucketPartition(std::span<Param* const> params, comm::GradientTransport& transport);

  const Partition& partition() const { return partition_; }
  /// The slices of each bucket of the plan. Padding belongs to the owner of its tensor's last elements.
  std::vector<comm::Slices> slices(const BucketPlan& plan) const;

 private:
  Partition partition_;
  std::vector<std::size_t> trainable_;  ///< indices in the partition
};

/// It has the layout of the gradients. During its life the values of trainable parameters are views of it;
/// its destructor copies them to other memory. All ranks call updated() in the same order, so that the
/// all-gather of a bucket starts as soon as its last parameter has been updated. wait_for() waits for a
/// bucket.
class ParameterBuffer final : public PendingValues {
 public:
  /// Collective. params: those of bucket_partition; the plan has the trainable ones, in order. Unless
  /// overlapped, updated() waits for the all-gather that it starts.
  ParameterBuffer(std::span<Param* const> params, const BucketPartition& bucket_partition,
                  comm::GradientTransport& transport, kernels::Backend& backend, const BucketPlan& plan,
                  bool overlapped);
  /// Collective. After an exception, values whose all-gather was not complete are unspecified.
  ~ParameterBuffer() override;
  ParameterBuffer(const ParameterBuffer&) = delete;
  ParameterBuffer& operator=(const ParameterBuffer&) = delete;

  /// Throws UsageError if a value is no longer a view of this memory.
  void begin_step();
  /// The elements of params[param] that this rank owns have their new values.
  void updated(std::size_t param);
  void wait_for(const Param& param) override;
  /// Waits for everything.
  void wait_ready();
  /// Moves all values to their offsets in another plan over the same parameters.
  void adopt(const BucketPlan& plan);

  /// The time that wait_for() and wait_ready() have waited since the last call.
  double take_waited_ms() { return std::exchange(waited_ms_, 0); }
  /// Call it after an exception of the transport: no further call is expected to return.
  bool transport_failed() const { return transport_failed_; }

 private:
  static constexpr std::size_t frozen = static_cast<std::size_t>(-1);

  template <class Call>
  void transport(const Call& call) {
    transport_failed_ = true;
    call();
    transport_failed_ = false;
  }
  void fit_plan();
  void reopen();
  void start(std::size_t bucket);
  void wait_for(std::size_t bucket);
  void point_values_here();
  Tensor view(std::size_t trainable) const { return buffer_.gradient(static_cast<int>(trainable), 0); }
  std::size_t bucket_of(std::size_t trainable) const {
    return static_cast<std::size_t>(buffer_.plan().location(static_cast<int>(trainable)).bucket);
  }

  std::vector<Param*> trainable_;
  std::vector<std::size_t> trainable_of_param_;  // by parameter; frozen
  std::unordered_map<const Param*, std::size_t> index_of_;
  const BucketPartition& bucket_partition_;
  comm::GradientTransport& transport_;
  kernels::Backend& backend_;
  GradientBuffer buffer_;
  bool overlapped_;

  std::vector<comm::Slices> slices_;  // by bucket
  std::vector<std::size_t> open_;     // by bucket: parameters not yet updated
  std::vector<comm::Work> works_;     // by bucket: of its all-gather; 0: none
  int in_flight_ = 0;                 // buckets
  double waited_ms_ = 0;
  bool transport_failed_ = false;
};

}  // namespace lockstep::ddp
