// Sending, receiving, and noticing what has come.
#include "comm/messages.h"

#include <algorithm>

#include "comm/mpi_check.h"

namespace lockstep::comm {

void Messages::begin(std::uint64_t ticket) {
  ticket_ = ticket;
  requests_.clear();
  about_.clear();
}

void Messages::reserve(std::size_t messages) {
  requests_.reserve(messages);
  about_.reserve(messages);
  ended_.resize(std::max(ended_.size(), messages));
  statuses_.resize(ended_.size());
  pieces_.resize(ended_.size());
}

std::size_t Messages::add(std::size_t messages, std::size_t piece) {
  const std::size_t first = requests_.size();
  requests_.resize(first + messages, MPI_REQUEST_NULL);
  about_.resize(first + messages, {piece, 0});
  return first;
}

void Messages::send(std::size_t place, const std::byte* data, std::size_t bytes, int to, int tag) {
  check_mpi(MPI_Isend(data, static_cast<int>(bytes), MPI_BYTE, to, tag, comm_, &requests_[place]),
            "MPI_Isend of a tree sum", rank_);
  about_[place].received_bytes = 0;
  ++under_way_;
}

void Messages::receive(std::size_t place, std::byte* data, std::size_t bytes, int from, int tag) {
  check_mpi(MPI_Irecv(data, static_cast<int>(bytes), MPI_BYTE, from, tag, comm_, &requests_[place]),
            "MPI_Irecv of a tree sum", rank_);
  about_[place].received_bytes = bytes;
  ++under_way_;
}

std::span<const std::size_t> Messages::collect() {
  if (under_way_ == 0) return {};
  int count = 0;
  const int code = MPI_Testsome(static_cast<int>(requests_.size()), requests_.data(), &count, ended_.data(),
                                statuses_.data());
  if (code != MPI_ERR_IN_STATUS) check_mpi(code, "MPI_Testsome of a tree sum", rank_);
  if (count == MPI_UNDEFINED) return {};
  under_way_ -= static_cast<std::size_t>(count);
  for (std::size_t i = 0; i < static_cast<std::size_t>(count); ++i) {
    const auto place = static_cast<std::size_t>(ended_[i]);
    check(place, statuses_[i], code == MPI_ERR_IN_STATUS && statuses_[i].MPI_ERROR != MPI_SUCCESS);
    pieces_[i] = about_[place].piece;
  }
  return {pieces_.data(), static_cast<std::size_t>(count)};
}

void Messages::check(std::size_t place, const MPI_Status& status, bool failed) const {
  const std::size_t expected = about_[place].received_bytes;
  if (failed && status.MPI_ERROR != MPI_ERR_TRUNCATE) {
    check_mpi(status.MPI_ERROR, expected > 0 ? "MPI_Irecv of a tree sum" : "MPI_Isend of a tree sum", rank_);
  }
  if (expected == 0) return;
  int bytes = 0;
  check_mpi(MPI_Get_count(&status, MPI_BYTE, &bytes), "MPI_Get_count", rank_);
  if (failed || static_cast<std::size_t>(bytes) != expected) {
    throw FailureError(
        "ticket {}: rank {} expected a message of {} bytes, rank {} sent {}; every rank must start the same "
        "exchanges in the same order",
        ticket_, rank_, expected, status.MPI_SOURCE, failed ? "a longer one" : fmt::format("{}", bytes));
  }
}

}  // namespace lockstep::comm
