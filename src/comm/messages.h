// The MPI messages of one exchange between nodes.
#pragma once

#include <mpi.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace lockstep::comm {

class Messages {
 public:
  Messages(MPI_Comm comm, int rank) : comm_(comm), rank_(rank) {}
  Messages(const Messages&) = delete;
  Messages& operator=(const Messages&) = delete;

  /// Forgets all messages, which must be over. `ticket` names the next ones in errors.
  void begin(std::uint64_t ticket);
  void reserve(std::size_t messages);
  std::size_t capacity() const { return requests_.capacity(); }
  bool under_way() const { return under_way_ > 0; }

  /// Makes places for the messages of a piece; returns the first.
  std::size_t add(std::size_t messages, std::size_t piece);
  void send(std::size_t place, const std::byte* data, std::size_t bytes, int to, int tag);
  void receive(std::size_t place, std::byte* data, std::size_t bytes, int from, int tag);
  /// The pieces of the messages that have ended since the last call, one entry a message. Throws FailureError
  /// if another rank's message has not the expected size.
  std::span<const std::size_t> collect();

 private:
  struct About {
    std::size_t piece = 0;
    std::size_t received_bytes = 0;  ///< 0 for what is sent
  };
  void check(std::size_t place, const MPI_Status& status, bool failed) const;

  MPI_Comm comm_;
  int rank_;
  std::uint64_t ticket_ = 0;
  std::size_t under_way_ = 0;
  std::vector<MPI_Request> requests_;
  std::vector<About> about_;
  std::vector<int> ended_;
  std::vector<MPI_Status> statuses_;
  std::vector<std::size_t> pieces_;
};

}  // namespace lockstep::comm
