// Converts text files to tokens.
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <ranges>
#include <span>
#include <string_view>

#include "base/cores.h"
#include "base/files.h"
#include "base/json.h"
#include "base/output.h"
#include "base/text.h"
#include "base/thread.h"
#include "data/array_writer.h"
#include "data/bpe_text.h"
#include "data/input.h"
#include "data/prepare.h"
#include "lockstep/base/error.h"
#include "lockstep/comm/agreement.h"
#include "lockstep/data/tokenizer.h"

namespace lockstep::data {
namespace texts {

namespace fs = std::filesystem;

constexpr std::size_t mib = 1 << 20;

/// Whether the blocks of a file are text.
class TextCheck {
 public:
  static constexpr std::size_t block_bytes = 8192;
  /// False if it is not text, and `why` tells what it is.
  bool add(std::string_view block, std::string& why) {
    constexpr auto control = [] {
      std::array<bool, 256> table{};
      for (std::size_t c = 0; c < 0x20; ++c)
        table[c] = std::string_view("\b\t\n\v\f\r\x1B").find(static_cast<char>(c)) == std::string_view::npos;
      table[0x7F] = true;
      return table;
    }();
    const auto max_controls = static_cast<std::ptrdiff_t>(bytes_ == 0 ? block.size() : block_bytes) / 50;
    const auto controls = std::ranges::count_if(block, [&](unsigned char c) { return control[c]; });
    if (const FileKind* const kind = bytes_ == 0 ? kind_of_file(block) : nullptr)
      why = fmt::format("{}: {}", kind->what, kind->remedy);
    // After the first block a single null byte is accepted.
    else if (controls > max_controls || (bytes_ == 0 && block.find('\0') != block.npos))
      why = fmt::format("not text: it contains binary data from byte {} on (tokens: lockstep prepare tokens)",
                        bytes_);
    bytes_ += std::ssize(block);
    return why.empty();
  }

 private:
  std::int64_t bytes_ = 0;
};

struct File {
  std::string path;
  bool of_folder = false;
  std::string not_text{};  ///< what it is instead; empty: text so far

  /// Skips a file of a folder. Another one is an error.
  void refuse(const std::string& why) {
    if (!of_folder) throw DataError("{}: {}", path, why);
    not_text = "not taken as text: " + why;
  }
};

/// Files in folders and their subfolders are sorted by name; hidden ones are not seen.
std::vector<File> files_of(std::span<const std::string> inputs) {
  std::vector<File> files;
  for (const std::string& input : inputs) {
    std::error_code error;
    if (!fs::is_directory(input, error)) {
      files.push_back({input});
      continue;
    }
    std::vector<std::string> found;
    for (fs::recursive_directory_iterator entry(input, error), end; !error && entry != end;
         entry.increment(error)) {
      // A link could add the same text twice, or lead out of the folder.
      if (entry->path().filename().string().starts_with('.'))
        entry.disable_recursion_pending();
      else if (!entry->is_symlink() && entry->is_regular_file())
        found.push_back(entry->path().string());
    }
    if (error) throw DataError("{}: cannot list the folder: {}", input, error.message());
    std::sort(found.begin(), found.end());
    for (std::string& path : found) files.push_back({std::move(path), true});
  }
  return files;
}

/// A part of a document: all of a short one.
struct Part {
  std::size_t file = 0;
  std::int64_t line = 0;              // of JSON; 0: plain text
  bool begins = false, ends = false;  // the document
  std::string raw{};                  // as read, later normalised
  std::string_view text{};            // from the part on to the end of what is read of the document
  std::size_t bytes = 0;              // of the part itself
  std::size_t start = 0, end = 0;     // where in `text` its tokens begin and end
  std::vector<std::int64_t> tokens{};
  std::string error{};  // why the tokenizer does not take it
};

/// Where in its last 64 KiB a text may be cut: at the end of a line or between words if possible, where
/// splitting into words begins anew by any usual rule, else before a character of ASCII, or for texts that
/// are not normalised, of any. 0: nowhere.
std::size_t cut_of(std::string_view text, bool normalizes) {
  const auto is_letter = [&](std::size_t at) {
    const unsigned lower = static_cast<unsigned char>(text[at]) | 0x20u;
    return lower >= 'a' && lower <= 'z';
  };
  constexpr std::string_view blanks = " \t\r\n\v\f";
  const std::size_t first = text.size() > (64 << 10) ? text.size() - (64 << 10) : 1;
  for (std::size_t at = text.size() - 1; at >= first; --at)
    if (text[at - 1] == '\n' && blanks.find(text[at]) == blanks.npos) return at;
  for (std::size_t at = text.size() - 2; at >= first; --at)
    if (text[at] == ' ' && is_letter(at - 1) && is_letter(at + 1)) return at;
  for (std::size_t at = text.size() - 1; at >= first; --at)
    if (const auto byte = static_cast<unsigned char>(text[at]); byte < 0x80 || (!normalizes && byte >= 0xC0))
      return at;
  return normalizes ? 0 : text.size();
}

/// Reads files one after another.
class Reader {
 public:
  Reader(std::vector<File>& files, bool lines, bool normalizes)
      : files_(files), lines_(lines), normalizes_(normalizes) {}

