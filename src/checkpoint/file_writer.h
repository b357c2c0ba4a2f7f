// Private to the module: one file on its way from memory to its final name, in steps that suit both a caller
// that waits and one that keeps training.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/output.h"
#include "checkpoint/blocks.h"
#include "checkpoint/layout.h"
#include "lockstep/checkpoint/contents.h"
#include "lockstep/checkpoint/index.h"
#include "lockstep/checkpoint/save.h"
#include "lockstep/comm/communicator.h"

namespace lockstep::checkpoint {

/// The steps, in order: construction (collective); copy_share() (collective), if the tensors will change
/// before write_share() is over or needs_copy(); write_share(); complete() (collective), when all ranks have
/// written; publish(). write_share() and publish() call neither MPI nor HDF5, so any thread may, and touch
/// nothing but the files; their errors are of this rank alone. Several threads may be in write_share() at
/// once: they share the work.
///
/// The temporary file is removed at the end, unless it was published. Ranks that still write into it then
/// fail, or write into a file without a name.
class FileWriter {
 public:
  /// Lists and compares what ranks hold, lays the file out and shares the work. Errors: save_file.
  FileWriter(std::string path, const Contents& contents, comm::HostGroup& communicator, SaveOptions options);
  FileWriter(const FileWriter&) = delete;
  FileWriter& operator=(const FileWriter&) = delete;

  const std::string& path() const { return path_; }
  /// Some tensors cannot be written from where they are: of some each rank holds a part, and what a rank
  /// writes is others'; some are on a device. The same on every rank.
  bool needs_copy() const;
  /// Room that copy_share() needs.
  std::uint64_t copy_bytes() const;
  /// Copies this rank's share into `memory`, which is written from there. Tensors in parts are gathered a few
  /// at a time; of others that are on a device this rank's share is copied from it.
  void copy_share(std::byte* memory);

  /// Writes, digests and syncs what is left of this rank's share. Other threads may still be at it when it
  /// returns.
  void write_share();
  /// Whoever is in write_share() stops after what it is writing: nobody wants the file any more.
  void give_up() { begun_ = segments_.size(); }
  /// The digests meet, and the structure is made. TrainingError if there were numbers that are not finite.
  void complete();
  /// On rank 0: adds the structure, syncs, gives the file its name and syncs the directory. Elsewhere
  /// nothing.
  void publish();

 private:
  /// An extent of this rank, and the rest of its last block behind it, which is digested only.
  struct OwnExtent {
    TensorExtent extent;
    const std::byte* data = nullptr;
    std::uint64_t readable_bytes = 0;
  };
  /// What is written at once: a block or, at an end of an extent, part of one.
  struct Segment {
    std::size_t extent = 0;
    std::uint64_t from = 0, bytes = 0;  ///< of the tensor
    std::uint64_t* digest = nullptr;    ///< of the block that begins here; none if it began before
  };

  template <class Use>
  void with_whole_tensors(const Use& use) const;
  void lay_out();
  void share_work(const Contents& contents);
  void cut_into_segments();
  void write(OpenFile& file, const Segment& segment);
  void note_not_finite(std::size_t tensor);
  void check_finite() const;

  std::string path_, temporary_;
  comm::HostGroup& communicator_;
  SaveOptions options_;
  kernels::Backend* backend_;  // of the tensors' device; none: the CPU
  FileIndex index_;
  std::unique_ptr<Layout> layout_;  // of rank 0
  std::vector<NamedTensor> held_;   // what extents are copied from or point to
  std::vector<OwnExtent> extents_;
  std::vector<std::uint64_t> digests_;  // of the blocks that begin in them
  std::vector<Segment> segments_;
  std::atomic<std::size_t> begun_{0}, done_{0};  // segments
  std::atomic<std::size_t>
      first_not_finite_;        // tensor, of those digested here; their number if there is none
  std::optional<Draft> draft_;  // of rank 0, until it is published
};

}  // namespace lockstep::checkpoint
