// The configuration: any text gives settings that print to a text which reads back the same, and a model
// whose shapes are known without memory, or one UsageError of a line. The text that a checkpoint holds, too.
//
// Input: the INI text; lines after one that holds a null byte alone are --set overrides.
#include "train/config.h"

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/models/gpt.h"
#include "train/components.h"
#include "train/run/resume.h"

namespace {

constexpr std::int64_t max_layers = 100;  // thousands take their time, and are no other case

void require(bool holds) {
  if (!holds) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t bytes) {
  std::string_view text(reinterpret_cast<const char*>(data), bytes);
  const std::size_t end = std::min(text.find(std::string_view("\n\0\n", 3)), text.size());
  std::vector<std::string> overrides;
  for (std::string_view rest = text.substr(std::min(end + 3, text.size())); !rest.empty();) {
    const std::size_t line = std::min(rest.find('\n'), rest.size());
    overrides.emplace_back(rest.substr(0, line));
    rest.remove_prefix(std::min(line + 1, rest.size()));
  }
  try {
    using namespace lockstep::train;
    const Config config = parse_config(std::string(text.substr(0, end)), "fuzzed", overrides);
    const std::string resolved = to_text(config);
    const Config again = parse_config(resolved, "resolved");
    require(to_text(again) == resolved && forbidden_changes(config, again).empty());
    require(to_text(parse_stored_config(resolved, "stored")) == resolved);
    const auto* const gpt = config.model.options_of<lockstep::models::Gpt>();
    if (!gpt || gpt->layers <= max_layers) build_meta_model(config);
  } catch (const lockstep::UsageError& error) {
    const std::string_view what = error.what();
    require(what.find('\n') == std::string_view::npos && !what.starts_with("resolved"));
  }
  return 0;
}