  /// The next part, but for empty documents; false: none is left.
  bool read(Part& part) {
    for (;;) {
      if (!input_) {
        if (next_ == files_.size()) return false;
        input_ = std::make_unique<Input>(files_[next_++].path);
        check_ = {};
        text_.clear();
        used_ = 0;
        line_ = 0;
        begins_ = true;
        at_end_ = false;
      }
      if (lines_ ? read_line(part) : read_text(part)) return true;
    }
  }

 private:
  static constexpr std::size_t part_bytes = mib, max_line_bytes = 64 * mib;

  std::string_view rest() const { return std::string_view(text_).substr(used_); }
  /// Reads until so many bytes are there, or all of the file.
  void fill(std::size_t bytes) {
    if (at_end_ || rest().size() >= bytes) return;
    text_.erase(0, std::exchange(used_, 0));
    std::string block(TextCheck::block_bytes, '\0');
    File& file = files_[next_ - 1];
    while (!at_end_ && text_.size() < bytes + mib) {
      const std::size_t got = input_->read(std::as_writable_bytes(std::span(block)));
      at_end_ = got == 0;
      if (at_end_ || check_.add(std::string_view(block).substr(0, got), file.not_text)) {
        text_.append(block, 0, got);
        continue;
      }
      if (!file.of_folder) throw DataError("{} is {}", file.path, file.not_text);
      text_.clear();
      at_end_ = true;
    }
  }
  bool read_text(Part& part) {
    if (!files_[next_ - 1].not_text.empty()) return input_.reset(), false;
    fill(2 * part_bytes);
    const bool ends = at_end_ && rest().size() <= part_bytes;
    const std::size_t bytes = ends ? rest().size() : cut_of(rest().substr(0, part_bytes), normalizes_);
    if (bytes == 0 && !ends)
      files_[next_ - 1].refuse(
          fmt::format("has {} bytes without a character of ASCII: is it text?", 64 << 10));
    const bool has_text = !(begins_ && ends && bytes == 0) && files_[next_ - 1].not_text.empty();
    part = {.file = next_ - 1, .begins = begins_, .ends = ends, .raw = std::string(rest().substr(0, bytes))};
    used_ += bytes;
    begins_ = false;
    if (ends) input_.reset();
    return has_text;
  }
  bool read_line(Part& part) {
    std::size_t end = 0;
    for (std::size_t need = mib;; need *= 2) {
      fill(need);
      end = rest().find('\n');
      if (end != std::string::npos || at_end_) break;
      if (rest().size() > max_line_bytes)
        throw DataError("{}:{}: the line has no end: is it JSON lines?", input_->path(), line_ + 1);
    }
    const std::string_view line = rest().substr(0, end);
    if (line.size() == rest().size()) input_.reset();  // the last one
    part = {.file = next_ - 1, .line = ++line_, .begins = true, .ends = true, .raw = std::string(line)};
    used_ = std::min(used_ + line.size() + 1, text_.size());
    return !without_blanks(part.raw).empty();
  }

