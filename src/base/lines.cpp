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

EndOfFile lines_at_end(const OpenFile& file, std::uint64_t most_bytes) {
  const std::uint64_t size = file.size();
  EndOfFile end{.text = std::string(std::min(size, most_bytes), '\0'), .offset = 0};
  end.offset = size - end.text.size();
  file.read_at(end.offset, end.text.data(), end.text.size());
  end.text.resize(end.text.rfind('\n') + 1);  // nothing is left without any
  const std::size_t first = end.offset > 0 ? end.text.find('\n') + 1 : 0;
  end.text.erase(0, first);
  end.offset += first;
  return end;
}

std::string IniLine::name() const {
  return section.empty() ? std::string(key) : std::string(section) + "." + std::string(key);
}

namespace {

/// The line as far as its comment, whose '#' is in no quotes. These begin a word of the value; what is not
/// closed has no comment.
std::string_view without_comment(std::string_view line) {
  std::size_t at = line.find_first_of("#=");
  if (at == line.npos) return line;
  if (line[at] == '=') ++at;
  for (bool in_word = false; at < line.size() && line[at] != '#'; ++at) {
    const char mark = line[at];
    if (in_word || (mark != '"' && mark != '\'')) {
      in_word = mark != ' ' && mark != '\t';
      continue;
    }
    for (++at; at < line.size() && line[at] != mark; ++at)
      if (mark == '"' && line[at] == '\\') ++at;
    in_word = true;
  }
  return line.substr(0, at);
}

}  // namespace

std::vector<IniLine> ini_lines(std::string_view text) {
  std::vector<IniLine> found;
  std::string_view section;
  int number = 0;
  for (const std::string_view whole : lines_of(text)) {
    ++number;
    const std::string_view line = without_blanks(without_comment(whole));
    if (line.empty()) continue;
    const std::size_t equals = line.find('=');
    IniLine& next = found.emplace_back(IniLine{.number = number, .section = section, .key = line});
    if (line.front() == '[' && line.back() == ']') {
      next.kind = IniLine::Kind::section;
      next.section = section = line.substr(1, line.size() - 2);
    } else if (equals != line.npos) {
      next.kind = IniLine::Kind::key;
      next.key = without_blanks(line.substr(0, equals));
      next.value = without_blanks(line.substr(equals + 1));
    }
  }
  return found;
}

}  // namespace lockstep
