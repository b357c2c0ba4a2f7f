// Converts common formats to data files, which arrays.h and text.h describe.
//
// Inputs may be gzipped. They are read twice, to count and then to write, one MiB at a time (or one image or
// line if that is larger). The output gets its name when it is complete and on storage. Invalid input is a
// DataError with the file and the line or position; no output remains. Only one rank calls these functions,
// but prepare_pictures() and prepare_text().
//
// `statistics` is the path of another data file from which the output takes mean, std and class names, such
// as the training data for evaluation data; empty: the output has its own.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "lockstep/base/shape.h"
#include "lockstep/comm/host_group.h"
#include "lockstep/data/augment.h"
#include "lockstep/data/tokenizer.h"
#include "lockstep/tensor/tensor.h"

namespace lockstep::hdf5 {
class File;
}

namespace lockstep::data {

/// The file to write. UsageError if it exists, unless `replace` is set and it is a regular file and not an
/// input.
struct Output {
  std::string path{};
  bool replace = false;
  std::shared_ptr<hdf5::File> memory{};  ///< written instead, and no file on storage
};

/// A summary of the output, for a message.
struct Summary {
  std::int64_t samples = 0;          ///< number of images or tokens
  std::string path{};                ///< what was written, if not Output::path: "a-*-of-00004.h5"
  Shape image{};                     ///< [C, H, W]; rank 0 for text
  std::string element_type{};        ///< of /x or /tokens
  std::int64_t classes = 0;          ///< the largest label + 1, or the vocabulary
  std::vector<std::string> notes{};  ///< what was skipped, and why: "a.csv:1 is a heading, skipped"
  std::vector<std::string> warnings{};
  bool one_label = false;                  ///< images: all labels are equal
  std::vector<std::string> class_names{};  ///< images with names as labels: label i has name i
  std::int64_t documents = 0;              ///< of a text whose tokenizer ends them
  std::int64_t held_out = 0;               ///< of a table: samples in held_out_path()
  std::string target{};                    ///< of a table: the name of values to predict
};

struct Table;

struct CsvOptions {
  /// The column of the label: "last", "first", its name in the heading, its number from 1, or "none".
  std::string label = "last";
  char separator =
      '\0';  ///< of fields; '\0': comma, semicolon or tab, detected from the first line of each file
  char decimal = '\0';  ///< sign in numbers; '\0': a point, or between semicolons the one that occurs
  std::optional<bool> heading{};  ///< whether each file has a heading; none: detected from its first lines
  Shape image{};                  ///< [C, H, W]; rank 0: every value is one channel, [values, 1, 1]
  std::string statistics{};
  /// Instead of the label the column of the target, by name or number: values to predict if its first one is
  /// a number, else classes.
  std::string target{};
  /// Columns by name or number: of categories ("NAME" one-hot, "NAME=code" as numbers in /codes), of dates
  /// ("NAME" as seconds, "NAME=sines"), and those that are left out.
  std::vector<std::string> categorical{}, dates{}, drop{};
  /// What becomes of missing values, "KIND" of all columns or "NAME=KIND" of one: drop (the line is left
  /// out), mean, median, or a value.
  std::vector<std::string> missing{};
  /// The share of lines that are written to another file, held_out_path(). Categories, fills, mean and std
  /// are learned from the others alone.
  double eval_fraction = 0;
  bool unknown_as_missing = false;  ///< takes categories that training did not see as missing values
  // For tables that are read for a model:
  const Table* table = nullptr;            ///< what it learned from, instead of that of `statistics`
  std::vector<std::string> class_names{};  ///< of its labels 0, 1, 2 ...; empty: numbers
  DType dtype = DType::float32;            ///< of its /x
  bool own_statistics = false;             ///< /x gets its own mean and std
  bool keeps_lines = false;                ///< a line with a missing value is an error, not left out
  std::vector<std::string> names{};        ///< of columns: a first line with one of them is a heading
  bool may_have_commas = false;  ///< as decimal signs where `decimal` is '\0', unless they separate fields

