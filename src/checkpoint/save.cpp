// The write path: agree, digest, lay out, write, sync, agree, rename, sync the directory.
#include "lockstep/checkpoint/save.h"

#include <algorithm>
#include <iterator>
#include <string_view>
#include <vector>

#include "checkpoint/digest.h"
#include "checkpoint/layout.h"
#include "checkpoint/manifest.h"
#include "checkpoint/shared_digests.h"
#include "checkpoint/shares.h"
#include "checkpoint/storage.h"
#include "lockstep/base/clock.h"
#include "lockstep/base/error.h"
#include "lockstep/comm/agreement.h"

namespace lockstep::checkpoint {
namespace {

/// The elements in memory, in the order of the index's tensors.
std::vector<const std::byte*> elements_of(const Contents& contents) {
  std::vector<const std::byte*> elements;
  for (const Section& section : contents.sections) {
    for (const NamedTensor& tensor : section.tensors)
      elements.push_back(static_cast<const std::byte*>(tensor.value.raw()));
  }
  return elements;
}

std::string first_difference(std::string_view a, std::string_view b) {
  const auto line_at = [](std::string_view& text) {
    const std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(text.size(), line.size() + 1));
    return line;
  };
  while (!a.empty() || !b.empty()) {
    const std::string_view line_a = line_at(a), line_b = line_at(b);
    if (line_a != line_b) return fmt::format("'{}' against '{}'", line_a, line_b);
  }
  return "";
}

/// Ranks must list the same things: one comparison of digests, and texts only if they differ.
void check_same_everywhere(const FileIndex& index, comm::Communicator& communicator) {
  const std::string text = digested_text(index);
  const std::uint64_t mine = digest_of(text.data(), text.size());
  std::vector<std::uint64_t> all(static_cast<std::size_t>(communicator.size()));
  communicator.all_gather(&mine, sizeof mine, all.data());
  std::size_t other = 0;
  while (other < all.size() && all[other] == all[0]) ++other;
  if (other == all.size()) return;
  const std::vector<std::string> texts = communicator.all_gather_texts(text);
  throw FailureError("{}: cannot save: rank 0 and rank {} hold different things: {}", index.path, other,
                     first_difference(texts[0], texts[other]));
}

/// The file under its temporary name. Gone again at the end unless it was published.
class Draft {
 public:
  Draft(std::string path, comm::Communicator& communicator, const SaveOptions& options)
      : path_(std::move(path)),
        temporary_(temporary_path(path_, options.mark)),
        communicator_(communicator),
        options_(options) {}
  ~Draft() {
    if (made_) remove_quietly(temporary_);
  }
  Draft(const Draft&) = delete;
  Draft& operator=(const Draft&) = delete;

  /// Rank 0 lays the file out and tells where each tensor lies.
  void lay_out(FileIndex& index) {
    comm::together(communicator_, [&] {
      if (communicator_.rank() != 0) return;
      if (options_.check_may_write) options_.check_may_write();
      OpenFile file(temporary_, OpenFile::Mode::create_or_truncate);
      made_ = true;
      checkpoint::lay_out(index, file);
    });
    std::vector<std::uint64_t> offsets;
    for (const TensorEntry& tensor : index.tensors) offsets.push_back(tensor.offset);
    communicator_.broadcast(offsets.data(), offsets.size() * sizeof(std::uint64_t), 0);
    for (std::size_t t = 0; t < offsets.size(); ++t) index.tensors[t].offset = offsets[t];
  }

  /// This rank's share of the elements, synced. Calls neither HDF5 nor MPI.
  void write_share(const FileIndex& index, const std::vector<const std::byte*>& elements) {
    std::vector<Place> places;
    for (const TensorEntry& tensor : index.tensors) places.push_back({tensor.offset, tensor.bytes});
    const std::vector<Piece> pieces = file_share(places, communicator_.rank(), communicator_.size());
    if (pieces.empty() && communicator_.rank() != 0) return;
    OpenFile file(temporary_, OpenFile::Mode::write);
    for (const Piece& piece : pieces)
      file.write_at(piece.offset, elements[piece.tensor] + piece.from, piece.bytes);
    file.sync();
  }

  /// Gives the file its name. Every rank has synced.
  void publish() {
    comm::together(communicator_, [&] {
      if (communicator_.rank() != 0) return;
      if (options_.check_may_write) options_.check_may_write();
      rename_file(temporary_, path_);
      made_ = false;
      sync_directory(directory_of(path_));
    });
  }

 private:
  std::string path_, temporary_;
  comm::Communicator& communicator_;
  const SaveOptions& options_;
  bool made_ = false;
};

}  // namespace

void save_file(const std::string& path, const Contents& early, comm::Communicator& communicator,
               const SaveOptions& options) {
  Contents contents = early;
  for (const LateSections& late : early.late)
    std::ranges::move(late.to_save(communicator), std::back_inserter(contents.sections));
  FileIndex index;
  comm::together(communicator, [&] {
    index = index_of(contents);
    index.path = path;
  });
  check_same_everywhere(index, communicator);

  const std::vector<const std::byte*> elements = elements_of(contents);
  std::vector<std::uint64_t> tensor_bytes;
  for (const TensorEntry& tensor : index.tensors) tensor_bytes.push_back(tensor.bytes);
  const std::vector<BlockRange> shares = block_shares(tensor_bytes, communicator.size());
  const std::vector<std::uint64_t> mine =
      digest_share(tensor_bytes, shares[static_cast<std::size_t>(communicator.rank())],
                   [&](std::size_t tensor, std::uint64_t offset, std::uint64_t bytes) {
                     return digest_of(elements[tensor] + offset, bytes);
                   });
  const std::vector<std::uint64_t> digests = combine_digests(tensor_bytes, shares, mine, communicator);
  for (std::size_t t = 0; t < digests.size(); ++t) index.tensors[t].digest = digests[t];
  index.digest = root_digest(index);
  index.world_size = communicator.size();
  index.created = utc_now();

  Draft draft(path, communicator, options);
  draft.lay_out(index);
  comm::together(communicator, [&] { draft.write_share(index, elements); });
  draft.publish();
}

}  // namespace lockstep::checkpoint
