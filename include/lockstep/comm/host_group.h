// HostGroup: collectives of a group of ranks on values in host memory. A world of one is a group too, so one
// code path serves 1 and N ranks.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::comm {

/// The node of each rank. Launchers usually number ranks node by node (node_major()).
struct Topology {
  std::vector<int> node_of_rank;        ///< index into host_names, by rank
  std::vector<int> local_rank_of_rank;  ///< 0.. within the node
  std::vector<std::string> host_names;  ///< by node, in order of first rank

  int nodes() const { return static_cast<int>(host_names.size()); }  ///< how many there are
  int ranks_on_node(int node) const;                                 ///< ranks of a node, by its number
  bool node_major() const;                                           ///< ranks of a node are consecutive
};

/// All methods from all_gather to barrier are collective: every rank calls them in the same order. Waiting
/// yields the core. A group belongs to one thread at a time. Failures throw FailureError with the call's name
/// and the rank. If ranks call different things (NamedCall), every rank gets the same UsageError, which shows
/// two of the calls; nothing is written then, and every later call throws it again. Ranks of different nodes
/// find this only if both sides call methods of the group: a sum waits for its peers.
class HostGroup {
 public:
  virtual ~HostGroup() = default;

  virtual int rank() const = 0;                  ///< of this process, from 0
  virtual int size() const = 0;                  ///< how many ranks there are
  virtual const Topology& topology() const = 0;  ///< which ranks share a node

  /// Every rank's `bytes` bytes in rank order; `all` must hold size() * bytes.
  virtual void all_gather(const void* mine, std::size_t bytes, void* all) = 0;
  /// bytes_of_rank[r] bytes of each rank r, one after another; every rank passes the same sizes. `mine` may
  /// point to the rank's position in `all`. Any size (over 2 GiB too).
  virtual void all_gather_unequal(const void* mine, std::span<const std::size_t> bytes_of_rank,
                                  void* all) = 0;
  /// Sends to_rank[r] to each rank r, and receives from_rank[r] from it. Each entry has the size of its
  /// peer's entry for this rank, which may be 0. Entries of this rank for itself may be the same memory. Any
  /// size (over 2 GiB too).
  virtual void all_to_all(std::span<const std::span<const std::byte>> to_rank,
                          std::span<const std::span<std::byte>> from_rank) = 0;
  /// Every rank's text in rank order, of any bytes and lengths.
  virtual std::vector<std::string> all_gather_texts(const std::string& mine) = 0;
  /// Any size (over 2 GiB too).
  virtual void broadcast(void* data, std::size_t bytes, int root) = 0;
  /// Throws FailureError if not all ranks arrive within timeout_s (<= 0: no limit). Only abort() may be
  /// called after that.
  virtual void barrier(double timeout_s = 0) = 0;
  /// For NamedCall. Ranks compare `compared`; errors show `phrase`.
  virtual void enter(std::string_view /*phrase*/, std::string_view /*compared*/) {}
  virtual void leave() {}  ///< the end of what enter() has begun
  /// For a rank that waits elsewhere: throws the UsageError if a rank of this node has entered a different
  /// call.
  virtual void check_calls() {}
  /// Lets the transport that shares this group's messages make progress, without blocking.
  virtual void progress() = 0;
  /// Ends every process of the world with this exit code. Does not return.
  [[noreturn]] virtual void abort(int exit_code) = 0;
};

/// Names the current call of all ranks during the life of this object. Every collective carries the name (or
/// `compared`, if the name has details that may differ). A nested call has both names.
class NamedCall {
 public:
  /// phrase: follows "rank 0" in an error, such as "calls Store::save: step 3 in run". The part after ": " is
  /// shown only if another rank makes the same call with other details.
  NamedCall(HostGroup& group, std::string_view phrase) : NamedCall(group, phrase, phrase) {}
  /// compared: the part of the phrase that must be equal on all ranks.
  NamedCall(HostGroup& group, std::string_view phrase, std::string_view compared) : group_(group) {
    group_.enter(phrase, compared);
  }
  ~NamedCall() { group_.leave(); }
  NamedCall(const NamedCall&) = delete;
  NamedCall& operator=(const NamedCall&) = delete;

 private:
  HostGroup& group_;
};

}  // namespace lockstep::comm
