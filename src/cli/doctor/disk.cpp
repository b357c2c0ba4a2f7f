// Checks of directories: space, speed, and the system calls that checkpoints need.
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <vector>

#include "base/clock.h"
#include "base/files.h"
#include "base/text.h"
#include "cli/doctor/checks.h"
#include "lockstep/base/random.h"
#include "train/data_sets.h"

namespace lockstep::cli::checks {
namespace {

constexpr std::size_t mib = std::size_t{1} << 20;

/// A file that the destructor removes.
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

/// One incompressible MiB.
std::vector<std::uint64_t> random_block() {
  std::vector<std::uint64_t> block(mib / sizeof(std::uint64_t));
  for (std::size_t i = 0; i < block.size(); ++i) block[i] = mix_bits(i);
  return block;
}

/// Writes `blocks` blocks, which differ in their first word, and syncs. Returns 0, or errno of the first
/// failed call.
int write_and_sync(int file, std::size_t blocks, std::vector<std::uint64_t>& block) {
  for (std::size_t number = 0; number < blocks; ++number) {
    block[0] = number;
    const ssize_t written = ::pwrite(file, block.data(), mib, static_cast<off_t>(number * mib));
    if (written != static_cast<ssize_t>(mib)) return written < 0 ? errno : ENOSPC;
  }
  return ::fsync(file) == 0 ? 0 : errno;
}

/// Returns 0, errno, or EILSEQ if the bytes read differ from those written.
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

/// The first regular files of data.train.
std::vector<std::string> files_of_data(const train::Config& config, std::size_t max_files) {
  std::vector<std::string> files;
  for (const train::TrainingFile& source : train::training_files(config.data)) {
    if (files.size() == max_files) break;
    if (!is_directory(source.path)) {
      if (exists(source.path)) files.push_back(source.path);  // words of a program's own data may be no files
      continue;
    }
    constexpr auto how = std::filesystem::directory_options::follow_directory_symlink;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(source.path, how)) {
      if (files.size() == max_files) break;
      if (entry.is_regular_file()) files.push_back(entry.path().string());
    }
  }
  return files;
}

constexpr const char* other_directory = "choose another directory with --run";

Result not_writable(const Context& context, const Scratch& scratch) {
  return problem(fmt::format("{}: is not writable: {}", context.existing, scratch.reason()), other_directory);
}

}  // namespace

std::string existing_directory(const std::string& run) {
  std::error_code ignored;
  std::filesystem::path path = run;
  while (!path.empty() && !std::filesystem::is_directory(path, ignored) && path != path.parent_path())
    path = path.parent_path();
  return path.empty() ? "." : path.string();
}

Result run_directory(const Context& context) {
  std::error_code ignored;
  for (std::filesystem::path path = context.run; !path.empty() && path != path.parent_path();
       path = path.parent_path()) {
    if (std::filesystem::is_directory(path, ignored)) break;
    if (std::filesystem::exists(path, ignored))
      return problem(fmt::format("{}: {} is a file, not a directory", context.run, path.string()),
                     other_directory);
  }
  std::string text = context.run;
  if (context.existing != context.run)
    text += fmt::format(" (does not exist yet; checked {})", context.existing);
  struct statvfs info {};
  if (statvfs(context.existing.c_str(), &info) != 0)
    return problem(fmt::format("{}: {}", text, std::strerror(errno)), "create the directory");
  if (const Scratch file(context.existing, "new"); file.file() < 0) return not_writable(context, file);
  const std::uint64_t available = info.f_bavail * info.f_frsize;
  text += fmt::format(": {} free", in_bytes(available));
  const std::uint64_t one = context.needed.checkpoint_bytes;
  if (one > 0) text += fmt::format("; a checkpoint takes about {}", in_bytes(one));
  // A new checkpoint is written before an old one is removed.
  const std::uint64_t all = one * static_cast<std::uint64_t>(context.needed.checkpoints + 1);
  if (available < std::max<std::uint64_t>(one, 64 * mib))
    return problem(text, std::string("free some space, or ") + other_directory);
  if (info.f_files > 0 && info.f_favail < 100)
    return problem(fmt::format("{}, but room for only {} more files", text, info.f_favail), "remove files");
  if (available < std::max<std::uint64_t>(all, 1024 * mib))
    return note(text, "free some space, or lower checkpoint.keep");
  return ok(text);
}

Result disk_speed(const Context& context) {
  const Scratch scratch(context.existing, "speed");
  if (scratch.file() < 0) return not_writable(context, scratch);
  std::vector<std::uint64_t> block = random_block();
  const auto max_blocks = static_cast<std::size_t>(context.speed_mib);
  std::size_t blocks = 1;
  double write_ms = 0;
  for (;; blocks *= 2) {  // until another round would take too long
    const Stopwatch watch;
    const int error = write_and_sync(scratch.file(), blocks, block);
    write_ms = watch.elapsed_ms();
    if (error != 0)
      return problem(fmt::format("{}: writing {} MiB: {}", context.existing, blocks, std::strerror(error)),
                     std::string("free some space, or ") + other_directory);
    constexpr double enough_ms = 125;
    if (write_ms > enough_ms || 2 * blocks > max_blocks) break;
  }
  ::posix_fadvise(scratch.file(), 0, 0, POSIX_FADV_DONTNEED);
  const Stopwatch watch;
  const int error = read_and_compare(scratch.file(), blocks, block);
  const double read_ms = watch.elapsed_ms();
  if (error != 0)
    return problem(error == EILSEQ
                       ? fmt::format("{}: the bytes read differ from those written", context.existing)
                       : fmt::format("{}: reading: {}", context.existing, std::strerror(error)),
                   "keep no runs there; tell the administrators");
  const auto mb_s = [&](double ms) { return static_cast<double>(blocks * mib) * 1e-3 / ms; };
  const std::string text = fmt::format("{}: {:.0f} MB/s written and synced, {:.0f} MB/s read ({} MiB)",
                                       context.existing, mb_s(write_ms), mb_s(read_ms), blocks);
  constexpr double slow_mb_s = 10;
  if (mb_s(write_ms) < slow_mb_s)
    return note(text,
                "choose a faster disk, or set checkpoint.async = true so that steps do not wait for saves");
  return ok(text);
}

