// The text of a configuration: its sections and keys, with the lines where they are; and its mistakes, all in
// one error.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/error.h"

namespace lockstep::train {

/// [section] and key = value lines; # begins a comment.
class ConfigText {
 public:
  struct Key {
    std::string name;   ///< SECTION.KEY
    std::string value;  ///< with its quotes
    int line;           ///< from 1
  };
  struct Section {
    std::string name;
    int line;
  };
  /// Whether errors tell lines: of a file that a person writes, not of the text in a checkpoint.
  enum class Lines { told, untold };

  /// `origin` names the text in errors. UsageError for a line that is neither, and for a key given twice.
  ConfigText(const std::string& text, std::string origin, Lines lines);

  const std::string& origin() const { return origin_; }
  const std::vector<Key>& keys() const { return keys_; }
  const std::vector<Section>& sections() const { return sections_; }
  /// "a.ini:7", or "a.ini" if lines are not told.
  std::string place(int line) const;
  /// Of the key; the origin if it is not there.
  std::string place_of(std::string_view key) const;

 private:
  std::string origin_;
  Lines lines_;
  std::vector<Section> sections_;
  std::vector<Key> keys_;
};

/// A name of a key in an error: typing errors unchanged, anything else quoted and cut.
std::string shown(const std::string& name);

/// All that is wrong about a configuration, in one error.
class Mistakes {
 public:
  /// Runs a check, whose UsageError is one of the mistakes.
  template <class Check>
  void collect(const Check& check) {
    try {
      check();
    } catch (const UsageError& error) {
      texts_.emplace_back(error.what());
    }
  }
  /// UsageError: "3 mistakes: (1) a.ini:4: ... (2) ..."; the text alone if there is one.
  void throw_if_any() const;

 private:
  std::vector<std::string> texts_;
};

}  // namespace lockstep::train
