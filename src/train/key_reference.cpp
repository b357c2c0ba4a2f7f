// The keys of a configuration for readers, as declared in train/config.h.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "train/config.h"

namespace lockstep::train {
namespace {

struct Entry {
  std::string name, initial, meaning, form;
  bool may_change = false;
  /// Models, tasks or optimizers that have this key; empty: every configuration has it.
  std::vector<std::string> owners{};

  std::string section() const { return name.substr(0, name.find('.')); }
  std::string text() const {
    return owners.empty() ? meaning : fmt::format("{}: {}", fmt::join(owners, ", "), meaning);
  }
};

Entry entry_of(const OptionText& option, const std::string& name, const std::string& initial) {
  return {.name = name,
          .initial = option.traits.required ? "" : initial,
          .meaning = option.meaning,
          .form = option.form(),
          .may_change = option.traits.may_change};
}

/// The keys of all models, of all tasks or of all optimizers. Things that describe an option in the same
/// words share an entry. If their defaults differ, it has the word for the default, if any.
template <class Registry>
void add_registered(std::vector<Entry>& entries, std::string_view prefix, const Registry& registry) {
  const std::size_t first = entries.size();
  for (const auto& type : registry.types()) {
    const auto defaults = registry.configure(type.name);
    for (const auto& option : type.options) {
      Entry entry = entry_of(option, section_prefix(type, prefix) + option.name, option.get(defaults));
      const auto same = std::ranges::find_if(entries, [&](const Entry& other) {
        return other.name == entry.name && other.meaning == entry.meaning && other.form == entry.form;
      });
      Entry& shared = same == entries.end() ? entries.emplace_back(entry) : *same;
      if (shared.initial != entry.initial)
        shared.initial = option.kind == "number" && !option.words.empty() ? option.words[0] : "";
      shared.owners.push_back(type.name);
    }
  }
  for (std::size_t i = first; i < entries.size(); ++i)
    if (entries[i].owners.size() == registry.types().size()) entries[i].owners.clear();
}

std::vector<Entry> all_entries(const Registries& registries) {
  std::vector<Entry> entries;
  const Config defaults;
  for (const Key& key : keys_of({})) {
    Entry entry = entry_of(key, key.name, key.get(defaults));
    if (!entries.empty() && entries.back().section() == "optimizer" && entry.section() != "optimizer") {
      entries.push_back(
          {.name = "optimizer.group.N",
           .initial = {},
           .meaning = "parameters with other rates: name pattern, lr factor, weight decay factor",
           .form = "text"});
    }
    if (key.name == "model.name") entry.form = fmt::format("{}", fmt::join(registries.models.names(), ", "));
    if (key.name == "task.name") entry.form = fmt::format("{}", fmt::join(registries.tasks.names(), ", "));
    if (key.name == "optimizer.name")
      entry.form = fmt::format("{}", fmt::join(registries.optimizers.names(), ", "));
    entries.push_back(std::move(entry));
    if (key.name == "model.name") add_registered(entries, "model.", registries.models);
    if (key.name == "task.name") add_registered(entries, "task.", registries.tasks);
    if (key.name == "data.augment") add_registered(entries, data_format_key, registries.data);
    // Where OptimizerConfig::options() has them.
    if (key.name == "optimizer.min_lr") add_registered(entries, "optimizer.", registries.optimizers);
  }
  for (const auto& option : SampleConfig::options(true)) {  // the task decides the keys of [sample]
    Entry entry = entry_of(option, "sample." + option.name, option.get(defaults.sample));
    entry.owners = {"language"};
    if (std::ranges::find(entries, entry.name, &Entry::name) == entries.end()) entries.push_back(entry);
  }
  return entries;
}

constexpr std::array introduction{
    "A configuration is an INI file: [section] lines and key = value lines; # begins a comment. lockstep "
    "train takes the same keys on the command line, as --set SECTION.KEY=VALUE.",
    "A whole number may be written as 1e6. A value may be quoted, in single or double quotes. In double "
    "quotes, \\\" \\\\ \\n \\t \\r and \\xHH "
    "are escapes as in C. Values of a list are separated by blanks; a value that contains a blank is "
    "quoted.",
    "[model] takes the keys of the model that model.name names, and no others; [task] those of the task, "
    "or a section that has the task's name.",
    "The resolved configuration is written to RUN/config.ini and stored in every checkpoint. A resume may "
    "change the keys marked *; any other difference is an error."};

std::string replaced(std::string text, std::string_view what, std::string_view by) {
  for (std::size_t at = 0; (at = text.find(what, at)) != text.npos; at += by.size())
    text.replace(at, what.size(), by);
  return text;
}

std::string in_roff(const std::string& plain) {
  const std::string text = replaced(plain, "\\", "\\e");
  return text.starts_with('.') || text.starts_with('\'') ? "\\&" + text : text;
}

/// In a cell of a table.
std::string in_markdown(std::string text) {
  for (const auto& [what, by] : {std::pair{"\\", "\\\\"}, {"|", "\\|"}, {"*", "\\*"}})
    text = replaced(std::move(text), what, by);
  return text;
}

}  // namespace

std::string describe_keys(const Registries& registries) {
  std::string text;
  for (const Entry& entry : all_entries(registries)) {
    text += fmt::format("{} {:<26} {:<12} {} ({})\n", entry.may_change ? '*' : ' ', entry.name, entry.initial,
                        entry.text(), entry.form);
  }
  return text + "*: a resume may change it\n";
}

std::string keys_as_man_page(const std::string& version) {
  std::string page = fmt::format(
      ".TH LOCKSTEP.INI 5 \"\" \"Lockstep {}\" \"File Formats\"\n.SH NAME\nlockstep.ini \\- configuration of "
      "a run of lockstep train\n.SH DESCRIPTION\n",
      version);
  for (const char* const paragraph : introduction) page += fmt::format("{}\n.PP\n", in_roff(paragraph));
  page += "Defaults are in brackets.\n.SH CONFIGURATION KEYS\n";
  for (const Entry& entry : all_entries(built_in_registries())) {
    page += fmt::format(".TP\n.B {}{}{}\n{}\n", entry.name, entry.may_change ? " *" : "",
                        entry.initial.empty() ? "" : fmt::format(" [{}]", entry.initial),
                        in_roff(fmt::format("{} ({})", entry.text(), entry.form)));
  }
  return page + ".SH SEE ALSO\n.BR lockstep (1)\n";
}

std::string keys_as_markdown() {
  std::string page =
      "# Configuration\n\n<!-- The program writes this page: lockstep_keys_page markdown "
      "docs/configuration.md -->\n";
  for (const char* const paragraph : introduction) page += fmt::format("\n{}\n", in_markdown(paragraph));
  std::string section;
  for (const Entry& entry : all_entries(built_in_registries())) {
    if (entry.section() != section) {
      section = entry.section();
      page += fmt::format("\n## [{}]\n\n| key | default | values | meaning |\n|---|---|---|---|\n", section);
    }
    page += fmt::format("| `{}`{} | {} | {} | {} |\n", entry.name.substr(section.size() + 1),
                        entry.may_change ? " \\*" : "",
                        entry.initial.empty() ? "" : fmt::format("`{}`", entry.initial),
                        in_markdown(entry.form), in_markdown(entry.text()));
  }
  return page;
}

}  // namespace lockstep::train
