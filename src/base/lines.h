// Lines of texts: of any text, and at the end of a file that grows.
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
EndOfFile lines_at_end(const OpenFile& file, std::uint64_t max_bytes);

}  // namespace lockstep
