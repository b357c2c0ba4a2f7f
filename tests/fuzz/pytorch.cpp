// A file of torch.save: any bytes give tensors within their storages, or one DataError of a line.
//
// Input: the file. The seeds have no checksums, so that a changed pickle gets as far as the stack machine.
#include "checkpoint/weights/pytorch.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <string>

#include "lockstep/base/error.h"

namespace {

void require(bool holds) {
  if (!holds) std::abort();
}

/// A file in memory, under a name.
class MemoryFile {
 public:
  MemoryFile() : descriptor_(::memfd_create("fuzzed", 0)) { require(descriptor_ >= 0); }
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;
  ~MemoryFile() { ::close(descriptor_); }

  std::string path() const { return "/proc/self/fd/" + std::to_string(descriptor_); }
  void set(const std::uint8_t* data, std::size_t bytes) {
    require(::ftruncate(descriptor_, 0) == 0);
    require(::pwrite(descriptor_, data, bytes, 0) == static_cast<ssize_t>(bytes));
  }

 private:
  int descriptor_;
};

void check_promises(const lockstep::checkpoint::PytorchFile& file, std::size_t file_bytes) {
  std::uint64_t all_bytes = 0;
  for (std::size_t i = 0; i < file.views().size(); ++i) {
    const lockstep::checkpoint::PytorchTensor& tensor = file.views()[i];
    require(tensor.shape.size() <= 32 && tensor.strides.size() == tensor.shape.size());
    std::uint64_t bytes = tensor.element_bytes;
    for (const std::int64_t extent : tensor.shape) {
      require(extent >= 0);
      bytes *= static_cast<std::uint64_t>(extent);
    }
    require(tensor.bytes == bytes);
    all_bytes += bytes;
    std::string elements(tensor.bytes, '\0');
    file.read(i, std::as_writable_bytes(std::span(elements)));
  }
  require(all_bytes <= std::max<std::uint64_t>(std::uint64_t{1} << 20, 16 * file_bytes));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t bytes) {
  static MemoryFile memory;
  const std::string path = memory.path();
  memory.set(data, bytes);
  try {
    check_promises(lockstep::checkpoint::PytorchFile(path), bytes);
  } catch (const lockstep::DataError& error) {
    const std::string_view what = error.what();
    require(what.starts_with(path) && what.find('\n') == std::string_view::npos && what.size() < 2000);
  }
  return 0;
}