  std::vector<File>& files_;
  const bool lines_, normalizes_;
  std::unique_ptr<Input> input_;
  std::size_t next_ = 0;  // file
  TextCheck check_;
  std::string text_;  // read, of which the first bytes are used
  std::size_t used_ = 0;
  std::int64_t line_ = 0;
  bool begins_ = true, at_end_ = false;
};

/// Encodes files, in rounds: all ranks read the same parts, and each encodes some of them.
class TextEncoder {
 public:
  TextEncoder(std::vector<File>& files, const Tokenizer& tokenizer, const std::string& field,
              comm::HostGroup& world)
      : files_(files),
        tokenizer_(tokenizer),
        field_(field),
        world_(world),
        reader_(files, !field.empty(), tokenizer.normalizes()) {
    const std::vector<std::string> cores = world.all_gather_texts(to_text(process_cores()));
    const auto rank = static_cast<std::size_t>(world.rank());
    std::size_t sharing = 0;  // ranks on these cores
    for (std::size_t other = 0; other < cores.size(); ++other)
      if (world.topology().node_of_rank[other] == world.topology().node_of_rank[rank])
        sharing += cores[other] == cores[rank] ? 1 : 0;
    threads_ = std::max<std::size_t>(1, process_cores().size() / sharing);
    std::int64_t all = 0;
    for (const std::int64_t count : comm::all_gather_values(world, static_cast<std::int64_t>(threads_)))
      all += count;
    round_bytes_ = std::clamp(static_cast<std::size_t>(all) * 2 * mib, 16 * mib, 256 * mib);
  }

  std::size_t threads() const { return threads_; }

  /// The parts of this rank in the next round; false: none is left. Collective.
  bool next(std::span<Part>& mine) {
    comm::run_on_all(world_, [&] { encode_round(); });
    if (parts_.empty()) return false;
    // A part whose last word ends elsewhere changes the next one, so the round is encoded once more: by all
    // ranks, which refuse the same files.
    struct Outcome {
      std::int64_t differs, end;
    };
    Outcome outcome{0, static_cast<std::int64_t>(parts_.back().end)};
    for (std::size_t i = first_; i < last_; ++i)
      if (const Part& part = parts_[i];
          !part.error.empty() || (i + 1 < parts_.size() && !part.ends && part.end != part.bytes))
        outcome.differs = 1;
    const std::vector<Outcome> all = comm::all_gather_values(world_, outcome);
    const bool differs = std::ranges::any_of(all, [](const Outcome& one) { return one.differs != 0; });
    // The last rank has the last part.
    if (!parts_.back().ends) carried_ = parts_.back().text.substr(static_cast<std::size_t>(all.back().end));
    comm::run_on_all(world_, [&] {
      if (differs) encode_in_order();
      if (!parts_.back().ends && carried_.size() > mib)
        files_[parts_.back().file].refuse(fmt::format("a word of more than {} bytes: is it text?", mib));
    });
    mine = std::span(parts_).subspan(first_, last_ - first_);
    return true;
  }

 private:
  void encode_round() {
    parts_.clear();
    std::size_t bytes = 0;
    for (Part part; bytes < round_bytes_ && reader_.read(part); parts_.push_back(std::move(part)))
      bytes += part.raw.size() + 64;
    const std::size_t ranks = static_cast<std::size_t>(world_.size()),
                      rank = static_cast<std::size_t>(world_.rank());
    first_ = parts_.size() * rank / ranks;
    last_ = parts_.size() * (rank + 1) / ranks;
    if (parts_.empty()) return;
    // A line is a document, but parts of a file need those that follow.
    const bool lines = !field_.empty();
    for_each_in_threads(threads_, lines ? first_ : 0, lines ? last_ : parts_.size(), [&](std::size_t i) {
      Part& part = parts_[i];
      if (lines) part.raw = text_of_line(part);
      if (tokenizer_.normalizes()) part.raw = tokenizer_.normalize(part.raw, part.begins);
      part.text = part.raw;
      part.bytes = part.raw.size();
    });
    if (!lines) join();
    for_each_in_threads(threads_, first_, last_, [&](std::size_t i) { encode(parts_[i], 0); });
  }

