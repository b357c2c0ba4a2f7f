#include "lockstep/data/tokenizer.h"

#include <fmt/ranges.h>

#include "base/text.h"
#include "data/data_file.h"
#include "lockstep/base/error.h"
#include "lockstep/base/random.h"
#include "lockstep/hdf5/dataset.h"

namespace lockstep::data {

void add_built_in(Tokenizers& registry) { registry.add<Bytes>("bytes"); }

std::vector<std::int64_t> Bytes::encode(std::string_view text) const {
  const auto* const bytes = reinterpret_cast<const unsigned char*>(text.data());
  return {bytes, bytes + text.size()};
}

std::string Bytes::decode(std::span<const std::int64_t> tokens) const {
  std::string text;
  for (const std::int64_t token : tokens) {
    if (token < 0 || token >= vocabulary()) throw UsageError("token {} is not a byte", token);
    text.push_back(static_cast<char>(token));
  }
  return text;
}

std::string StoredTokenizer::id() const {
  if (text.empty()) return name;
  return fmt::format("{} {:016x}", name, mix_bits(purpose_of(name + '\n' + text)));
}

std::unique_ptr<Tokenizer> StoredTokenizer::make(const Tokenizers& registry, const std::string& file) const {
  if (!registry.has(name))
    throw UsageError("{}: unknown tokenizer {}; this program has {}", file, quote(name),
                     fmt::join(registry.names(), ", "));
  std::unique_ptr<Tokenizer> tokenizer = registry.configure(name).make(text);
  if (tokenizer->text() != text)
    throw DataError("{}: tokenizer_text differs from the text() of the tokenizer {} that it defines", file,
                    name);
  return tokenizer;
}

StoredTokenizer stored_tokenizer(const hdf5::Object& object) {
  return {.name = text_of(object, "tokenizer"),
          .text = object.has_attribute("tokenizer_text") ? object.text_attribute("tokenizer_text") : ""};
}

void store_tokenizer(hdf5::Dataset& tokens, const std::string& name, const Tokenizer& tokenizer) {
  tokens.set_attribute("vocabulary", tokenizer.vocabulary());
  tokens.set_attribute("tokenizer", name);
  const std::string text = tokenizer.text();
  if (text.size() > max_name_bytes)
    throw DataError("{}: the definition of the tokenizer {} has {} bytes; an attribute holds at most {}",
                    tokens.file_path(), name, text.size(), max_name_bytes);
  if (!text.empty()) tokens.set_attribute("tokenizer_text", text);
}

}  // namespace lockstep::data
