#include "lockstep/checkpoint/verify.h"

#include <fmt/format.h>

#include "checkpoint/block_reader.h"
#include "checkpoint/shared_digests.h"
#include "lockstep/base/error.h"
#include "lockstep/checkpoint/index.h"
#include "lockstep/comm/agreement.h"

namespace lockstep::checkpoint {
namespace {

void verify_tensors(const FileIndex& index, comm::Communicator& communicator, VerifyReport& report) {
  std::vector<std::uint64_t> tensor_bytes;
  for (const TensorEntry& tensor : index.tensors) tensor_bytes.push_back(tensor.bytes);
  const std::vector<BlockRange> shares = block_shares(tensor_bytes, communicator.size());
  std::vector<std::uint64_t> mine;
  comm::together(communicator, [&] {
    BlockReader reader(index);
    mine = digest_share(tensor_bytes, shares[static_cast<std::size_t>(communicator.rank())],
                        [&](std::size_t tensor, std::uint64_t offset, std::uint64_t bytes) {
                          const auto block = reader.read(index.tensors[tensor], offset, bytes);
                          return digest_of(block.data(), block.size());
                        });
  });
  const std::vector<std::uint64_t> digests = combine_digests(tensor_bytes, shares, mine, communicator);
  for (std::size_t t = 0; t < digests.size(); ++t) {
    if (digests[t] == index.tensors[t].digest) continue;
    report.problems.push_back(fmt::format("{}: {}: digest {} does not fit the manifest's {}", index.path,
                                          index.tensors[t].path(), to_hex(digests[t]),
                                          to_hex(index.tensors[t].digest)));
  }
}

}  // namespace

VerifyReport verify(const std::string& path, comm::Communicator& communicator) {
  VerifyReport report;
  report.path = path;
  try {
    const FileIndex index = read_index(path, communicator);
    report.step = index.position.step;
    report.tensors = static_cast<std::int64_t>(index.tensors.size());
    report.payload_bytes = index.payload_bytes();
    verify_tensors(index, communicator, report);
  } catch (const DataError& error) {
    report.problems.push_back(error.what());
  }
  return report;
}

}  // namespace lockstep::checkpoint
