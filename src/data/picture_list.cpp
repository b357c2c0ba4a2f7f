#include "data/picture_list.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <filesystem>
#include <map>
#include <system_error>
#include <unordered_map>
#include <utility>

#include "base/progress.h"
#include "base/text.h"
#include "data/csv_file.h"
#include "lockstep/base/error.h"

namespace lockstep::data {

bool is_picture_name(std::string_view name) {
  const std::string suffix = lower_case(name.substr(std::min(name.rfind('.'), name.size())));
  constexpr std::array suffixes{".jpg", ".jpeg", ".jpe", ".jfif", ".png"};
  return std::ranges::find(suffixes, suffix) != suffixes.end();
}

namespace {

namespace fs = std::filesystem;

struct FoundFile {
  std::string name;  // below the folder
  std::int64_t bytes = 0;
};

/// Walks through a folder.
class Walk {
 public:
  Walk(const std::string& folder, bool skip_bad) : skip_bad_(skip_bad) { visit("", folder); }

  std::vector<FoundFile> pictures;
  std::vector<std::string> others;

 private:
  [[noreturn]] static void fail(const fs::path& path, const std::error_code& error) {
    throw DataError("{}: cannot be read: {}", path.string(), error.message());
  }

  void visit(const std::string& below, const fs::path& path) {
    std::error_code error;
    const fs::path real = fs::canonical(path, error);
    if (error) fail(path, error);
    if (std::ranges::find(above_, real) != above_.end())
      throw DataError("{}: is a link that leads back to {}; remove it", path.string(), real.string());
    above_.push_back(real);
    fs::directory_iterator at(path, error);
    if (error) fail(path, error);
    for (; at != fs::directory_iterator(); at.increment(error)) {
      const std::string name = at->path().filename().string();
      if (name.starts_with('.')) continue;
      const std::string whole = below.empty() ? name : below + "/" + name;
      progress::tick();
      const fs::file_status status = at->status(error);
      const bool leads_nowhere = status.type() == fs::file_type::not_found;  // a link
      if (error && !(leads_nowhere && (skip_bad_ || !is_picture_name(name)))) fail(at->path(), error);
      if (fs::is_directory(status)) {
        visit(whole, at->path());
      } else if (is_picture_name(name) && (fs::is_regular_file(status) || leads_nowhere)) {
        if (whole.find_first_of("\n\t") != whole.npos)
          throw DataError("{}: its name has a tab or the end of a line; rename it",
                          quote(at->path().string()));
        const auto bytes = leads_nowhere ? 0 : at->file_size(error);
        if (error && !leads_nowhere) fail(at->path(), error);
        pictures.push_back({whole, static_cast<std::int64_t>(bytes)});
      } else {
        others.push_back(whole);
      }
    }
    if (error) fail(path, error);
    above_.pop_back();
  }

