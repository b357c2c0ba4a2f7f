#include "comm/messages.h"

#include <algorithm>

#include "comm/mpi_calls.h"
#include "lockstep/base/error.h"

namespace lockstep::comm {

void Messages::begin(std::uint64_t work) {
  work_ = work;
  requests_.clear();
  messages_.clear();
}

void Messages::reserve(std::size_t messages) {
  requests_.reserve(messages);
  messages_.reserve(messages);
  ended_.resize(std::max(ended_.size(), messages));
  statuses_.resize(ended_.size());
  chunks_.resize(ended_.size());
}

std::size_t Messages::add(std::size_t messages, std::size_t chunk) {
  const std::size_t first = requests_.size();
  requests_.resize(first + messages, MPI_REQUEST_NULL);
  messages_.resize(first + messages, {chunk, 0});
  return first;
}

void Messages::send(std::size_t message, const std::byte* data, std::size_t bytes, int to, int tag) {
  check_mpi(MPI_Isend(data, static_cast<int>(bytes), MPI_BYTE, to, tag, comm_, &requests_[message]),
            "MPI_Isend of a tree sum", rank_);
  messages_[message].received_bytes = 0;
  ++in_flight_;
}

void Messages::receive(std::size_t message, std::byte* data, std::size_t bytes, int from, int tag) {
  check_mpi(MPI_Irecv(data, static_cast<int>(bytes), MPI_BYTE, from, tag, comm_, &requests_[message]),
            "MPI_Irecv of a tree sum", rank_);
  messages_[message].received_bytes = bytes;
  ++in_flight_;
}

std::span<const std::size_t> Messages::collect() {
  if (in_flight_ == 0) return {};
  int count = 0;
  const int code = MPI_Testsome(static_cast<int>(requests_.size()), requests_.data(), &count, ended_.data(),
                                statuses_.data());
  if (code != MPI_ERR_IN_STATUS) check_mpi(code, "MPI_Testsome of a tree sum", rank_);
  if (count == MPI_UNDEFINED) return {};
  in_flight_ -= static_cast<std::size_t>(count);
  for (std::size_t i = 0; i < static_cast<std::size_t>(count); ++i) {
    const Message& message = messages_[static_cast<std::size_t>(ended_[i])];
    check(message, statuses_[i], code == MPI_ERR_IN_STATUS && statuses_[i].MPI_ERROR != MPI_SUCCESS);
    chunks_[i] = message.chunk;
  }
  return {chunks_.data(), static_cast<std::size_t>(count)};
}

void Messages::check(const Message& message, const MPI_Status& status, bool failed) const {
  const std::size_t expected = message.received_bytes;
  if (failed && status.MPI_ERROR != MPI_ERR_TRUNCATE) {
    check_mpi(status.MPI_ERROR, expected > 0 ? "MPI_Irecv of a tree sum" : "MPI_Isend of a tree sum", rank_);
  }
  if (expected == 0) return;
  int bytes = 0;
  check_mpi(MPI_Get_count(&status, MPI_BYTE, &bytes), "MPI_Get_count", rank_);
  if (!failed && static_cast<std::size_t>(bytes) == expected) return;
  throw FailureError(
      "collective {}: rank {} expected a message of {} bytes, rank {} sent {}; every rank must start the "
      "same "
      "collectives in the same order",
      work_, rank_, expected, status.MPI_SOURCE, failed ? "a longer one" : fmt::format("{}", bytes));
}

}  // namespace lockstep::comm
