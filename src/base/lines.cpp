#include "base/lines.h"

#include <algorithm>

#include "base/files.h"

namespace lockstep {

std::string_view without_blanks(std::string_view text) {
  constexpr std::string_view blanks = " \t\r\n";
  const std::size_t begin = text.find_first_not_of(blanks);
  if (begin == text.npos) return {};
  return text.substr(begin, text.find_last_not_of(blanks) - begin + 1);
}

std::vector<std::string_view> lines_of(std::string_view text) {
  std::vector<std::string_view> lines;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    lines.push_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return lines;
}

EndOfFile lines_at_end(const OpenFile& file, std::uint64_t max_bytes) {
  const std::uint64_t size = file.size();
  EndOfFile end{.text = std::string(std::min(size, max_bytes), '\0'), .offset = 0};
  end.offset = size - end.text.size();
  file.read_at(end.offset, end.text.data(), end.text.size());
  end.text.resize(end.text.rfind('\n') + 1);  // nothing is left without any
  const std::size_t first = end.offset > 0 ? end.text.find('\n') + 1 : 0;
  end.text.erase(0, first);
  end.offset += first;
  return end;
}

}  // namespace lockstep
