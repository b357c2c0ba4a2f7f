// Partition: which rank updates which elements of each parameter.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "lockstep/autograd/param.h"
#include "lockstep/comm/communicator.h"
#include "lockstep/comm/slices.h"

namespace lockstep {

/// An immutable value: a pure function of the parameters' sizes, of which parameters are undivided, and of
/// the number of ranks. It does not depend on buckets.
///
/// Each rank owns one range of each parameter, which may be empty, in the order of the ranks. Ranges are cut
/// between blocks of block_elements, so that sums over blocks have one owner. Ranks share a parameter's
/// blocks evenly. The blocks left over go to ranks in turn, from one parameter to the next, so that ranks
/// differ by at most one block in all. No number needs to divide another.
///
/// An undivided parameter has one owner. The largest parameter comes first, and each goes to the rank that
/// owns the fewest elements so far, so that ranks differ by at most the largest parameter.
class Partition {
 public:
  /// The block size of the sums of a gradient norm.
  static constexpr std::int64_t block_elements = 4096;

  /// elements: the size of each parameter. undivided: a flag for each parameter; empty: all false. Not
  /// collective; the transport must outlive this and all copies.
  Partition(std::vector<std::int64_t> elements, comm::GradientTransport& transport,
            const std::vector<bool>& undivided = {});
  /// Includes frozen parameters, which have EMA weights. Param::undivided selects the undivided ones.
  Partition(std::span<Param* const> params, comm::GradientTransport& transport);

  int ranks() const { return ranks_; }                     ///< how many ranks share the parameters
  std::size_t params() const { return elements_.size(); }  ///< how many parameters there are
  std::int64_t elements(std::size_t param) const { return elements_.at(param); }  ///< elements of a parameter
  /// Whether one rank owns the whole parameter.
  bool is_undivided(std::size_t param) const { return owner_.at(param) != no_owner; }
  /// The elements of a parameter that a rank owns.
  comm::ElementRange range(std::size_t param, int rank) const;
  /// The elements that this process owns.
  comm::ElementRange mine(std::size_t param) const { return range(param, transport_->group().rank()); }
  comm::GradientTransport& transport() const { return *transport_; }  ///< gathers the parts

  /// The owned elements of a tensor of the parameter's size, as a vector that shares its memory.
  Tensor part(std::size_t param, const Tensor& whole) const;
  /// This rank's part of a tensor of a parameter's size, as a vector like that of part().
  struct OwnedElements {
    std::size_t param = 0;  ///< which parameter, by number
    Tensor elements;        ///< its elements that this rank owns; a view
    Shape shape;            ///< of the whole
  };
  /// Collective. Returns new, whole CPU tensors in the order of `parts`. The number of collective calls
  /// depends on their bytes only. backend: that of the device of the parts; null: the CPU.
  std::vector<Tensor> gather(std::span<const OwnedElements> parts, kernels::Backend* backend = nullptr) const;

  bool operator==(const Partition&) const = default;

 private:
  static constexpr int no_owner = -1;

  void assign_owners(const std::vector<bool>& undivided);
  std::size_t bytes_of(const OwnedElements& part, int rank) const;
  void gather_some(std::span<const OwnedElements> parts, kernels::Backend* backend,
                   std::span<Tensor> wholes) const;

  std::vector<std::int64_t> elements_;
  std::vector<int> first_extra_;  ///< by parameter: the first rank that gets one of the blocks left over
  std::vector<int> owner_;        ///< by parameter: the rank that owns all of it, or no_owner
  int ranks_ = 1;
  comm::GradientTransport* transport_;
};

/// Describes a vector that holds the owned elements of a tensor of a parameter's size.
struct PartitionView {
  const Partition* partition = nullptr;  ///< outlives this
  std::size_t param = 0;                 ///< which parameter, by number
  Shape shape;                           ///< of the whole
};

}  // namespace lockstep
