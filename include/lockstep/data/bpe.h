// Bpe: byte-level byte-pair encoding, the tokenizers of GPT-2, Llama 3, Qwen and their kin.
#pragma once

#include <memory>

#include "lockstep/data/tokenizer.h"

namespace lockstep::data {

/// Encodes like the library `tokenizers` of Hugging Face without special tokens around a text
/// (add_special_tokens=False). Text of special tokens is plain text for encode(). A byte that is not UTF-8
/// becomes the token of this byte, and ends a word. docs/data.md says which tokenizer.json it takes.
class Bpe final : public Tokenizer {
 public:
  /// `text`: that of a tokenizer.json, with a key `end_of_document` if it names this token. DataError, with
  /// the key, if it is damaged or asks for something else.
  explicit Bpe(const std::string& text);
  ~Bpe() override;

  std::int64_t vocabulary() const override;
  std::vector<std::int64_t> encode(std::string_view text) const override;
  std::string decode(std::span<const std::int64_t> tokens) const override;
  std::string text() const override;
  std::vector<std::int64_t> encode_prompt(std::string_view text) const override;
  std::int64_t end_of_document() const override;
  std::string normalize(std::string_view text, bool begins) const override;
  bool normalizes() const override;
  std::size_t encode_until(std::string_view text, std::size_t stop, bool ends,
                           std::vector<std::int64_t>& tokens) const override;

 private:
  struct Impl;
  std::unique_ptr<const Impl> impl_;
};

}  // namespace lockstep::data
