// The pictures of a folder, by their names.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/data/augment.h"

namespace lockstep::data {

/// True for names that end with .jpg, .jpeg, .jpe, .jfif or .png, in any case of the letters.
bool is_picture_name(std::string_view name);

/// Pictures in the order of their names as bytes, so that every file system gives the same. Several million
/// are kept: their names are one text.
class PictureList {
 public:
  /// Lists a folder and what lies below it: files with is_picture_name(); hidden ones are not seen. Their
  /// classes are the folders directly below it that they lie in, or, with options.labels, what that file
  /// says; it may name pictures of other folders, too. If it names none of this one, and need not, the
  /// folders are the classes.
  ///
  /// DataError if there are no pictures, if a folder or, unless options.skip_bad, a link cannot be read, if
  /// it leads back to itself by links, if its folders are named train, val or test, or if the file of labels
  /// is not one.
  static PictureList of_folder(const std::string& folder, const PictureOptions& options,
                               bool must_be_labelled);
  /// Leaves out the pictures for which why[picture] is not empty, with a note of it each. DataError if none
  /// is left.
  void leave_out(const std::vector<std::string>& why);
  /// The inverse of text(). DataError if it is damaged.
  static PictureList parse(const std::string& folder, std::string_view text);
  /// A line a picture: bytes, class or label, name. What was left out comes first, in lines that begin with
  /// '#'.
  std::string text() const;

  std::int64_t size() const { return static_cast<std::int64_t>(entries_.size()); }  ///< pictures
  const std::string& folder() const { return folder_; }
  std::string name(std::int64_t picture) const;  ///< "FOLDER/cat/1.jpg"
  std::int64_t bytes(std::int64_t picture) const { return entry(picture).bytes; }
  /// Number of its class, or its label; -1: it has none.
  std::int64_t label(std::int64_t picture) const { return entry(picture).label; }
  /// In the order of their numbers; empty if labels are numbers.
  const std::vector<std::string>& classes() const { return classes_; }
  /// Pictures that options.labels names and the folder lacks, and where: "labels.csv:7".
  const std::map<std::string, std::string>& elsewhere() const { return elsewhere_; }
  /// What was left out, for a message each: "DIR: 3 files are not pictures by their names (DIR/a.txt)".
  const std::vector<std::string>& notes() const { return notes_; }

 private:
  struct Entry {
    std::uint64_t name_begin = 0;  // in names_; it ends where the next begins
    std::int64_t bytes = 0, label = -1;
  };

  const Entry& entry(std::int64_t picture) const { return entries_[static_cast<std::size_t>(picture)]; }
  std::string_view relative_name(std::int64_t picture) const;
  void add(std::string_view name, std::int64_t bytes, std::int64_t label);
  void name_labels(const std::vector<std::string>& labels);
  bool read_labels(const std::string& file);
  void check_parts() const;

  std::string folder_, names_;
  std::vector<Entry> entries_;
  std::vector<std::string> classes_, notes_;
  std::map<std::string, std::string> elsewhere_;  // not part of text()
};

}  // namespace lockstep::data
