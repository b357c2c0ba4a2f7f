#include "train/watch/rank_status.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/clock.h"
#include "lockstep/base/error.h"
#include "lockstep/comm/agreement.h"

namespace lockstep::train {
namespace {

using progress::RankStatus;

/// The addresses at which a rank receives.
struct Endpoint {
  static constexpr std::size_t max_addresses = 8;
  std::uint64_t job;  ///< a random number; only that of rank 0 is used
  std::uint32_t addresses[max_addresses];
  std::uint16_t port;  ///< 0: the rank could not open a socket
  std::uint16_t count;
  std::uint32_t unused;
};

/// The addresses of this node that other nodes may reach.
void list_addresses(Endpoint& endpoint) {
  ifaddrs* list = nullptr;
  if (::getifaddrs(&list) != 0) return;
  for (const ifaddrs* entry = list; entry && endpoint.count < Endpoint::max_addresses;
       entry = entry->ifa_next) {
    if (!entry->ifa_addr || entry->ifa_addr->sa_family != AF_INET) continue;
    if ((entry->ifa_flags & IFF_UP) == 0 || (entry->ifa_flags & IFF_LOOPBACK) != 0) continue;
    endpoint.addresses[endpoint.count++] =
        reinterpret_cast<const sockaddr_in*>(entry->ifa_addr)->sin_addr.s_addr;
  }
  ::freeifaddrs(list);
}

/// A port of the system's choice; 0: none.
std::uint16_t bind_any_port(int socket) {
  sockaddr_in any{};
  any.sin_family = AF_INET;
  any.sin_addr.s_addr = htonl(INADDR_ANY);
  socklen_t length = sizeof any;
  const bool bound = ::bind(socket, reinterpret_cast<sockaddr*>(&any), sizeof any) == 0 &&
                     ::getsockname(socket, reinterpret_cast<sockaddr*>(&any), &length) == 0;
  return bound ? any.sin_port : std::uint16_t{0};
}

/// The name of a shared memory object, which is removed at the end of the scope. The memory then ends with
/// the processes that map it.
struct TemporaryName {
  std::string text;
  ~TemporaryName() {
    if (!text.empty()) ::shm_unlink(text.c_str());
  }
};

/// Unique on this node: no two processes of one name space share process number and time.
std::string unique_name() {
  timespec now{};
  ::clock_gettime(CLOCK_REALTIME, &now);
  return fmt::format("/lockstep-{}-{:x}{:08x}", ::getpid(), now.tv_sec, now.tv_nsec);
}

}  // namespace

struct RankStatusTable::Message {
  static constexpr std::size_t max_rows = 12;  // below 1400 bytes, which no network splits
  struct Entry {
    std::int64_t rank;
    RankStatus::Snapshot status;
  };
  std::uint64_t job;
  std::int64_t sent_ns;  // on the clock of the sending node
  std::uint32_t node, job_ends, rows, unused;
  Entry entries[max_rows];

  std::size_t bytes() const { return offsetof(Message, entries) + rows * sizeof(Entry); }
};

RankStatusTable::Descriptor::~Descriptor() {
  if (number >= 0) ::close(number);
}

void RankStatusTable::Unmap::operator()(std::byte* memory) const { ::munmap(memory, bytes); }

RankStatusTable::RankStatusTable(comm::HostGroup& world)
    : node_of_rank_(world.topology().node_of_rank),
      node_(node_of_rank_[static_cast<std::size_t>(world.rank())]),
      newest_ns_(static_cast<std::size_t>(world.topology().nodes())) {
  for (int rank = 0; rank < world.size(); ++rank) {
    if (is_local(rank)) local_ranks_.push_back(rank);
  }
  share_memory(world);
  RankStatus& own = (*this)[world.rank()];
  progress::publish_in(&own);
  own.pid = ::getpid();
  if (world.topology().nodes() > 1) find_peers(world);
  world.barrier();
}

void RankStatusTable::share_memory(comm::HostGroup& world) {
  const bool creates = world.rank() == local_ranks_.front();
  const TemporaryName name{creates ? unique_name() : ""};
  comm::run_on_all(world, [&] {
    if (creates) map(name.text, true);
  });
  const std::vector<std::string> names = world.all_gather_texts(name.text);
  comm::run_on_all(world, [&] {
    if (!creates) map(names[static_cast<std::size_t>(local_ranks_.front())], false);
  });
}

void RankStatusTable::map(const std::string& name, bool create) {
  const std::size_t bytes = sizeof(Header) + static_cast<std::size_t>(ranks()) * sizeof(Row);
  const auto fail = [&](int error) {
    const bool refused = error == EACCES || error == EPERM || error == EROFS;
    throw UsageError("/dev/shm: cannot allocate {} bytes of shared memory for the watchdog: {}; {}", bytes,
                     std::strerror(error),
                     refused ? "let this user write there, as chmod 1777 /dev/shm does" : "make room there");
  };
  file_.number = ::shm_open(name.c_str(), O_RDWR | (create ? O_CREAT | O_EXCL : 0), 0600);
  if (file_.number < 0) fail(errno);
  if (create) {
    const int error = ::posix_fallocate(file_.number, 0, static_cast<off_t>(bytes));
    if (error != 0) fail(error);
  }
  void* const memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file_.number, 0);
  if (memory == MAP_FAILED) fail(errno);
  memory_ = {static_cast<std::byte*>(memory), Unmap{bytes}};
  if (!create) return;
  (new (memory) Header)->ranks = static_cast<std::uint32_t>(ranks());
  for (int rank = 0; rank < ranks(); ++rank)
    new (memory_.get() + sizeof(Header) + static_cast<std::size_t>(rank) * sizeof(Row)) Row;
}