  bool names_columns() const {
    return !target.empty() || !categorical.empty() || !dates.empty() || !drop.empty() || !missing.empty() ||
           eval_fraction > 0;
  }
  /// Whether columns are more than numbers and a label, so that the data file describes the table.
  bool describes_table() const { return label == "none" || names_columns(); }
};
/// "a-eval.h5" of "a.h5".
std::string held_out_path(const std::string& path);
/// Each line is one sample: numbers and a label, which is an integer of 0 or more, or a name. Fields may be
/// in double quotes. Skips, with a note: blank lines, a heading (docs/data.md defines it; DataError if it may
/// be a sample), and nameless columns that number or name the rows. DataError for missing values (a label
/// that looks like one is a class, with a warning), for headings that differ between files or from the names
/// in `statistics`, and for a mix of names and numbers as labels. /x is uint8 if all values are integers in
/// [0, 255] and /x of `statistics` is uint8, else float32; its attribute names holds the heading. Names
/// become labels from 0 in byte order, or those of the class names in `statistics`, and the attribute classes
/// of /y stores them, one per line. UsageError unless exactly one column matches `label`.
///
/// If the options describe a table, or `statistics` do, /x is [N, values], float32 or, where that loses
/// digits, float64; its attribute table is the description (table.h). /y has classes, or values with mean and
/// std; /codes [N, columns] has codes from 1, and 0 for missing ones. With `statistics` the columns are those
/// of their table, found by name in any order; others are ignored, with a note.
Summary prepare_csv(std::span<const std::string> inputs, const Output& output,
                    const CsvOptions& options = {});

/// The format of MNIST: files of unsigned bytes, images [N, H, W] or [N, C, H, W] and labels [N], told apart
/// by their headers. The first file of labels belongs to the first file of images, and so on.
Summary prepare_idx(std::span<const std::string> inputs, const Output& output,
                    const std::string& statistics = {});

struct CifarOptions {
  int label_bytes = 0;  ///< 1 (CIFAR-10), 2 (CIFAR-100: coarse, fine); 0: detected from the first file's size
  bool coarse = false;  ///< CIFAR-100: the 20 coarse labels instead of the 100 fine ones
  std::string statistics{};
};
/// The binary version of CIFAR: records of labels and 3 x 32 x 32 bytes.
Summary prepare_cifar(std::span<const std::string> inputs, const Output& output,
                      const CifarOptions& options = {});

/// How pictures are packed.
struct PackOptions {
  enum class Encode { keep, jpeg, raw };

  Encode encode = Encode::keep;  ///< files as they are; JPEG of quality 95; or pixels, for images
  std::int64_t size = 0;         ///< jpeg: of the shorter side, 0: as it is; raw: of the square at the centre
  int files = 0;                 ///< how many to write; 0: one for each file_bytes of the pictures
  PictureOptions pictures{};     ///< skip_bad: leaves out what cannot be decoded
  std::string statistics{};      ///< only the names of classes are taken, and their numbers
  static constexpr std::int64_t file_bytes = std::int64_t{1} << 30;
};
constexpr std::array<const char*, 3> words(PackOptions::Encode) { return {"keep", "jpeg", "raw"}; }
/// A folder of pictures (PictureList), in the order of their names: /x has the bytes of all, /x_offsets where
/// each begins, /y the classes. raw: images as other preparations make them. Of several files, number 1 of 4
/// is OUT-00001-of-00004.h5. Each rank makes some; the bytes are the same at any number of ranks, and files
/// of an earlier start stay. Collective. DataError, with the first names, if some pictures cannot be decoded,
/// or if there are files of another number of them, which OUT-*.h5 would mix with these.
Summary prepare_pictures(const std::string& folder, const Output& output, const PackOptions& options,
                         comm::HostGroup& world);

struct TextPreparation {
  std::string tokenizer = "bytes";  ///< see read_tokenizer()
  std::string end_of_document{};    ///< the token at the end of documents, instead of the tokenizer's
  std::int64_t train = 0;           ///< learns a tokenizer of so many tokens from the text; 0: takes that one
  std::string field{};              ///< inputs are JSON lines: the field with the text; empty: plain text
};
/// Text files and folders of them (files in order of their names, without links). A file that is not text (an
/// archive, UTF-16, null bytes near its start, many control characters anywhere; of plain text, what the
/// tokenizer refuses) is skipped in a folder, and a DataError elsewhere. A document is a file, or a line of
/// JSON; after it comes the tokenizer's end_of_document(), or a line end where lines of JSON become bytes.
/// Empty documents are left out. Each rank reads all inputs once (to learn a tokenizer, once more) and
/// encodes a part of them, on its cores; the file is the same at any number of ranks and cores. Collective.
Summary prepare_text(std::span<const std::string> inputs, const Output& output, const TextPreparation& how,
                     const Tokenizers& registry, comm::HostGroup& world);

/// Files of tokens: of integers of `dtype` (uint16, uint32 or int64) as nanoGPT writes them, or llm.c's,
/// whose header names the type. DataError, with the place, for a token that is not in the vocabulary.
Summary prepare_tokens(std::span<const std::string> inputs, const Output& output, const std::string& dtype,
                       const TextPreparation& how, const Tokenizers& registry);

}  // namespace lockstep::data