  /// Joins the parts of a document with what an earlier round has left of it.
  void join() {
    text_.clear();
    if (!parts_.front().begins) text_ = carried_;
    parts_.front().bytes += text_.size();
    for (const Part& part : parts_) text_ += part.raw;
    std::size_t end = text_.size(), document_end = end;
    for (Part& part : parts_ | std::views::reverse) {
      if (part.ends) document_end = end;
      end -= part.bytes;
      part.text = std::string_view(text_).substr(end, document_end - end);
      part.raw = {};
    }
  }

  std::string text_of_line(const Part& part) const {
    const std::string where = fmt::format("{}:{}", files_[part.file].path, part.line);
    const nlohmann::json document = parsed_json(part.raw, where);
    if (!document.is_object() || !document.contains(field_) || !document[field_].is_string())
      throw DataError("{}: has no text {}: each line must be an object with this field", where,
                      quote(field_));
    auto text = document[field_].get<std::string>();
    if (tokenizer_.end_of_document() < 0 && !text.empty()) text += '\n';
    return text;
  }

  void encode(Part& part, std::size_t start) try {
    part.tokens.clear();
    part.error.clear();
    part.start = part.end = files_[part.file].not_text.empty() ? start : part.bytes;
    if (!files_[part.file].not_text.empty()) return;
    // The following parts are there where the document does not end.
    const bool closed = part.ends || ends_in_round(part);
    if (start < part.bytes)
      part.end += tokenizer_.encode_until(part.text.substr(start), part.bytes - start, closed, part.tokens);
    if (part.ends && tokenizer_.end_of_document() >= 0 && !(part.begins && part.text.empty()))
      part.tokens.push_back(tokenizer_.end_of_document());
  } catch (const DataError& error) {
    if (part.line > 0) throw DataError("{}:{}: {}", files_[part.file].path, part.line, error.what());
    if (!files_[part.file].of_folder) throw DataError("{}: {}", files_[part.file].path, error.what());
    part.tokens.clear();
    part.error = error.what();
  }
  bool ends_in_round(const Part& part) const { return parts_.back().ends || parts_.back().file != part.file; }

  /// Each part from where the one before ends.
  void encode_in_order() {
    std::size_t start = 0;
    bool open = false;  // the rest of the document waits for the next round
    for (Part& part : parts_) {
      if (part.begins) start = 0, open = false;
      encode(part, open ? part.bytes : start);
      if (!part.error.empty()) files_[part.file].refuse(part.error), part.end = part.bytes;
      if (part.ends || open) continue;
      open = part.end < part.bytes;
      start = open ? 0 : part.end - part.bytes;
      carried_ = part.text.substr(part.end);
    }
  }

  std::vector<File>& files_;
  const Tokenizer& tokenizer_;
  const std::string& field_;
  comm::HostGroup& world_;
  Reader reader_;
  std::size_t threads_ = 1, round_bytes_ = 0;
  std::vector<Part> parts_;
  std::size_t first_ = 0, last_ = 0;  // of this rank
  std::string text_, carried_;        // of this round; of a document, to be encoded with the next one
};

/// Tokens before their number is known, in a file beside the output.
class Spool {
 public:
  explicit Spool(const Output& output)
      : file_(temporary_path(output.path, fmt::format("tokens-{}", ::getpid())),
              OpenFile::Mode::create_or_truncate) {}