void RankStatusTable::find_peers(comm::HostGroup& world) {
  Endpoint own{};
  if (::getrandom(&own.job, sizeof own.job, 0) != sizeof own.job)
    own.job = static_cast<std::uint64_t>(monotonic_ns());
  list_addresses(own);
  socket_.number = ::socket(AF_INET, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (socket_.number >= 0) own.port = bind_any_port(socket_.number);
  std::vector<Endpoint> endpoints(static_cast<std::size_t>(world.size()));
  world.all_gather(&own, sizeof own, endpoints.data());
  job_ = endpoints.front().job;
  const std::vector<int>& local_rank_of_rank = world.topology().local_rank_of_rank;
  for (std::size_t rank = 0; rank < endpoints.size(); ++rank) {
    const Endpoint& endpoint = endpoints[rank];
    if (node_of_rank_[rank] == node_ || local_rank_of_rank[rank] != 0 || endpoint.port == 0) continue;
    for (std::uint16_t i = 0; i < endpoint.count; ++i) {
      sockaddr_in address{};
      address.sin_family = AF_INET;
      address.sin_port = endpoint.port;
      address.sin_addr.s_addr = endpoint.addresses[i];
      peers_.push_back(address);
    }
  }
}

void RankStatusTable::send(bool job_ends) const {
  if (socket_.number < 0) return;
  Message message{};
  message.job = job_;
  message.sent_ns = monotonic_ns();
  message.node = static_cast<std::uint32_t>(node_);
  message.job_ends = job_ends;
  for (std::size_t first = 0; first < local_ranks_.size(); first += message.rows) {
    message.rows = 0;
    for (std::size_t i = first; i < std::min(local_ranks_.size(), first + Message::max_rows); ++i)
      message.entries[message.rows++] = {local_ranks_[i], (*this)[local_ranks_[i]].load()};
    for (const sockaddr_in& peer : peers_)
      ::sendto(socket_.number, &message, message.bytes(), MSG_DONTWAIT | MSG_NOSIGNAL,
               reinterpret_cast<const sockaddr*>(&peer), sizeof peer);
  }
}

void RankStatusTable::receive() {
  if (socket_.number < 0) return;
  Message message{};
  for (ssize_t bytes = 0; (bytes = ::recv(socket_.number, &message, sizeof message, MSG_DONTWAIT)) > 0;) {
    const auto received = static_cast<std::size_t>(bytes);
    if (received < offsetof(Message, entries) || message.job != job_ || message.node >= newest_ns_.size() ||
        message.rows > Message::max_rows || received != message.bytes())
      continue;
    if (message.job_ends != 0) job_end() = JobEnd::reported;
    std::int64_t& newest_ns = newest_ns_[message.node];
    if (message.sent_ns < newest_ns) continue;  // a newer message arrived earlier
    newest_ns = message.sent_ns;
    const std::int64_t clock_offset_ns = monotonic_ns() - message.sent_ns;
    for (std::uint32_t i = 0; i < message.rows; ++i) {
      const auto& [rank, snapshot] = message.entries[i];
      if (rank < 0 || rank >= ranks() || is_local(static_cast<int>(rank))) continue;
      RankStatus status;
      status.store(snapshot);
      status.phase_since_ns += clock_offset_ns;
      (*this)[static_cast<int>(rank)].store(status.load());
    }
  }
}

}  // namespace lockstep::train
