// What the checkpoint tests share: folders that all ranks see, and a state dict with awkward sizes.
#pragma once

#include <signal.h>
#include <sys/resource.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/base/random.h"
#include "lockstep/checkpoint/state_dict.h"
#include "lockstep/comm/communicator.h"
#include "support/mentions.h"
#include "support/temporary_folder.h"
#include "support/world.h"

namespace lockstep::test {

/// One folder for all ranks of a group, removed when all are done with it.
class SharedFolder {
 public:
  explicit SharedFolder(comm::HostGroup& group) : group_(group) {
    std::string path;
    if (group.rank() == 0) {
      own_ = std::make_unique<TemporaryFolder>();
      path = own_->path().string();
    }
    path_ = group.all_gather_texts(path)[0];
  }
  ~SharedFolder() { group_.barrier(); }

  const std::string& path() const { return path_; }
  std::string file(const std::string& name) const { return path_ + "/" + name; }

 private:
  comm::HostGroup& group_;
  std::unique_ptr<TemporaryFolder> own_;
  std::string path_;
};

/// Fills with bytes that depend on the seed and the name only.
inline void fill_with_any_bits(const checkpoint::NamedTensor& tensor, std::uint64_t seed) {
  const Random random({.seed = seed, .purpose = purpose_of(tensor.name)});
  auto* bytes = static_cast<unsigned char*>(tensor.value.raw());
  for (std::size_t i = 0; i < tensor.value.bytes(); i += 16) {
    const auto words = random.block(i / 16);
    std::memcpy(bytes + i, words.data(), std::min<std::size_t>(16, tensor.value.bytes() - i));
  }
}

/// The same, but for a bit of the exponent that is never set: all numbers are finite.
inline void fill(const checkpoint::NamedTensor& tensor, std::uint64_t seed) {
  fill_with_any_bits(tensor, seed);
  const DType dtype = tensor.value.dtype();
  if (dtype == DType::int64 || dtype == DType::int32 || dtype == DType::uint8) return;
  auto* bytes = static_cast<unsigned char*>(tensor.value.raw());
  const std::size_t step = bytes_of(dtype);
  for (std::size_t last = step - 1; last < tensor.value.bytes(); last += step) bytes[last] &= 0xbf;
}

inline void fill(const checkpoint::StateDict& state_dict, std::uint64_t seed) {
  for (const checkpoint::Section& section : state_dict.sections) {
    for (const checkpoint::NamedTensor& tensor : section.tensors)
      fill(tensor, seed + purpose_of(section.path));
  }
}

/// Sizes about the edges of 1 MiB blocks, scalars and tensors without elements; zeroed.
inline checkpoint::StateDict awkward_state_dict() {
  constexpr std::int64_t block = (std::int64_t{1} << 20) / 4;  // elements
  using checkpoint::Section;
  checkpoint::StateDict state_dict;
  Section model{"model", {}, {}};
  model.tensors = {{"blocks.0.one", Tensor::zeros({1})},
                   {"blocks.0.below", Tensor::zeros({block - 1})},
                   {"blocks.0.exact", Tensor::zeros({block / 8, 8})},
                   {"blocks.0.above", Tensor::zeros({block + 1})},
                   {"blocks.1.empty", Tensor::zeros({0, 7})},
                   {"blocks.1.bytes", Tensor::zeros({3, 333'333}, DType::uint8)},
                   {"blocks.1.num_batches_tracked", Tensor::zeros(Shape{}, DType::int64)},
                   {"head.weight", Tensor::zeros({5, 3, 2, 2, 1, 2})}};
  Section ema{"ema/0.999", {}, {{"rate", 0.999, {}}, {"updates", std::int64_t{41}, {}}}};
  ema.tensors = {{"head.weight", Tensor::zeros({5, 3, 2, 2, 1, 2})},
                 {"blocks.0.above", Tensor::zeros({block + 1})}};
  Section optimizer{
      "optimizer", {}, {{"algorithm", std::string("adamw"), {}}, {"step", std::int64_t{42}, {}}}};
  Section slot{"optimizer/exp_avg", {{"blocks.0.above", Tensor::zeros({2 * block + 3})}}, {}};
  state_dict.sections = {model, ema, optimizer, slot};
  state_dict.position = {42, 3, 42 * 64, 4, 18'446'744'073'709'551'615u};
  state_dict.config = "[train]\nsteps = 100\n";
  state_dict.provenance = {{"version", "1.2.3"}, {"hosts", "node1 node2"}};
  return state_dict;
}

/// A copy that shares no memory.
inline checkpoint::StateDict with_own_memory(const checkpoint::StateDict& state_dict) {
  checkpoint::StateDict copy = state_dict;
  for (checkpoint::Section& section : copy.sections) {
    for (checkpoint::NamedTensor& tensor : section.tensors) {
      const Tensor own = Tensor::empty(tensor.value.shape(), tensor.value.dtype());
      std::memcpy(own.raw(), tensor.value.raw(), own.bytes());
      tensor.value = own;
    }
  }
  return copy;
}

inline bool same_bytes(const checkpoint::StateDict& a, const checkpoint::StateDict& b) {
  for (std::size_t s = 0; s < a.sections.size(); ++s) {
    for (std::size_t t = 0; t < a.sections[s].tensors.size(); ++t) {
      const Tensor &x = a.sections[s].tensors[t].value, &y = b.sections[s].tensors[t].value;
      if (x.bytes() != y.bytes() || std::memcmp(x.raw(), y.raw(), x.bytes()) != 0) return false;
    }
  }
  return true;
}

inline std::string read_bytes(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

inline void write_bytes(const std::string& path, const std::string& bytes) {
  std::filesystem::remove(path);  // ext4 waits for the disk when a file is cut and written again
  std::ofstream(path, std::ios::binary) << bytes;
}

/// The system refuses to let this process make a file longer than that: what a full disk is to one rank only.
class ShortFiles {
 public:
  explicit ShortFiles(rlim_t max_bytes) {
    on_excess_ = ::signal(SIGXFSZ, SIG_IGN);
    ::getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit limit{max_bytes, before_.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &limit);
  }
  ShortFiles(const ShortFiles&) = delete;
  ShortFiles& operator=(const ShortFiles&) = delete;
  ~ShortFiles() {
    ::setrlimit(RLIMIT_FSIZE, &before_);
    ::signal(SIGXFSZ, on_excess_);
  }

 private:
  rlimit before_{};
  sighandler_t on_excess_ = SIG_DFL;
};

inline std::vector<std::string> names_in(const std::string& directory) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(directory))
    names.push_back(entry.path().filename());
  std::sort(names.begin(), names.end());
  return names;
}

/// A state dict to save, and a path that all ranks share.
struct Sample {
  comm::CpuCommunicator& world = test::world();
  SharedFolder folder{world};
  std::string path = folder.file("a.h5");
  checkpoint::StateDict state_dict = awkward_state_dict();
  Sample() { fill(state_dict, 7); }
};

}  // namespace lockstep::test