  bool skip_bad_;
  std::vector<fs::path> above_;  // folders that lead to this one, without links
};

/// "cat" of "cat/1.jpg"; empty of a file directly in the folder.
std::string_view folder_of(std::string_view name) {
  const std::size_t slash = name.find('/');
  return slash == name.npos ? std::string_view{} : name.substr(0, slash);
}

}  // namespace

std::string_view PictureList::relative_name(std::int64_t picture) const {
  const auto i = static_cast<std::size_t>(picture);
  const std::uint64_t begin = entries_[i].name_begin,
                      end = i + 1 < entries_.size() ? entries_[i + 1].name_begin : names_.size();
  return std::string_view(names_).substr(begin, end - begin);
}

std::string PictureList::name(std::int64_t picture) const {
  return fmt::format("{}/{}", folder_, relative_name(picture));
}

void PictureList::add(std::string_view name, std::int64_t bytes, std::int64_t label) {
  entries_.push_back({.name_begin = names_.size(), .bytes = bytes, .label = label});
  names_ += name;
}

PictureList PictureList::of_folder(const std::string& folder, const PictureOptions& options,
                                   bool must_be_labelled) {
  PictureList list;
  list.folder_ = folder;
  Walk walk(folder, options.skip_bad);
  if (walk.pictures.empty())
    throw DataError("{}: has no pictures (files named .jpg, .jpeg or .png){}", folder,
                    walk.others.empty()
                        ? ""
                        : fmt::format(", but {} ({})", pluralized(walk.others.size(), "other file"),
                                      quote(std::ranges::min(walk.others))));
  if (!walk.others.empty())
    list.notes_.push_back(fmt::format("{}: {} not named as pictures, and left out ({})", folder,
                                      pluralized(walk.others.size(), "file"),
                                      quote(std::ranges::min(walk.others))));
  std::ranges::sort(walk.pictures, {}, &FoundFile::name);
  for (const FoundFile& file : walk.pictures) list.add(file.name, file.bytes, -1);
  if (!options.labels.empty()) {
    if (list.read_labels(options.labels)) return list;
    if (must_be_labelled) throw DataError("{}: names no picture of {}", options.labels, folder);
    list.notes_.push_back(fmt::format("{}: {} names none of its pictures; its sub-folders are classes",
                                      folder, options.labels));
  }
  list.check_parts();
  std::vector<std::string> labels;
  for (std::int64_t i = 0; i < list.size(); ++i) labels.emplace_back(folder_of(list.relative_name(i)));
  list.name_labels(labels);
  return list;
}

/// The folders of a data set's parts would be taken for classes.
void PictureList::check_parts() const {
  constexpr std::array train{"train", "training"};
  constexpr std::array eval{"val", "valid", "validation", "test", "eval", "dev"};
  std::string train_part, eval_part;
  for (std::int64_t i = 0; i < size(); ++i) {
    const std::string_view folder = folder_of(relative_name(i));
    const std::string lower = lower_case(folder);
    if (std::ranges::find(train, lower) != train.end())
      train_part = folder;
    else if (std::ranges::find(eval, lower) != eval.end())
      eval_part = eval_part.empty() || lower.starts_with("val") ? folder : eval_part;
    else
      return;
  }
  if (train_part.empty() && eval_part.empty()) return;
  throw DataError("{0}: its folders are parts of a data set, not classes; write data.train = {0}/{1}{2}",
                  folder_, train_part.empty() ? eval_part : train_part,
                  train_part.empty() || eval_part.empty()
                      ? ""
                      : fmt::format(" and data.eval = {}/{}", folder_, eval_part));
}

/// Numbers the names in their order. A picture with an empty name has no label.
void PictureList::name_labels(const std::vector<std::string>& labels) {
  std::map<std::string_view, std::int64_t> numbers;
  for (const std::string& label : labels)
    if (!label.empty()) numbers.emplace(label, 0);
  for (auto& [name, number] : numbers) {
    number = std::ssize(classes_);
    classes_.emplace_back(name);
  }
  for (std::size_t i = 0; i < labels.size(); ++i)
    entries_[i].label = labels[i].empty() ? -1 : numbers.find(labels[i])->second;
}

/// Whole numbers from 0 on are labels themselves; if not all are, they are names. False: there are none.
bool PictureList::read_labels(const std::string& file) {
  std::unordered_map<std::string_view, std::size_t> pictures;
  for (std::int64_t i = 0; i < size(); ++i) pictures.emplace(relative_name(i), static_cast<std::size_t>(i));
  std::vector<std::string> labels(entries_.size());
  CsvFile csv(file, {.heading = false});
  bool first = true;
  std::string other;  // a label that is no whole number from 0 on
  while (csv.next()) {
    const std::vector<std::string_view>& fields = csv.fields();
    if (fields.size() < 2)
      throw DataError("{}: has {}: a picture and its label are needed", csv.where(),
                      pluralized(fields.size(), "field"));
    const bool is_heading = std::exchange(first, false) && !is_picture_name(fields[0]);
    if (is_heading) continue;
    const auto found = pictures.find(fields[0]);
    if (found == pictures.end()) {
      elsewhere_.emplace(fields[0], csv.where());
      continue;
    }
    if (fields[1].empty()) throw DataError("{}: {} has no label", csv.where(), quote(std::string(fields[0])));
    std::string& label = labels[found->second];
    if (!label.empty() && label != fields[1])
      throw DataError("{}: {} has the label {}, but in an earlier line {}", csv.where(),
                      quote(std::string(fields[0])), quote(std::string(fields[1])), quote(label));
    label = fields[1];
    std::int64_t number = -1;
    if (!parse_number(label, number) || number < 0) other = label;
  }
  // Pictures that the file does not name are no samples.
  std::vector<Entry> entries;
  std::vector<std::string> kept;
  std::string names;
  for (std::int64_t i = 0; i < size(); ++i) {
    std::string& label = labels[static_cast<std::size_t>(i)];
    if (label.empty()) continue;
    entries.push_back({.name_begin = names.size(), .bytes = bytes(i), .label = -1});
    names += relative_name(i);
    kept.push_back(std::move(label));
  }
  if (kept.empty()) return false;
  if (kept.size() < labels.size())
    notes_.push_back(fmt::format("{}: {} not named in {}, and left out", folder_,
                                 pluralized(labels.size() - kept.size(), "picture"), file));
  entries_ = std::move(entries);
  names_ = std::move(names);
  if (!other.empty()) {
    double number = 0;
    if (std::ranges::any_of(kept, [&](const std::string& label) { return parse_number(label, number); }))
      notes_.push_back(
          fmt::format("{}: labels are names of classes, numbers too: {} is no whole number from 0 on", file,
                      quote(other)));
    name_labels(kept);
    return true;
  }
  for (std::size_t i = 0; i < kept.size(); ++i) parse_number(kept[i], entries_[i].label);
  return true;
}

void PictureList::leave_out(const std::vector<std::string>& why) {
  const PictureList all = std::move(*this);
  *this = {};
  folder_ = all.folder_;
  classes_ = all.classes_;
  notes_ = all.notes_;
  for (std::int64_t i = 0; i < all.size(); ++i) {
    if (const std::string& error = why[static_cast<std::size_t>(i)]; error.empty())
      add(all.relative_name(i), all.bytes(i), all.label(i));
    else
      notes_.push_back("left out: " + error);
  }
  if (entries_.empty()) throw DataError("{}: none of its pictures can be decoded: {}", folder_, why.front());
}

std::string PictureList::text() const {
  std::string text;
  for (const std::string& note : notes_) text += fmt::format("#{}\n", on_one_line(note));
  for (const std::string& name : classes_) text += fmt::format("class\t{}\n", name);
  for (std::int64_t i = 0; i < size(); ++i)
    text += fmt::format("{}\t{}\t{}\n", bytes(i), label(i), relative_name(i));
  return text;
}

PictureList PictureList::parse(const std::string& folder, std::string_view text) {
  PictureList list;
  list.folder_ = folder;
  for (const std::string_view line : lines_of(text)) {
    const std::size_t first = line.find('\t'), second = line.find('\t', first + 1);
    std::int64_t bytes = 0, label = 0;
    if (line.starts_with('#'))
      list.notes_.emplace_back(line.substr(1));
    else if (line.starts_with("class\t"))
      list.classes_.emplace_back(line.substr(first + 1));
    else if (second != line.npos && parse_number(line.substr(0, first), bytes) &&
             parse_number(line.substr(first + 1, second - first - 1), label))
      list.add(line.substr(second + 1), bytes, label);
    else
      throw DataError("the list of pictures of {} is damaged: {}", folder, quote(std::string(line)));
  }
  return list;
}

}  // namespace lockstep::data