  /// `packed`: for each part its file, whether it ends a document, and the number of tokens; and these.
  void add(std::span<const std::uint32_t> packed) {
    std::vector<std::uint32_t> tokens;
    for (std::size_t at = 0; at < packed.size();) {
      const std::uint32_t file = packed[at], ends = packed[at + 1], count = packed[at + 2];
      if (runs_.empty() || runs_.back().file != file) runs_.push_back({file});
      runs_.back().tokens += count;
      runs_.back().documents += ends;
      tokens.insert(tokens.end(), packed.begin() + static_cast<std::ptrdiff_t>(at + 3),
                    packed.begin() + static_cast<std::ptrdiff_t>(at + 3 + count));
      at += 3 + count;
    }
    file_.write_at(bytes_, tokens.data(), tokens.size() * sizeof tokens[0]);
    bytes_ += tokens.size() * sizeof tokens[0];
  }
  /// use(run, tokens) of the files that are text, 1 MiB at a time.
  template <class Use>
  void for_each(std::span<const File> files, const Use& use) const {
    std::vector<std::uint32_t> tokens;
    std::uint64_t at = 0;
    const OpenFile file(file_.path(), OpenFile::Mode::read);
    for (const Run& run : runs_)
      for (std::int64_t left = run.tokens; left > 0; left -= std::ssize(tokens)) {
        tokens.resize(static_cast<std::size_t>(std::min<std::int64_t>(left, mib)));
        if (files[run.file].not_text.empty()) {
          file.read_at(at, tokens.data(), tokens.size() * sizeof tokens[0]);
          use(std::span<const std::uint32_t>(tokens));
        }
        at += tokens.size() * sizeof tokens[0];
      }
  }
  void count(std::span<const File> files, Summary& summary) const {
    for (const Run& run : runs_) {
      if (!files[run.file].not_text.empty()) continue;
      summary.samples += run.tokens;
      summary.documents += run.documents;
    }
  }

 private:
  struct Run {
    std::uint32_t file;
    std::int64_t tokens = 0, documents = 0;
  };

  OpenFile file_;
  Draft draft_{file_.path()};
  std::uint64_t bytes_ = 0;
  std::vector<Run> runs_;
};

std::string packed(std::span<const Part> parts, bool ends_documents) {
  std::string text;
  const auto add = [&](std::integral auto number) {
    const auto value = static_cast<std::uint32_t>(number);
    text.append(reinterpret_cast<const char*>(&value), sizeof value);
  };
  for (const Part& part : parts) {
    add(part.file);
    add(ends_documents && part.ends && !part.tokens.empty() ? 1 : 0);
    add(part.tokens.size());
    for (const std::int64_t token : part.tokens) add(token);
  }
  return text;
}

/// Cuts texts into words: the "tokens" are their sizes.
class Words final : public Tokenizer {
 public:
  std::int64_t vocabulary() const override { return 0; }
  std::int64_t end_of_document() const override { return 0; }  // a word without bytes
  std::vector<std::int64_t> encode(std::string_view) const override { return {}; }
  std::string decode(std::span<const std::int64_t>) const override { return {}; }
  std::size_t encode_until(std::string_view text, std::size_t stop, bool ends,
                           std::vector<std::int64_t>& sizes) const override {
    thread_local WordSplitter::Matcher matcher;
    return splitter_.split(
        matcher, text, stop, ends,
        [&](std::string_view word, bool) { check_word(word), sizes.push_back(std::ssize(word)); },
        [&](char) { sizes.push_back(1); });
  }

