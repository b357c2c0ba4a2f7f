// Lines of texts: of any text, at the end of a file that grows, and of INI files.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep {

class OpenFile;

/// The text without blanks and line ends around it.
std::string_view without_blanks(std::string_view text);

/// The lines of a text without their ends, parts of it. What follows the last end counts if it is not empty.
std::vector<std::string_view> lines_of(std::string_view text);

/// The whole lines among the last bytes of a file.
struct EndOfFile {
  std::string text;
  std::uint64_t offset = 0;  ///< of the text in the file
};
/// The first line is left out if it begins before these bytes, the last one if it has no end.
EndOfFile lines_at_end(const OpenFile& file, std::uint64_t most_bytes);

/// A line of an INI file that is neither empty nor a comment. The texts are parts of the whole text.
struct IniLine {
  enum class Kind { section, key, neither };

  Kind kind = Kind::neither;
  int number = 0;                 ///< from 1
  std::string_view section = {};  ///< that the line begins or is in; empty before the first
  std::string_view key = {};      ///< of a line that is neither, all of it
  std::string_view value = {};    ///< as written, in quotes if it is

  /// SECTION.KEY, or KEY before the first section.
  std::string name() const;
};
/// '#' begins a comment, but within quotes of a value (option::unquoted()).
std::vector<IniLine> ini_lines(std::string_view text);

}  // namespace lockstep
