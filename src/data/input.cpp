// Reading through zlib, which passes plain files through.
#include "data/input.h"

#include <fcntl.h>
#include <unistd.h>
#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "base/files.h"
#include "base/output.h"
#include "lockstep/base/error.h"

namespace lockstep::data {
namespace {

constexpr std::size_t buffer_bytes = 1 << 18;
constexpr std::size_t longest_line_bytes = std::size_t{1} << 26;

}  // namespace

Input::Input(const std::string& path) : path_(path), buffer_(buffer_bytes) {
  // OpenFile refuses pipes and devices, on which zlib might wait for ever.
  const OpenFile file(path, OpenFile::Mode::read);
  const int own = ::fcntl(file.descriptor(), F_DUPFD_CLOEXEC, 0);
  file_.reset(own < 0 ? nullptr : gzdopen(own, "rb"));
  if (file_) return;
  if (own >= 0) ::close(own);
  throw DataError("{}: cannot open: no descriptor or memory is left", path);
}

bool Input::refill() {
  errno = 0;
  const int got = gzread(file_.get(), buffer_.data(), static_cast<unsigned>(buffer_.size()));
  const int system_error = errno;
  int code = Z_OK;
  const char* message = gzerror(file_.get(), &code);
  if (got < 0 || code == Z_BUF_ERROR || code == Z_DATA_ERROR) {
    if (code == Z_ERRNO) throw DataError("{}: cannot read: {}", path_, std::strerror(system_error));
    throw DataError("{}: cannot unpack: {}", path_,
                    code == Z_BUF_ERROR ? "the compressed data ends too early" : message);
  }
  begin_ = 0;
  end_ = static_cast<std::size_t>(got);
  return got > 0;
}

std::size_t Input::read(std::span<std::byte> out) {
  std::size_t done = 0;
  while (done < out.size() && (begin_ < end_ || refill())) {
    const std::size_t count = std::min(out.size() - done, end_ - begin_);
    std::memcpy(out.data() + done, buffer_.data() + begin_, count);
    begin_ += count;
    done += count;
  }
  return done;
}

bool Input::read_line(std::string& line) {
  line.clear();
  bool any = false;
  while (begin_ < end_ || refill()) {
    any = true;
    const char* start = buffer_.data() + begin_;
    const auto* newline = static_cast<const char*>(std::memchr(start, '\n', end_ - begin_));
    const std::size_t count = newline != nullptr ? static_cast<std::size_t>(newline - start) : end_ - begin_;
    line.append(start, count);
    begin_ += count;
    if (newline != nullptr) {
      ++begin_;
      break;
    }
    if (line.size() > longest_line_bytes)
      throw DataError("{}:{}: the line has no end: is it text?", path_, lines_ + 1);
  }
  if (!any) return false;
  ++lines_;
  if (line.ends_with('\r')) line.pop_back();
  return true;
}

const FileKind* kind_of_file(std::string_view start) {
  using namespace std::string_view_literals;
  constexpr std::string_view utf16 = "convert it (iconv -f utf-16 -t utf-8)", unpack = "unpack it",
                             text = "export it as text",
                             read_utf16 = R"(read_csv(sys.argv[1], encoding="utf-16"))";
  // Others have bytes that no text has.
  static constexpr std::array<FileKind, 15> kinds{
      {{"PK\3\4"sv, "a zip archive (.xlsx and .docx are, too)", "unpack it, or export it as text",
        "read_excel(sys.argv[1])"},
       {"BZh"sv, "packed by bzip2", unpack, R"(read_csv(sys.argv[1], compression="bz2"))"},
       {"\xFD\x37zXZ"sv, "packed by xz", unpack, R"(read_csv(sys.argv[1], compression="xz"))"},
       {"\x28\xB5\x2F\xFD"sv, "packed by zstd", unpack, R"(read_csv(sys.argv[1], compression="zstd"))"},
       {"\4\x22\x4D\x18"sv, "packed by lz4", unpack},
       {"\x1F\x8B"sv, "gzipped twice", unpack},
       {"%PDF-"sv, "a PDF", "export its text"},
       {"PAR1"sv, "a Parquet file", text, "read_parquet(sys.argv[1])"},
       {"\xD0\xCF\x11\xE0"sv, "an old Excel or Word file", text, "read_excel(sys.argv[1])"},
       {"ARROW1"sv, "an Arrow (Feather) file", text, "read_feather(sys.argv[1])"},
       {"<stata_dta>"sv, "a Stata file", text, "read_stata(sys.argv[1])"},
       {"\x89HDF"sv, "an HDF5 file", "it needs no preparation"},
       {"\x93NUMPY"sv, "a NumPy array", "write it with h5py"},
       {"\xFF\xFE"sv, "UTF-16", utf16, read_utf16},
       {"\xFE\xFF"sv, "UTF-16", utf16, read_utf16}}};
  const auto* const found =
      std::ranges::find_if(kinds, [&](const FileKind& kind) { return start.starts_with(kind.start); });
  return found == kinds.end() ? nullptr : found;
}

std::int64_t count_rest(Input& input) {
  std::vector<std::byte> buffer(buffer_bytes);
  std::int64_t bytes = 0;
  while (const std::size_t got = input.read(buffer)) bytes += static_cast<std::int64_t>(got);
  return bytes;
}

void check_output(std::span<const std::string> inputs, const Output& output, const std::string& statistics) {
  if (output.memory) return;
  std::vector<std::string> all(inputs.begin(), inputs.end());
  if (!statistics.empty()) all.push_back(statistics);
  lockstep::check_output(output.path, {.replace = output.replace, .inputs = all});
}

}  // namespace lockstep::data
