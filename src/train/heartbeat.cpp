#include "train/heartbeat.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>

namespace lockstep::train {
namespace {

constexpr std::uint32_t most_records = 16;  // of one datagram: below 1400 bytes, which no network cuts
constexpr std::size_t most_addresses = 8;

/// Where a rank receives. Port 0: it could not open a socket.
struct Place {
  std::uint64_t job;
  std::uint32_t addresses[most_addresses];
  std::uint16_t port;
  std::uint16_t count;
  std::uint32_t unused;
};

std::int64_t now_ns() { return std::chrono::steady_clock::now().time_since_epoch().count(); }

/// The addresses of this machine that others may reach.
void list_addresses(Place& place) {
  ifaddrs* list = nullptr;
  if (::getifaddrs(&list) != 0) return;
  for (const ifaddrs* entry = list; entry && place.count < most_addresses; entry = entry->ifa_next) {
    if (!entry->ifa_addr || entry->ifa_addr->sa_family != AF_INET) continue;
    if ((entry->ifa_flags & IFF_UP) == 0 || (entry->ifa_flags & IFF_LOOPBACK) != 0) continue;
    place.addresses[place.count++] = reinterpret_cast<const sockaddr_in*>(entry->ifa_addr)->sin_addr.s_addr;
  }
  ::freeifaddrs(list);
}

int open_socket(Place& place) {
  const int descriptor = ::socket(AF_INET, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (descriptor < 0) return -1;
  sockaddr_in any{};
  any.sin_family = AF_INET;
  any.sin_addr.s_addr = htonl(INADDR_ANY);
  socklen_t length = sizeof any;
  if (::bind(descriptor, reinterpret_cast<sockaddr*>(&any), sizeof any) == 0 &&
      ::getsockname(descriptor, reinterpret_cast<sockaddr*>(&any), &length) == 0)
    place.port = any.sin_port;
  return descriptor;
}

}  // namespace

struct Heartbeat::Message {
  enum Kind : std::uint32_t { records, verdict };
  std::uint64_t job;
  std::uint32_t kind, node, first, count;  // records of ranks local_ranks[first...] of the node
  struct Copy {
    std::uint64_t marks, beats, looks;
    std::int64_t step, age_ns;
    std::uint32_t phase, waiting;
    std::int32_t bucket, pid;
    float step_ms;
    std::uint32_t polling;
  };
  struct Entry {
    std::uint32_t rank, unused;
    Copy copy;
  } entries[most_records];
};

Heartbeat::Heartbeat(comm::HostGroup& world, Board& board)
    : board_(board),
      node_(world.topology().node_of_rank[static_cast<std::size_t>(world.rank())]),
      heard_(static_cast<std::size_t>(world.topology().nodes())),
      node_of_rank_(world.topology().node_of_rank) {
  heard_[static_cast<std::size_t>(node_)] = 1;
  const comm::Topology& topology = world.topology();
  for (int rank = 0; rank < world.size(); ++rank) {
    if (topology.node_of_rank[static_cast<std::size_t>(rank)] == node_) local_ranks_.push_back(rank);
  }
  if (topology.nodes() == 1) return;
  Place mine{};
  if (::getrandom(&mine.job, sizeof mine.job, 0) != sizeof mine.job)
    mine.job = static_cast<std::uint64_t>(now_ns());
  list_addresses(mine);
  socket_ = open_socket(mine);
  std::vector<Place> places(static_cast<std::size_t>(world.size()));
  world.all_gather(&mine, sizeof mine, places.data());
  job_ = places.front().job;
  for (std::size_t rank = 0; rank < places.size(); ++rank) {
    const Place& place = places[rank];
    if (topology.node_of_rank[rank] == node_ || topology.local_rank_of_rank[rank] != 0 || place.port == 0)
      continue;
    for (std::uint16_t i = 0; i < place.count; ++i) {
      sockaddr_in address{};
      address.sin_family = AF_INET;
      address.sin_port = place.port;
      address.sin_addr.s_addr = place.addresses[i];
      peers_.push_back(address);
    }
  }
}

Heartbeat::~Heartbeat() {
  if (socket_ >= 0) ::close(socket_);
}

void Heartbeat::send(const Message& message, std::size_t bytes) {
  for (const sockaddr_in& peer : peers_)
    ::sendto(socket_, &message, bytes, MSG_DONTWAIT | MSG_NOSIGNAL, reinterpret_cast<const sockaddr*>(&peer),
             sizeof peer);
}

void Heartbeat::send_verdict() {
  if (socket_ < 0) return;
  Message message{};
  message.job = job_;
  message.kind = Message::verdict;
  message.node = static_cast<std::uint32_t>(node_);
  send(message, offsetof(Message, entries));
}

void Heartbeat::send() {
  if (socket_ < 0) return;
  Message message{};
  message.job = job_;
  message.kind = Message::records;
  message.node = static_cast<std::uint32_t>(node_);
  for (std::size_t first = 0; first < local_ranks_.size(); first += most_records) {
    message.count = 0;
    for (std::size_t i = first; i < std::min<std::size_t>(local_ranks_.size(), first + most_records); ++i) {
      const RankRecord& record = board_.rank(local_ranks_[i]);
      message.entries[message.count++] = {
          .rank = static_cast<std::uint32_t>(local_ranks_[i]),
          .unused = 0,
          .copy = {.marks = record.where.marks.load(),
                   .beats = record.beats.load(),
                   .looks = record.where.looks.load(),
                   .step = record.where.step.load(),
                   .age_ns = now_ns() - record.where.since_ns.load(),
                   .phase = static_cast<std::uint32_t>(record.where.phase.load()),
                   .waiting = record.where.waiting.load(),
                   .bucket = record.where.bucket.load(),
                   .pid = record.pid.load(),
                   .step_ms = record.where.step_ms.load(),
                   .polling = record.where.polling.load()}};
    }
    send(message, offsetof(Message, entries) + message.count * sizeof(Message::Entry));
  }
}

void Heartbeat::receive() {
  if (socket_ < 0) return;
  Message message{};
  for (ssize_t bytes = 0; (bytes = ::recv(socket_, &message, sizeof message, MSG_DONTWAIT)) > 0;) {
    const auto got = static_cast<std::size_t>(bytes);
    if (got < offsetof(Message, entries) || message.job != job_ || message.node >= heard_.size() ||
        static_cast<int>(message.node) == node_)
      continue;
    if (message.kind == Message::verdict) {
      board_.head().verdict.store(BoardHead::said);
      continue;
    }
    if (message.count > most_records ||
        got != offsetof(Message, entries) + message.count * sizeof(Message::Entry))
      continue;
    heard_[message.node] = 1;
    for (std::uint32_t i = 0; i < message.count; ++i) {
      const auto [rank, unused, copy] = message.entries[i];
      if (rank >= node_of_rank_.size() || node_of_rank_[rank] != static_cast<int>(message.node)) continue;
      RankRecord& record = board_.rank(static_cast<int>(rank));
      if (copy.beats + copy.marks < record.beats.load() + record.where.marks.load()) continue;  // overtaken
      record.where.marks.store(copy.marks);
      record.where.step.store(copy.step);
      record.where.since_ns.store(now_ns() - copy.age_ns);
      record.where.phase.store(static_cast<progress::Phase>(copy.phase));
      record.where.waiting.store(copy.waiting);
      record.where.polling.store(copy.polling);
      record.where.looks.store(copy.looks);
      record.where.bucket.store(copy.bucket);
      record.where.step_ms.store(copy.step_ms);
      record.pid.store(copy.pid);
      record.beats.store(copy.beats);
    }
  }
}

}  // namespace lockstep::train
