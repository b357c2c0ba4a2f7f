#include "checkpoint/saving.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <string_view>

#include "checkpoint/digest.h"
#include "checkpoint/manifest.h"
#include "checkpoint/shared_digests.h"
#include "checkpoint/storage.h"
#include "lockstep/base/clock.h"
#include "lockstep/base/error.h"
#include "lockstep/comm/agreement.h"

namespace lockstep::checkpoint {
namespace {

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

}  // namespace

Saving::Saving(std::string path, const Contents& early, comm::Communicator& communicator, SaveOptions options)
    : path_(std::move(path)),
      temporary_(temporary_path(path_, options.mark)),
      communicator_(communicator),
      options_(std::move(options)) {
  Contents contents = early;
  for (const LateSections& late : early.late)
    std::ranges::move(late.to_save(communicator_), std::back_inserter(contents.sections));
  comm::together(communicator_, [&] {
    index_ = index_of(contents);
    index_.path = path_;
  });
  check_same_everywhere(index_, communicator_);
  index_.world_size = communicator_.size();
  index_.created = utc_now();
  try {
    lay_out();
    share_work(contents);
  } catch (...) {
    if (made_) remove_quietly(temporary_);
    throw;
  }
}

Saving::~Saving() {
  if (made_) remove_quietly(temporary_);
}

/// Rank 0 lays the file out and tells where each tensor lies.
void Saving::lay_out() {
  comm::together(communicator_, [&] {
    if (communicator_.rank() != 0) return;
    if (options_.check_may_write) options_.check_may_write();
    OpenFile file(temporary_, OpenFile::Mode::create_or_truncate);
    made_ = true;
    // A file that may not grow to its size is an error of ours here, before it can be one of HDF5's.
    file.truncate(most_file_bytes(index_));
    layout_ = std::make_unique<Layout>(index_);
  });
  std::vector<std::uint64_t> offsets;
  for (const TensorEntry& tensor : index_.tensors) offsets.push_back(tensor.offset);
  communicator_.broadcast(offsets.data(), offsets.size() * sizeof(std::uint64_t), 0);
  for (std::size_t t = 0; t < offsets.size(); ++t) index_.tensors[t].offset = offsets[t];
}

void Saving::share_work(const Contents& contents) {
  for (const Section& section : contents.sections) {
    for (const NamedTensor& tensor : section.tensors) held_.push_back(tensor.value);
  }
  for (const Piece& piece : file_share(places_of(index_), communicator_.rank(), communicator_.size())) {
    const BlockRun run = blocks_begun_in(piece);
    const std::uint64_t digested_to =
        run.count == 0 ? 0 : end_of_block(run.first + run.count - 1, index_.tensors[piece.tensor].bytes);
    const auto* elements = static_cast<const std::byte*>(held_[piece.tensor].raw());
    extents_.push_back(
        {piece, elements + piece.from, std::max(piece.from + piece.bytes, digested_to) - piece.from});
  }
}

std::uint64_t Saving::copy_bytes() const {
  std::uint64_t bytes = 0;
  for (const Extent& extent : extents_) bytes += extent.readable_bytes;
  return bytes;
}

void Saving::copy_share(std::byte* memory) {
  for (Extent& extent : extents_) {
    std::memcpy(memory, extent.data, extent.readable_bytes);
    extent.data = memory;
    memory += extent.readable_bytes;
  }
  held_.clear();
}

/// Block by block, so that what is digested is in the cache when it is written.
template <class File>
void Saving::write_extents(File& file) {
  for (const Extent& extent : extents_) {
    const Piece& piece = extent.piece;
    const std::uint64_t tensor_bytes = index_.tensors[piece.tensor].bytes;
    for (std::uint64_t at = piece.from; at < piece.from + piece.bytes;) {
      const std::uint64_t block = at / block_bytes;
      const std::byte* const data = extent.data + (at - piece.from);
      if (at % block_bytes == 0) digests_.push_back(digest_of(data, end_of_block(block, tensor_bytes) - at));
      const std::uint64_t end = std::min((block + 1) * block_bytes, piece.from + piece.bytes);
      file.write_at(piece.offset + (at - piece.from), data, end - at);
      at = end;
    }
  }
  held_.clear();
}

void Saving::write_share() {
  if (extents_.empty()) return;
  OpenFile file(temporary_, OpenFile::Mode::write);
  write_extents(file);
  file.sync();
}

void Saving::write_share_through_mpi() {
  std::unique_ptr<comm::SharedFile> file;
  comm::together(communicator_, [&] { file = communicator_.open_shared_file(temporary_); });
  if (!file) return write_share();
  comm::together(communicator_, [&] { write_extents(*file); });
  comm::together(communicator_, [&] { file->sync(); });
}

void Saving::complete() {
  const std::vector<std::uint64_t> digests = combine_digests(places_of(index_), digests_, communicator_);
  for (std::size_t t = 0; t < digests.size(); ++t) index_.tensors[t].digest = digests[t];
  index_.digest = root_digest(index_);
  comm::together(communicator_, [&] {
    if (layout_) layout_->finish(index_);
  });
}

void Saving::publish() {
  if (!layout_) return;
  OpenFile file(temporary_, OpenFile::Mode::write);
  layout_->copy_to(file);
  file.sync();
  if (options_.check_may_write) options_.check_may_write();
  rename_file(temporary_, path_);
  made_ = false;
  sync_directory(directory_of(path_));
}

}  // namespace lockstep::checkpoint
