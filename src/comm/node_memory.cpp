#include "comm/node_memory.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <string>
#include <utility>
#include <vector>

#include "lockstep/comm/agreement.h"

namespace lockstep::comm {
namespace {

/// A file without a name, in memory: unlike /dev/shm it has no limit but the memory, and leaves nothing.
class MemoryFile {
 public:
  MemoryFile() = default;
  explicit MemoryFile(int descriptor) : descriptor_(descriptor) {}
  MemoryFile(MemoryFile&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)) {}
  MemoryFile& operator=(MemoryFile&& other) noexcept {
    std::swap(descriptor_, other.descriptor_);
    return *this;
  }
  ~MemoryFile() {
    if (descriptor_ >= 0) ::close(descriptor_);
  }

  int descriptor() const { return descriptor_; }
  /// Tells files of a node apart: another process may have another file under the same path.
  std::string identity() const {
    struct stat status {};
    return ::fstat(descriptor_, &status) == 0 ? fmt::format("{} {}", status.st_dev, status.st_ino) : "";
  }

 private:
  int descriptor_ = -1;
};

}  // namespace

std::shared_ptr<std::byte[]> allocate_on_node(HostGroup& world, std::size_t bytes) {
  const Topology& topology = world.topology();
  const auto rank = static_cast<std::size_t>(world.rank());
  std::size_t first = 0;  // rank of the node
  while (topology.node_of_rank[first] != topology.node_of_rank[rank]) ++first;
  MemoryFile file;
  std::string path, identity;
  if (first == rank) {
    file = MemoryFile(::memfd_create("lockstep-data", MFD_CLOEXEC));
    path = fmt::format("/proc/{}/fd/{}", ::getpid(), file.descriptor());
    if (::ftruncate(file.descriptor(), static_cast<off_t>(bytes)) == 0) identity = file.identity();
  }
  const std::vector<std::string> paths = world.all_gather_texts(path),
                                 identities = world.all_gather_texts(identity);
  if (first != rank) {
    file = MemoryFile(::open(paths[first].c_str(), O_RDWR | O_CLOEXEC));
    identity = file.identity();
  }
  void* memory = MAP_FAILED;
  if (!identity.empty() && identity == identities[first])
    memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file.descriptor(), 0);
  std::shared_ptr<std::byte[]> mapped;
  if (memory != MAP_FAILED)
    mapped.reset(static_cast<std::byte*>(memory), [bytes](std::byte* at) { ::munmap(at, bytes); });
  return bits_of_any(world, mapped ? 0 : 1) == 0 ? mapped : nullptr;
}

void exchange_between_nodes(HostGroup& world, std::span<const std::span<std::byte>> part_of_rank) {
  const Topology& topology = world.topology();
  const std::size_t ranks = part_of_rank.size(), mine = static_cast<std::size_t>(world.rank());
  std::vector<std::span<const std::byte>> to_rank(ranks);
  std::vector<std::span<std::byte>> from_rank(ranks);
  for (std::size_t rank = 0; rank < ranks; ++rank) {  // the first rank of each other node receives
    if (topology.node_of_rank[rank] == topology.node_of_rank[mine]) continue;
    if (topology.local_rank_of_rank[rank] == 0) to_rank[rank] = part_of_rank[mine];
    if (topology.local_rank_of_rank[mine] == 0) from_rank[rank] = part_of_rank[rank];
  }
  world.all_to_all(to_rank, from_rank);
  world.barrier();  // ranks that receive nothing wait for the first one of their node
}

}  // namespace lockstep::comm
