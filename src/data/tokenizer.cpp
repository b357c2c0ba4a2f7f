#include "lockstep/data/tokenizer.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "base/files.h"
#include "base/text.h"
#include "data/bpe_text.h"
#include "data/data_file.h"
#include "lockstep/base/error.h"
#include "lockstep/base/random.h"
#include "lockstep/hdf5/dataset.h"
#include "lockstep/hdf5/file.h"

namespace lockstep::data {

void register_bpe(Tokenizers& registry);

void add_built_in(Tokenizers& registry) {
  registry.add<Bytes>("bytes");
  register_bpe(registry);
}

std::size_t Tokenizer::encode_until(std::string_view text, std::size_t stop, bool /*ends*/,
                                    std::vector<std::int64_t>& tokens) const {
  const std::size_t end = std::min(stop, text.size());
  const std::vector<std::int64_t> more = encode(text.substr(0, end));
  tokens.insert(tokens.end(), more.begin(), more.end());
  return end;
}

std::string TokenStream::add(std::int64_t token) {
  waiting_ += tokenizer_.decode(std::span(&token, 1));
  // The first byte of a character tells how many it has.
  std::size_t complete = waiting_.size();
  for (std::size_t back = 1; back <= std::min<std::size_t>(3, waiting_.size()); ++back) {
    const auto byte = static_cast<unsigned char>(waiting_[waiting_.size() - back]);
    if (byte < 0xC0) continue;
    if (byte < 0xF8 && back < (byte < 0xE0 ? 2u : byte < 0xF0 ? 3u : 4u)) complete -= back;
    break;
  }
  std::string text = waiting_.substr(0, complete);
  waiting_.erase(0, complete);
  return text;
}

TextSize::TextSize(const Tokenizer& tokenizer) {
  for (std::int64_t token = 0; token < tokenizer.vocabulary(); ++token)
    bytes_of_.push_back(
        token == tokenizer.end_of_document() ? 0 : std::ssize(tokenizer.decode(std::span(&token, 1))));
}

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

StoredTokenizer StoredTokenizer::of(std::string_view id, std::string text) {
  return {.name = std::string(id.substr(0, id.find(' '))), .text = std::move(text)};
}

std::string StoredTokenizer::id() const {
  if (text.empty()) return name;
  return fmt::format("{} {:016x}", name, mix_bits(purpose_of(name + '\n' + text)));
}

std::unique_ptr<Tokenizer> StoredTokenizer::make(const Tokenizers& registry, const std::string& file) const {
  if (!registry.has(name))
    throw UsageError("{}: unknown tokenizer {}; this program has {}", file, quote(name),
                     fmt::join(registry.names(), ", "));
  std::unique_ptr<Tokenizer> tokenizer;
  try {
    tokenizer = registry.configure(name).make(text);
  } catch (const DataError& error) {
    throw DataError("{}: {}", file, error.what());
  }
  if (tokenizer->text() != text)
    throw DataError("{}: tokenizer_text differs from the text() of the tokenizer {} that it defines", file,
                    name);
  return tokenizer;
}

StoredTokenizer read_tokenizer(const std::string& name, const std::string& end_of_document) {
  if (name == "bytes" && !end_of_document.empty())
    throw UsageError("tokenizer bytes: has no token that ends a document, such as {}",
                     quote(end_of_document));
  if (name == "bytes") return {.name = name};
  constexpr std::string_view hdf5_start = "\x89HDF";
  std::string start(hdf5_start.size(), '\0');
  if (!is_directory(name)) {
    const OpenFile file(name, OpenFile::Mode::read);
    if (file.size() >= start.size()) file.read_at(0, start.data(), start.size());
  }
  if (start != hdf5_start) return {.name = "bpe", .text = read_bpe(name, end_of_document)};
  if (!end_of_document.empty()) throw UsageError("{}: says itself which token ends a document", name);
  const hdf5::File file = hdf5::File::open(name);
  StoredTokenizer stored;
  if (file.exists("/tokens")) stored = stored_tokenizer(file.open_dataset("/tokens"));
  if (file.exists("/provenance")) stored = stored_tokenizer(file.open_group("/provenance"));
  if (stored.name.empty()) throw DataError("{}: names no tokenizer", name);
  return stored;
}

StoredTokenizer stored_tokenizer(const hdf5::Object& object) {
  return StoredTokenizer::of(text_of(object, "tokenizer"), object.has_attribute("tokenizer_text")
                                                               ? object.text_attribute("tokenizer_text")
                                                               : "");
}

void store_tokenizer(hdf5::Dataset& tokens, const std::string& name, const Tokenizer& tokenizer) {
  tokens.set_attribute("vocabulary", tokenizer.vocabulary());
  tokens.set_attribute("tokenizer", name);
  if (tokenizer.end_of_document() >= 0) tokens.set_attribute("end_of_document", tokenizer.end_of_document());
  if (const std::string text = tokenizer.text(); !text.empty()) tokens.set_attribute("tokenizer_text", text);
}

}  // namespace lockstep::data