 private:
  WordSplitter splitter_{{{"GPT-2", gpt2_pattern}}};
};

/// Learns a tokenizer from files.
std::string learn(std::vector<File> files, const TextPreparation& how, comm::HostGroup& world) {
  constexpr std::int64_t bytes = 256, max_tokens = 1 << 22;
  if (how.train <= bytes || how.train > max_tokens)
    throw UsageError(
        "--train-tokenizer {}: must be from {} to {} tokens: the bytes, the end of documents, and others",
        how.train, bytes + 1, max_tokens);
  const Words words;
  TextEncoder encoder(files, words, how.field, world);
  WordCounts counts;
  // Those of the last files: what turns out to be no text teaches nothing.
  std::map<std::size_t, WordCounts> of_files;
  const auto settle_before = [&](std::size_t file) {
    for (; !of_files.empty() && of_files.begin()->first < file; of_files.erase(of_files.begin()))
      if (files[of_files.begin()->first].not_text.empty())
        for (const auto& [word, count] : of_files.begin()->second) counts[word] += count;
  };
  std::mutex mutex;
  for (std::span<Part> parts; encoder.next(parts); settle_before(parts.empty() ? 0 : parts.back().file))
    for_each_in_threads(encoder.threads(), 0, parts.size(), [&](std::size_t i) {
      WordCounts of_part;
      std::string_view text = parts[i].text.substr(parts[i].start);
      for (const std::int64_t size : parts[i].tokens) {
        const std::string_view word = text.substr(0, static_cast<std::size_t>(size));
        const auto found = of_part.find(word);
        ++(found == of_part.end() ? of_part.emplace(word, 0).first : found)->second;
        text.remove_prefix(word.size());
      }
      const std::scoped_lock lock(mutex);
      for (const auto& [word, count] : of_part) of_files[parts[i].file][word] += count;
    });
  settle_before(files.size());
  nlohmann::json list = nlohmann::json::array();
  for (const auto& [word, count] : counts)
    list.push_back({nlohmann::json::binary({word.begin(), word.end()}), count});
  const std::vector<std::uint8_t> packed = nlohmann::json::to_cbor(list);
  counts.clear();
  for (const std::string& of_rank : world.all_gather_texts({packed.begin(), packed.end()}))
    for (const nlohmann::json& one : nlohmann::json::from_cbor(of_rank)) {
      const auto& word = one[0].get_binary();
      counts[{word.begin(), word.end()}] += one[1].get<std::int64_t>();
    }
  return make_bpe(learn_merges(counts, how.train),
                  how.end_of_document.empty() ? "<|endoftext|>" : how.end_of_document);
}

}  // namespace texts

Summary prepare_text(std::span<const std::string> inputs, const Output& output, const TextPreparation& how,
                     const Tokenizers& registry, comm::HostGroup& world) {
  using namespace texts;
  if (inputs.empty()) throw UsageError("prepare text: the list of files is empty");
  std::vector<File> files;
  StoredTokenizer stored;
  std::unique_ptr<Tokenizer> tokenizer;
  comm::run_on_all(world, [&] {
    check_output(inputs, output);
    files = files_of(inputs);
    if (how.train == 0) stored = read_tokenizer(how.tokenizer, how.end_of_document);
  });
  if (how.train != 0) stored = {"bpe", learn(files, how, world)};
  std::optional<Spool> spool;
  comm::run_on_all(world, [&] {
    tokenizer = stored.make(registry, how.tokenizer);
    if (world.rank() == 0) spool.emplace(output);
  });
  TextEncoder encoder(files, *tokenizer, how.field, world);
  for (std::span<Part> parts; encoder.next(parts);) {
    const auto all = world.all_gather_texts(packed(parts, tokenizer->end_of_document() >= 0));
    comm::run_on_all(world, [&] {
      for (const std::string& of_rank : all) {
        std::vector<std::uint32_t> numbers(of_rank.size() / sizeof(std::uint32_t));
        std::ranges::copy(of_rank, reinterpret_cast<char*>(numbers.data()));
        if (spool) spool->add(numbers);
      }
    });
  }

  Summary summary{.element_type = tokenizer->vocabulary() > 1 << 16 ? "uint32" : "uint16",
                  .classes = tokenizer->vocabulary()};
  constexpr std::int64_t max_notes = 5;
  std::int64_t skipped = 0;
  for (const File& file : files)
    if (!file.not_text.empty() && ++skipped <= max_notes)
      summary.notes.push_back(fmt::format("skipped {}: it is {}", file.path, file.not_text));
  if (skipped > max_notes)
    summary.notes.push_back(
        fmt::format("skipped {} that are no text", pluralized(skipped - max_notes, "other file")));
  if (how.train > summary.classes)
    summary.notes.push_back(fmt::format("the text has only {} tokens to learn", summary.classes));

  comm::run_on_all(world, [&] {
    if (!spool) return;
    spool->count(files, summary);
    if (summary.samples == 0)
      throw DataError("{}: not written: no text in {}", output.path, fmt::join(inputs, ", "));
    ArrayWriter writer(output, {{.name = "tokens",
                                 .rows = summary.samples,
                                 .dtype = summary.element_type == "uint32" ? DType::uint32 : DType::uint16,
                                 .texts = {{"tokenizer_text", stored.text}}}});
    store_tokenizer(writer.dataset(0), stored.name, *tokenizer);
    TextSize size(*tokenizer);
    spool->for_each(files, [&](std::span<const std::uint32_t> tokens) {
      writer.add(0, tokens);
      size.add(tokens);
    });
    if (stored.name != "bytes") writer.dataset(0).set_attribute("text_bytes", size.bytes());
    writer.finish();
    writer.publish();
  });
  return summary;
}

}  // namespace lockstep::data
