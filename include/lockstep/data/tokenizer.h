// Tokenizer: how text becomes tokens, and tokens text.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/registry.h"
#include "lockstep/hdf5/dataset.h"

namespace lockstep::data {

/// Between text and tokens, the integers in [0, vocabulary()). Used from several threads at once.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  virtual std::int64_t vocabulary() const = 0;  ///< number of tokens that there are
  /// Tokens of a text; none of an empty one.
  virtual std::vector<std::int64_t> encode(std::string_view text) const = 0;
  /// The text of tokens. Throws UsageError for a token outside the vocabulary.
  virtual std::string decode(std::span<const std::int64_t> tokens) const = 0;
  /// What the constructor has taken, byte for byte: its definition, without null bytes, up to 60,000 bytes.
  /// Empty: the name says it all.
  virtual std::string text() const { return ""; }
};

/// One token a byte.
class Bytes final : public Tokenizer {
 public:
  explicit Bytes([[maybe_unused]] const std::string& text = "") {}  ///< text: empty

  std::int64_t vocabulary() const override { return 256; }  ///< values of a byte
  std::vector<std::int64_t> encode(std::string_view text) const override;
  std::string decode(std::span<const std::int64_t> tokens) const override;
};

/// A tokenizer is made from its text.
using Tokenizers = lockstep::Registry<Tokenizer, const std::string&>;
/// Adds bytes.
void add_built_in(Tokenizers& registry);

/// A tokenizer as data files and checkpoints know it.
struct StoredTokenizer {
  std::string name{};  ///< in a registry; empty: not known
  std::string text{};  ///< Tokenizer::text()

  /// The name, and of one with a text a digest of both: "bpe 8d3c0e6f12a4b597". Equal ids mean equal tokens.
  std::string id() const;
  /// The tokenizer. Errors name `file`, which has it: UsageError with all names if the registry lacks this
  /// one; DataError if the text is not one of it.
  std::unique_ptr<Tokenizer> make(const Tokenizers& registry, const std::string& file) const;
};
/// The attributes `tokenizer` and `tokenizer_text` of the tokens in a file, or of the file.
StoredTokenizer stored_tokenizer(const hdf5::Object& object);
/// Sets these, the latter of a tokenizer with a text, and `vocabulary`. DataError if the text is too long.
void store_tokenizer(hdf5::Dataset& tokens, const std::string& name, const Tokenizer& tokenizer);

}  // namespace lockstep::data
