// The definition of a tokenizer: any text gives a tokenizer whose tokens give texts back, or one DataError of
// a line.
//
// Input: a text to encode, a null byte, and the definition. Its vocabulary may lack bytes: then they are
// added, so that short inputs get further.
#include <cstdint>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "base/json.h"
#include "data/bpe_text.h"
#include "lockstep/base/error.h"
#include "lockstep/data/tokenizer.h"

namespace {

void require(bool holds) {
  if (!holds) std::abort();
}

/// With tokens of all bytes, numbered from 1,000 on, where the vocabulary is an object.
std::string with_bytes(std::string_view definition) {
  using nlohmann::json;
  const json root = json::parse(definition, nullptr, false);
  if (!root.is_object() || !root.contains("model") || !root["model"].is_object() ||
      !root["model"].contains("vocab") || !root["model"]["vocab"].is_object())
    return std::string(definition);
  json changed = root;
  const json bytes = json::parse(lockstep::data::make_bpe({}, "<>"))["model"]["vocab"];
  for (const auto& [token, number] : bytes.items())
    if (!changed["model"]["vocab"].contains(token))
      changed["model"]["vocab"][token] = 1000 + number.get<int>();
  return lockstep::json_text(changed);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t bytes) {
  using namespace lockstep;
  const std::string_view input(reinterpret_cast<const char*>(data), bytes);
  const std::size_t end = std::min(input.find('\0'), input.size());
  const std::string_view text = input.substr(0, end);
  data::Tokenizers registry;
  add_built_in(registry);
  try {
    const std::string definition = with_bytes(input.substr(std::min(end + 1, input.size())));
    const auto tokenizer = data::StoredTokenizer{"bpe", definition}.make(registry, "fuzzed");
    require(tokenizer->text() == definition);
    const std::vector<std::int64_t> tokens = tokenizer->encode(text);
    require(tokenizer->decode(tokens) == tokenizer->normalize(text, true));
    tokenizer->encode_prompt(text);
    std::vector<std::int64_t> some;
    require(tokenizer->encode_until(text, 3, false, some) <= text.size());
  } catch (const DataError& error) {
    require(std::string_view(error.what()).find('\n') == std::string_view::npos);
  }
  return 0;
}
