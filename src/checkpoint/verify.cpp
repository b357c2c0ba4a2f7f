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
  const std::vector<Place> places = places_of(index);
  std::vector<std::uint64_t> mine;
  comm::together(communicator, [&] {
    BlockReader reader(index);
    for (const Piece& piece : file_share(places, communicator.rank(), communicator.size())) {
      const BlockRun run = blocks_begun_in(piece);
      for (std::uint64_t block = run.first; block < run.first + run.count; ++block) {
        const TensorEntry& tensor = index.tensors[run.tensor];
        const std::uint64_t begin = block * block_bytes;
        const auto bytes = reader.read(tensor, begin, end_of_block(block, tensor.bytes) - begin);
        mine.push_back(digest_of(bytes.data(), bytes.size()));
      }
    }
  });
  const std::vector<std::uint64_t> digests = combine_digests(places, mine, communicator);
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
