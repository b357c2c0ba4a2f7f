#include "train/run/data_listing.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/files.h"
#include "base/output.h"
#include "base/text.h"

namespace lockstep::train {
namespace {

constexpr std::uint64_t max_listing_bytes = std::uint64_t{1} << 34;

/// The lines of pictures by their names, which are the last words of lines, after their folder.
std::unordered_map<std::string, std::string_view> by_name(std::string_view listing) {
  std::unordered_map<std::string, std::string_view> lines;
  std::string_view folder;
  for (const std::string_view line : lines_of(listing)) {
    const std::string_view last = line.substr(line.rfind('\t') + 1);
    if (line.starts_with("folder\t"))
      folder = last;
    else if (!line.starts_with('#') && !line.starts_with("class\t"))
      lines.emplace(fmt::format("{}/{}", folder, last), line);
  }
  return lines;
}

/// "2 are new (cat/7.jpg), 1 is gone (dog/a.jpg)"; empty: no difference.
std::string differences(std::string_view before, std::string_view now) {
  const auto then = by_name(before), today = by_name(now);
  std::vector<std::string> fresh, gone, changed;
  for (const auto& [name, line] : today) {
    const auto found = then.find(name);
    if (found == then.end())
      fresh.emplace_back(name);
    else if (found->second != line)
      changed.emplace_back(name);
  }
  for (const auto& [name, line] : then)
    if (!today.contains(name)) gone.emplace_back(name);
  std::vector<std::string> texts;
  for (const auto& [names, what] :
       {std::pair(&fresh, "new"), {&gone, "gone"}, {&changed, "of another size or class"}})
    if (!names->empty())
      texts.push_back(fmt::format("{} {} {} ({})", names->size(), names->size() == 1 ? "is" : "are", what,
                                  quote(*std::ranges::min_element(*names))));
  return list_of(texts);
}

}  // namespace

void record_listing(const std::string& run, const std::string& listing, const Log& log) {
  if (listing.empty()) return;
  const std::string path = run + "/pictures.txt";
  if (exists(path)) {
    const std::string before = read_text(path, max_listing_bytes);
    if (before == listing) return;
    if (const std::string what = differences(before, listing); !what.empty())
      log.warning("of the pictures of the run {} since the last start: it continues with other samples",
                  what);
  }
  write_text_atomically(path, listing);
}

}  // namespace lockstep::train
