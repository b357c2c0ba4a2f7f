// Text: tokens in HDF5 files, in windows.
//
// A file has /tokens uint16 or uint32 [N] with the attributes vocabulary (every token is below it) and
// tokenizer (how text became tokens; "bytes": one token a byte) and, if that is not all there is to say,
// tokenizer_text (its definition), on the dataset or on the file.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/data/dataset.h"
#include "lockstep/data/tokenizer.h"

namespace lockstep::data {

class RowStore;

/// How text is read.
struct TextOptions {
  /// As in ArraysOptions.
  std::int64_t memory_limit_bytes = std::int64_t{2} << 30;
};

/// Sample i of a file is its tokens [i T, i T + T]: field x int64 [T] is the first T of them, y int64 [T] the
/// last T. Windows share only that one token; a short last window is left out. Several files count as one.
/// Opening throws DataError naming the file if it is missing, not HDF5, without /tokens or vocabulary, of a
/// wrong type, shorter than one window, or (reading too) if a token is not below the vocabulary; UsageError
/// if context < 1.
class Text final : public Dataset {
 public:
  /// One file, as samples of `context` tokens. DataError if it holds no tokens.
  Text(const std::string& path, std::int64_t context, const TextOptions& options = {});
  /// Several files, as one data set in this order.
  Text(const std::vector<std::string>& paths, std::int64_t context, const TextOptions& options = {});
  /// data.format = text. UsageError for a model that reads no text, DataError if it knows fewer tokens.
  explicit Text(const Request& request);
  static bool fits(const Request& request);  ///< a model that reads text
  ~Text() override;

  std::int64_t size() const override { return size_; }  ///< samples of `context` tokens
  const std::vector<Field>& fields() const override { return fields_; }
  bool sequential() const override { return true; }
  std::string name() const override;
  void read(std::span<const std::int64_t> samples, std::span<const Tensor> into) const override;
  FieldMeaning meaning(std::string_view field) const override;
  void hold_on_node(comm::HostGroup& world, std::int64_t& memory_left_bytes) override;

  std::int64_t vocabulary() const { return vocabulary_; }    ///< number of tokens that there are
  std::string tokenizer() const { return tokenizer_.id(); }  ///< empty if the file does not say

 private:
  struct Source {
    std::unique_ptr<RowStore> tokens;
    std::int64_t first = 0, windows = 0;
  };

  void add_file(const std::string& path, std::int64_t& memory_left_bytes);
  void copy_tokens(const Source& source, std::int64_t window, std::int64_t* x, std::int64_t* y) const;

  std::int64_t context_;
  std::int64_t size_ = 0;
  std::int64_t vocabulary_ = 0;
  StoredTokenizer tokenizer_;
  std::vector<Field> fields_;
  std::vector<Source> sources_;
};

}  // namespace lockstep::data