Result data_storage(const Context& context) {
  constexpr std::size_t max_files = 256;
  constexpr double enough_ms = 1000, slow_mb_s = 10;
  std::vector<std::byte> block(mib);
  std::uint64_t bytes = 0;
  std::size_t files_read = 0;
  double ms = 0;
  try {
    const std::vector<std::string> files = files_of_data(*context.config, max_files);
    const std::size_t max_blocks = static_cast<std::size_t>(context.speed_mib) / std::max(files.size(), 1ul);
    for (; files_read < files.size() && ms < enough_ms; ++files_read) {
      const OpenFile file(files[files_read], OpenFile::Mode::read);
      ::posix_fadvise(file.descriptor(), 0, 0, POSIX_FADV_DONTNEED);  // from storage, not from memory
      const std::uint64_t size = file.size(), blocks = std::clamp(max_blocks, 1ul, size / mib + 1);
      const Stopwatch watch;
      for (std::uint64_t i = 0; i < blocks; ++i) {
        const std::uint64_t begin = size / blocks * i, end = std::min(size, begin + mib);
        file.read_at(begin, block.data(), end - begin);
        bytes += end - begin;
      }
      ms += watch.elapsed_ms();
    }
  } catch (const std::exception& error) {
    return problem(error.what(), "make the data readable on every node");
  }
  if (files_read == 0) return ok("no files of data.train on this node");
  const double mb_s = static_cast<double>(bytes) * 1e-3 / ms;
  const std::string text =
      fmt::format("{:.0f} MB/s read in {}, {:.0f} files/s ({:.1f} MiB)", mb_s, pluralized(files_read, "file"),
                  static_cast<double>(files_read) * 1e3 / ms, static_cast<double>(bytes) / mib);
  if (mb_s < slow_mb_s)
    return note(text, "copy the data to faster storage; many small pictures: lockstep prepare images");
  return ok(text);
}

Result file_calls(const Context& context) {
  const std::string& directory = context.existing;
  const Scratch first(directory, "a"), second(directory, "b");
  if (first.file() < 0) return not_writable(context, first);
  if (second.file() < 0) return not_writable(context, second);
  const auto failed = [&](std::string_view call) {
    return problem(fmt::format("{}: {}: {}", directory, call, std::strerror(errno)),
                   "choose a file system that supports this call: safe checkpoints need it");
  };
  if (::fsync(first.file()) != 0) return failed("fsync");
  const int opened = ::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  const bool synced = opened >= 0 && ::fsync(opened) == 0;
  if (opened >= 0) ::close(opened);
  if (!synced) return failed("fsync of the directory");
  constexpr const char* unlocked =
      "do not start two jobs in one run directory: the lock that refuses the second one does not work";
  if (::flock(second.file(), LOCK_EX | LOCK_NB) != 0)
    return note(
        fmt::format("{}: file locks do not work: {}", directory, std::strerror(errno)),
        std::string(unlocked) + "; other programs that read HDF5 files need HDF5_USE_FILE_LOCKING=FALSE");
  const int other = ::open(second.path().c_str(), O_RDWR | O_CLOEXEC);
  const bool refused = other >= 0 && ::flock(other, LOCK_EX | LOCK_NB) != 0;
  if (other >= 0) ::close(other);
  if (!refused) return note(fmt::format("{}: two locks of one file succeed", directory), unlocked);
  if (::rename(first.path().c_str(), second.path().c_str()) != 0) return failed("rename over a file");
  const bool linked = ::symlink("target", first.path().c_str()) == 0;
  if (linked) ::unlink(first.path().c_str());
  if (!linked)
    return note(fmt::format("{}: symbolic links do not work", directory),
                "name checkpoint files in full: the link checkpoints/latest cannot exist there");
  return ok(fmt::format("{}: fsync, rename, file locks and symbolic links work", directory));
}

Result temporary_files(const Context&) {
  const char* const variable = std::getenv("TMPDIR");
  const std::string directory = variable && *variable ? variable : "/tmp";
  const Scratch file(directory, "tmp");
  const std::vector<char> some(64 * 1024, 1);
  const auto bytes = static_cast<ssize_t>(some.size());
  if (file.file() < 0 || ::pwrite(file.file(), some.data(), some.size(), 0) != bytes)
    return problem(fmt::format("{}: {}", directory, file.file() < 0 ? file.reason() : std::strerror(errno)),
                   "set TMPDIR to a writable local directory: MPI keeps its session files there");
  return ok(fmt::format("{} is writable", directory));
}

}  // namespace lockstep::cli::checks
