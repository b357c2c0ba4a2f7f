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

/// What a listing says of each picture, by its name, which is the last word of a line, after its folder:
/// bytes, and its class or label. Numbers of classes change when one comes or goes.
std::unordered_map<std::string, std::string> by_name(std::string_view listing) {
  std::unordered_map<std::string, std::string> pictures;
  std::string_view folder;
  std::vector<std::string_view> classes;
  for (const std::string_view line : lines_of(listing)) {
    const std::string_view last = line.substr(line.rfind('\t') + 1);
    const std::size_t tab = line.find('\t');
    if (line.starts_with("folder\t")) {
      folder = last;
      classes.clear();
    } else if (line.starts_with("class\t")) {
      classes.push_back(last);
    } else if (!line.starts_with('#') && tab != line.npos) {
      const std::string_view label = line.substr(tab + 1, line.find('\t', tab + 1) - tab - 1);
      std::size_t number = 0;
      const bool has_name = parse_number(label, number) && number < classes.size();
      pictures.emplace(fmt::format("{}/{}", folder, last),
                       fmt::format("{} {}", line.substr(0, tab), has_name ? classes[number] : label));
    }
  }
  return pictures;
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
