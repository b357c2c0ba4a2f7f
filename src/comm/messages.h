// Messages: the MPI messages between nodes of one collective.
#pragma once

#include <mpi.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace lockstep::comm {

/// The messages of each chunk have consecutive numbers.
class Messages {
 public:
  Messages(MPI_Comm comm, int rank) : comm_(comm), rank_(rank) {}
  Messages(const Messages&) = delete;
  Messages& operator=(const Messages&) = delete;

  /// Forgets all messages, which must have ended. `work` names the next ones in errors.
  void begin(std::uint64_t work);
  void reserve(std::size_t messages);
  std::size_t capacity() const { return requests_.capacity(); }
  bool in_flight() const { return in_flight_ > 0; }

  /// Adds the messages of a chunk; returns the number of the first.
  std::size_t add(std::size_t messages, std::size_t chunk);
  void send(std::size_t message, const std::byte* data, std::size_t bytes, int to, int tag);
  void receive(std::size_t message, std::byte* data, std::size_t bytes, int from, int tag);
  /// The chunks of the messages that have ended since the last call, one entry a message. Throws FailureError
  /// if another rank's message has another size than expected.
  std::span<const std::size_t> collect();

 private:
  struct Message {
    std::size_t chunk = 0;
    std::size_t received_bytes = 0;  ///< 0 for a message that is sent
  };
  void check(const Message& message, const MPI_Status& status, bool failed) const;

  MPI_Comm comm_;
  int rank_;
  std::uint64_t work_ = 0;
  std::size_t in_flight_ = 0;
  std::vector<MPI_Request> requests_;  ///< by message
  std::vector<Message> messages_;
  std::vector<int> ended_;
  std::vector<MPI_Status> statuses_;
  std::vector<std::size_t> chunks_;
};

}  // namespace lockstep::comm
