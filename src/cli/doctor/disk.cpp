// The run directory: room, speed, and the file calls that checkpoints rest on.
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "cli/doctor/finding.h"

namespace lockstep::cli::checkup {
namespace {

constexpr std::size_t mib = std::size_t{1} << 20;

/// A file that is gone with this object.
class Scratch {
 public:
  Scratch(const std::string& directory, std::string_view name)
      : path_(fmt::format("{}/.lockstep-doctor-{}-{}", directory, name, getpid())),
        file_(::open(path_.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600)),
        error_(file_ < 0 ? errno : 0) {}
  ~Scratch() {
    if (file_ < 0) return;
    ::close(file_);
    ::unlink(path_.c_str());
  }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  int file() const { return file_; }
  const std::string& path() const { return path_; }
  std::string reason() const { return std::strerror(error_); }

 private:
  std::string path_;
  int file_;
  int error_;
};

/// A MiB that no storage can compress away; its first word tells one from another.
std::vector<std::uint64_t> random_block() {
  std::vector<std::uint64_t> block(mib / sizeof(std::uint64_t));
  std::uint64_t state = 1;
  for (std::uint64_t& value : block) {  // xorshift64
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    value = state;
  }
  return block;
}

/// 0, or errno of the first call that failed.
int write_and_sync(int file, std::size_t blocks, std::vector<std::uint64_t>& block) {
  for (std::size_t number = 0; number < blocks; ++number) {
    block[0] = number;
    const ssize_t written = ::pwrite(file, block.data(), mib, static_cast<off_t>(number * mib));
    if (written != static_cast<ssize_t>(mib)) return written < 0 ? errno : ENOSPC;
  }
  return ::fsync(file) == 0 ? 0 : errno;
}

/// 0, errno, or EILSEQ where other bytes came back.
int read_and_compare(int file, std::size_t blocks, std::vector<std::uint64_t>& block) {
  std::vector<std::uint64_t> back(block.size());
  for (std::size_t number = 0; number < blocks; ++number) {
    const ssize_t bytes = ::pread(file, back.data(), mib, static_cast<off_t>(number * mib));
    if (bytes != static_cast<ssize_t>(mib)) return bytes < 0 ? errno : EIO;
    block[0] = number;
    if (back != block) return EILSEQ;
  }
  return 0;
}

Finding unusable(const char* subject, const Scene& scene, const std::string& reason) {
  return {subject, Verdict::problem, fmt::format("{}: not writable: {}", scene.place, reason),
          "choose another place: --run"};
}

/// Of a path and those above it, the one that is there and no directory; empty if none is.
std::string in_the_way(const std::string& run) {
  std::error_code ignored;
  for (std::filesystem::path path = run; !path.empty(); path = path.parent_path())
    if (std::filesystem::exists(path, ignored))
      return std::filesystem::is_directory(path, ignored) ? "" : path.string();
  return "";
}

}  // namespace

Finding free_space(const Scene& scene) {
  const char* const subject = "run directory";
  if (const std::string file = in_the_way(scene.run); !file.empty())
    return {subject, Verdict::problem, fmt::format("{}: {} is a file", scene.run, file),
            "choose another place: --run"};
  const std::string where =
      scene.place == scene.run ? scene.run : fmt::format("{} (not there yet; in {})", scene.run, scene.place);
  struct statvfs info {};
  if (statvfs(scene.place.c_str(), &info) != 0)
    return {subject, Verdict::problem, fmt::format("{}: {}", where, std::strerror(errno)), "make it"};
  if (const Scratch file(scene.place, "new"); file.file() < 0) return unusable(subject, scene, file.reason());
  const std::uint64_t available = info.f_bavail * info.f_frsize;
  std::string text = fmt::format("{}: {} free", where, in_bytes(available));
  const std::uint64_t one = scene.needs.checkpoint_bytes;
  if (one > 0) text += fmt::format("; a checkpoint takes about {}", in_bytes(one));
  // While one is written, those kept are still there.
  const std::uint64_t all = one * static_cast<std::uint64_t>(scene.needs.checkpoints + 1);
  if (available < std::max<std::uint64_t>(one, 64 * mib))
    return {subject, Verdict::problem, text, "free some space, or choose another place: --run"};
  if (info.f_files > 0 && info.f_favail < 100)
    return {subject, Verdict::problem, fmt::format("{}, but only {} files", text, info.f_favail),
            "remove files"};
  if (available < std::max<std::uint64_t>(all, 1024 * mib))
    return {subject, Verdict::note, text, "free some space, or lower checkpoint.keep"};
  return {subject, Verdict::ok, text, ""};
}

/// Twice as much each time, as long as the next time promises to be short.
Finding disk_speed(const Scene& scene) {
  const char* const subject = "disk speed";
  const auto most_blocks = static_cast<std::size_t>(scene.speed_mib);
  constexpr double enough_ms = 250;
  const Scratch scratch(scene.place, "speed");
  if (scratch.file() < 0) return unusable(subject, scene, scratch.reason());
  std::vector<std::uint64_t> block = random_block();
  std::size_t blocks = 1;
  double write_ms = 0;
  for (;; blocks *= 2) {
    const Stopwatch watch;
    const int error = write_and_sync(scratch.file(), blocks, block);
    write_ms = watch.elapsed_ms();
    if (error != 0) {
      return {subject, Verdict::problem,
              fmt::format("{}: writing {} MiB: {}", scene.place, blocks, std::strerror(error)),
              "free some space, or choose another place: --run"};
    }
    if (2 * write_ms > enough_ms || 2 * blocks > most_blocks) break;
  }
  ::posix_fadvise(scratch.file(), 0, 0, POSIX_FADV_DONTNEED);
  const Stopwatch watch;
  const int error = read_and_compare(scratch.file(), blocks, block);
  const double read_ms = watch.elapsed_ms();
  if (error != 0) {
    return {subject, Verdict::problem,
            error == EILSEQ ? fmt::format("{}: other bytes came back than were written", scene.place)
                            : fmt::format("{}: reading: {}", scene.place, std::strerror(error)),
            "do not keep runs there; tell its administrators"};
  }
  const auto rate = [&](double ms) { return static_cast<double>(blocks * mib) * 1e-3 / ms; };
  const std::string text = fmt::format("{}: {:.0f} MB/s written and synced, {:.0f} MB/s read ({} MiB)",
                                       scene.place, rate(write_ms), rate(read_ms), blocks);
  constexpr double slow_mb_s = 10;
  if (rate(write_ms) < slow_mb_s) {
    return {subject, Verdict::note, text,
            "choose a faster place, or set checkpoint.async = true so that steps do not wait"};
  }
  return {subject, Verdict::ok, text, ""};
}

Finding file_calls(const Scene& scene) {
  const char* const subject = "file calls";
  const Scratch first(scene.place, "a"), second(scene.place, "b");
  if (first.file() < 0 || second.file() < 0)
    return unusable(subject, scene, first.file() < 0 ? first.reason() : second.reason());
  const auto failed = [&](std::string_view call) {
    return Finding{subject, Verdict::problem,
                   fmt::format("{}: {}: {}", scene.place, call, std::strerror(errno)),
                   "choose a file system that can do this: checkpoints could not be made safe"};
  };
  if (::fsync(first.file()) != 0) return failed("fsync");
  const int directory = ::open(scene.place.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  const bool synced = directory >= 0 && ::fsync(directory) == 0;
  if (directory >= 0) ::close(directory);
  if (!synced) return failed("fsync of the directory");
  if (::flock(second.file(), LOCK_EX | LOCK_NB) != 0) {
    return {
        subject, Verdict::note, fmt::format("{}: no file locks: {}", scene.place, std::strerror(errno)),
        "two jobs on one run directory may not notice each other; other programs that read HDF5 files want "
        "HDF5_USE_FILE_LOCKING=FALSE"};
  }
  const int other = ::open(second.path().c_str(), O_RDWR | O_CLOEXEC);
  const bool refused = other >= 0 && ::flock(other, LOCK_EX | LOCK_NB) != 0;
  if (other >= 0) ::close(other);
  if (!refused) {
    return {subject, Verdict::note, fmt::format("{}: a file can be locked twice", scene.place),
            "two jobs on one run directory may not notice each other"};
  }
  if (::rename(first.path().c_str(), second.path().c_str()) != 0) return failed("rename over a file");
  const std::string link = first.path();
  const bool linked = ::symlink("target", link.c_str()) == 0;
  if (linked) ::unlink(link.c_str());
  if (!linked) {
    return {subject, Verdict::note, fmt::format("{}: no symbolic links", scene.place),
            "name checkpoints in full: checkpoints/latest is not made there"};
  }
  return {subject, Verdict::ok, fmt::format("{}: fsync, rename, locks and links work", scene.place), ""};
}

Finding temporary_files(const Scene&) {
  const char* const subject = "temporary files";
  const char* const variable = std::getenv("TMPDIR");
  const std::string directory = variable && *variable ? variable : "/tmp";
  const Scratch file(directory, "tmp");
  const std::vector<char> some(64 * 1024, 1);
  const bool written = file.file() >= 0 && ::pwrite(file.file(), some.data(), some.size(), 0) ==
                                               static_cast<ssize_t>(some.size());
  if (!written) {
    return {subject, Verdict::problem,
            fmt::format("{}: {}", directory, file.file() < 0 ? file.reason() : std::strerror(errno)),
            "set TMPDIR to a writable local directory: MPI keeps its session there"};
  }
  return {subject, Verdict::ok, fmt::format("{} is writable", directory), ""};
}

}  // namespace lockstep::cli::checkup
