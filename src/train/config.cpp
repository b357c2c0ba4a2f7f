#include "train/config.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <functional>
#include <optional>
#include <set>

#include "base/files.h"
#include "base/lines.h"
#include "base/text.h"
#include "lockstep/base/error.h"
#include "lockstep/tasks/built_in.h"

namespace lockstep::train {
namespace {

constexpr std::string_view group_prefix = "optimizer.group.", model_prefix = "model.";

/// [section] and key = value lines.
class ConfigText {
 public:
  /// `origin` names the text in errors, which tell lines of a file that a person writes, not of the text in a
  /// checkpoint. UsageError for a line that is neither, and for a key given twice.
  ConfigText(std::string text, std::string origin, bool tells_lines)
      : text_(std::move(text)), origin_(std::move(origin)), tells_lines_(tells_lines) {
    std::set<std::string> names;
    for (const IniLine& line : ini_lines(text_)) {
      if (line.kind == IniLine::Kind::neither)
        throw UsageError("{}: not an INI file of [section] and key = value lines: this line is neither: {}",
                         place(line.number), shown(std::string(line.key)));
      const bool is_key = line.kind == IniLine::Kind::key;
      (is_key ? keys_ : sections_).push_back(line);
      if (is_key && !names.insert(line.name()).second)
        throw UsageError("{}: {}: is given twice", place(line.number), shown(line.name()));
    }
  }

  /// A name of a key in an error: typing errors unchanged, anything else quoted and cut.
  static std::string shown(const std::string& name) {
    constexpr std::size_t longest_shown = 120;
    return name.size() <= longest_shown && is_printable(name) ? name : quote(name);
  }
  const std::string& origin() const { return origin_; }
  const std::vector<IniLine>& keys() const { return keys_; }
  const std::vector<IniLine>& sections() const { return sections_; }
  /// "a.ini:7", or "a.ini" if lines are not told.
  std::string place(int line) const { return tells_lines_ ? fmt::format("{}:{}", origin_, line) : origin_; }
  /// Of the key; the origin if it is not there.
  std::string place_of(std::string_view name) const {
    const auto key = std::ranges::find(keys_, name, &IniLine::name);
    return key == keys_.end() ? origin_ : place(key->number);
  }

 private:
  const std::string text_;
  std::string origin_;
  bool tells_lines_;
  std::vector<IniLine> keys_, sections_;
};

std::string shown(const std::string& name) { return ConfigText::shown(name); }

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
  void throw_if_any() const {
    constexpr std::size_t most_named = 12;
    if (texts_.empty()) return;
    if (texts_.size() == 1) throw UsageError("{}", texts_.front());
    std::string all;
    for (std::size_t i = 0; i < std::min(texts_.size(), most_named); ++i)
      all += fmt::format(" ({}) {}", i + 1, texts_[i]);
    if (texts_.size() > most_named) all += fmt::format(" ... and {} more", texts_.size() - most_named);
    throw UsageError("{} mistakes:{}", texts_.size(), all);
  }

 private:
  std::vector<std::string> texts_;
};

/// optimizer.group.N = PATTERN [lr factor [decay factor]]
void set_group(Config& config, const std::string& name, const std::string& value) {
  constexpr Range places = Range::from(0, 1e6), factors = Range::from(0, 1e38);
  int number = 0;
  try {
    option::read(name.substr(group_prefix.size()), places, number);
  } catch (const UsageError& error) {
    throw UsageError("the N of {}N: {}", group_prefix, error.what());
  }
  const std::vector<std::string> words = option::words_of(value);
  if (words.empty()) throw UsageError("a name pattern is missing");
  if (words.size() > 3) throw UsageError("{} is not: PATTERN LR_FACTOR DECAY_FACTOR", quote(value));
  optim::ParamGroup group{.pattern = words[0]};
  if (words.size() > 1) option::read(words[1], factors, group.lr_factor);
  if (words.size() > 2) option::read(words[2], factors, group.decay_factor);
  config.optimizer.groups[number] = group;
}

/// "batch-size" and "train.Batch_Size" -> "batch_size"
std::string bare_name(const std::string& name) {
  std::string bare = name.substr(name.rfind('.') + 1);
  for (char& letter : bare)
    letter = letter == '-' ? '_' : static_cast<char>(std::tolower(static_cast<unsigned char>(letter)));
  return bare;
}

/// A key of earlier versions. Its old default is still accepted, and has no effect.
struct RemovedKey {
  std::string_view name, initial, instead;
};
constexpr std::array removed_keys{
    RemovedKey{"ddp.hook", "none",
               "ddp.reduce_dtype = bf16 halves the bytes of gradients; a program can set a hook "
               "(ddp::Options::hook)"},
    RemovedKey{"checkpoint.io", "posix",
               "each rank writes its share with pwrite, as posix did; the file is the same"},
};

const RemovedKey* removed_key_named(std::string_view name) {
  const auto key = std::ranges::find(removed_keys, name, &RemovedKey::name);
  return key == removed_keys.end() ? nullptr : &*key;
}

/// Reads the keys of one configuration, and remembers where each was set last, for errors found at the end.
class Reader {
 public:
  Reader(const ConfigText& text, const Registries& registries)
      : text_(text),
        models_(registries.models),
        tasks_(registries.tasks),
        optimizers_(registries.optimizers) {
    config_.registries = &registries;
  }

  /// Comes before any other key: model.name and task.name decide which keys there are.
  void choose(const std::vector<std::string>& overrides);
  void set_from_file(const std::string& name, const std::string& value);
  /// The same for the text of a run or checkpoint.
  void set_stored(const std::string& name, const std::string& value);
  void override_by(const std::string& text);
  Config finish();

 private:
  const Key* key_named(std::string_view name) const {
    const auto key = std::ranges::find(keys_, name, &Key::name);
    return key == keys_.end() ? nullptr : &*key;
  }
  void set(const std::string& origin, const std::string& name, const std::string& value);
  std::string why_unknown(const std::string& name) const;
  bool is_default_of_another_model(const std::string& name, const std::string& value) const;
  bool is_of_another_optimizer(const std::string& name) const;

  [[noreturn]] void refuse(std::string_view name, std::string_view what) const;
  void require(bool holds, std::string_view name, std::string_view what) const {
    if (!holds) refuse(name, what);
  }
  void check_required(Mistakes& mistakes) const;
  void check_data() const;
  void check_train() const;
  void check_graph() const;
  /// The rules of a section, whose Misfit names its key.
  template <class Check>
  void check_fit(std::string_view section, const Check& check) const {
    try {
      check();
    } catch (const Misfit& error) {
      refuse(fmt::format("{}.{}", section, error.option()), error.why());
    }
  }

  const ConfigText& text_;
  const models::Registry& models_;
  const tasks::Registry& tasks_;
  const optim::Registry& optimizers_;
  Config config_;
  std::vector<Key> keys_ = keys_of({});
  std::set<std::string, std::less<>> overridden_;  // by --set
  std::vector<std::string> unused_;                // keys of other optimizers
};

/// The key and the value of a --set.
std::pair<std::string, std::string> parts_of(const std::string& override_text) {
  const std::size_t equals = override_text.find('=');
  if (equals == std::string::npos)
    throw UsageError("--set {}: write it as SECTION.KEY=VALUE", quote(override_text));
  return {override_text.substr(0, equals), override_text.substr(equals + 1)};
}

/// The value of a key that is read before the others, and where it was given.
struct Given {
  std::string value, origin;
};

Given given_for(std::string_view key, const ConfigText& text, const std::vector<std::string>& overrides) {
  Given given{.value = "", .origin = text.place_of(key)};
  for (const IniLine& line : text.keys())
    if (line.name() == key) given.value = line.value;
  for (const std::string& override_text : overrides) {
    const auto [name, value] = parts_of(override_text);
    if (name == key) given = {.value = value, .origin = "--set"};
  }
  return given;
}

/// The registered thing that the key names; `otherwise`: if it names none.
template <class Registry>
typename Registry::Choice chosen(const Registry& registry, std::string_view key, const Given& given,
                                 const std::string& otherwise) {
  try {
    std::string name = option::unquoted(given.value);
    if (name.empty()) name = otherwise;
    if (name.empty()) throw UsageError("is missing; one of {}", fmt::join(registry.names(), ", "));
    return registry.configure(name);
  } catch (const UsageError& error) {
    throw UsageError("{}: {}: {}", given.origin, key, error.what());
  }
}

void Reader::choose(const std::vector<std::string>& overrides) {
  const auto given = [&](std::string_view key) { return given_for(key, text_, overrides); };
  config_.model = chosen(models_, model_name_key, given(model_name_key), "");
  config_.task = chosen(tasks_, task_name_key, given(task_name_key), config_.model.type->traits.task);
  config_.optimizer.algorithm =
      chosen(optimizers_, optimizer_name_key, given(optimizer_name_key), OptimizerConfig::usual);
  const data::Registry& kinds = config_.registries->data;
  if (const std::string kind = option::unquoted(given(data_format_key).value); kinds.has(kind))
    config_.data.kind = kinds.configure(kind);
  keys_ = keys_of(kinds_of(config_));
}

/// A value that says nothing: what a text of another version may hold of keys that are unknown here.
bool says_nothing(const std::string& value) {
  return value.empty() || value == "0" || value == "false" || value == "\"\"";
}

/// The names of things that have this key.
template <class Registry>
std::vector<std::string> owners_of(std::string_view key, const Registry& registry,
                                   std::string_view name_key) {
  std::vector<std::string> owners;
  for (const auto& type : registry.types()) {
    const std::string prefix = section_prefix(type, name_key);
    if (key.starts_with(prefix) &&
        std::ranges::find(type.options, key.substr(prefix.size()),
                          &Option<typename Registry::Choice>::name) != type.options.end())
      owners.push_back(type.name);
  }
  return owners;
}

/// Earlier versions wrote the keys of all models into every resolved configuration.
bool Reader::is_default_of_another_model(const std::string& name, const std::string& value) const {
  if (!name.starts_with(model_prefix) || key_named(name)) return false;
  const std::string option = name.substr(model_prefix.size());
  return std::ranges::any_of(owners_of(name, models_, model_name_key), [&](const std::string& owner) {
    return says_nothing(value) || models_.configure(owner).value(option) == value;
  });
}

/// Earlier versions wrote the keys of all optimizers.
bool Reader::is_of_another_optimizer(const std::string& name) const {
  return !key_named(name) && !owners_of(name, optimizers_, optimizer_name_key).empty();
}

/// The error of a key that this configuration does not have, with the key that is meant: a word of another
/// program, the nearest name, or the same name in another section.
std::string Reader::why_unknown(const std::string& name) const {
  const auto why_not_here = [&](std::string_view name_key, const auto& registry, const std::string& here) {
    const std::vector<std::string> owners = owners_of(name, registry, name_key);
    return owners.empty() ? std::string()
                          : fmt::format("is a key of {}, and {} is {}; remove it", fmt::join(owners, ", "),
                                        name_key, here);
  };
  for (const std::string& why : {why_not_here(model_name_key, models_, config_.model.name()),
                                 why_not_here(task_name_key, tasks_, config_.task.name())})
    if (!why.empty()) return why;
  const std::string bare = bare_name(name);
  std::vector<std::string> known;
  std::string meant;
  const auto add = [&](const std::string& key, const OptionTraits& traits) {
    if (meant.empty() && std::ranges::find(traits.peers, bare) != traits.peers.end()) meant = key;
    known.push_back(key);
  };
  for (const Key& key : keys_) add(key.name, key.traits);
  const auto add_all = [&](std::string_view name_key, const auto& registry) {
    for (const auto& type : registry.types())
      for (const auto& option : type.options)
        add(section_prefix(type, name_key) + option.name, option.traits);
  };
  add_all(model_name_key, models_);
  add_all(task_name_key, tasks_);
  add_all(optimizer_name_key, optimizers_);
  if (meant.empty()) meant = nearest_name(name, known);
  if (meant.empty()) {
    const auto same =
        std::ranges::find_if(known, [&](const std::string& key) { return bare_name(key) == bare; });
    if (same == known.end())
      return fmt::format("unknown key; see {} train --help-keys", config_.registries->program);
    meant = *same;
  }
  return fmt::format("unknown key; did you mean {}?", meant);
}

void Reader::set(const std::string& origin, const std::string& name, const std::string& value) {
  const RemovedKey* const removed = removed_key_named(name);
  try {
    if (removed) {
      if (option::unquoted(value) == removed->initial) return;
    } else if (name.starts_with(group_prefix)) {
      return set_group(config_, name, value);
    } else if (const Key* const key = key_named(name)) {
      return key->set(config_, value);
    } else if (is_of_another_optimizer(name)) {
      if (std::ranges::find(unused_, name) == unused_.end()) unused_.push_back(name);
      return;
    } else {
      throw UsageError("{}", why_unknown(name));
    }
  } catch (const UsageError& error) {
    throw UsageError("{}: {}: {}", origin, shown(name), error.what());
  }
  throw UsageError("{}: {} was removed: {}; remove it", origin, name, removed->instead);
}

void Reader::set_from_file(const std::string& name, const std::string& value) {
  if (!is_default_of_another_model(name, value)) set(text_.place_of(name), name, value);
}

void Reader::set_stored(const std::string& name, const std::string& value) {
  if (name.starts_with(group_prefix) || key_named(name)) return set(text_.place_of(name), name, value);
  const RemovedKey* const removed = removed_key_named(name);
  if (says_nothing(value) || (removed && value == removed->initial)) return;
  if (is_default_of_another_model(name, value) || is_of_another_optimizer(name)) return;
  const std::string why =
      removed ? fmt::format("{} was removed", name) : "this version of Lockstep does not know the key";
  throw UsageError(
      "{}: {} = {}: {}, so it cannot continue the run; use the version that wrote it, or start a new run "
      "from the weights (--run OTHER --resume FILE)",
      text_.place_of(name), shown(name), quote(value), why);
}

void Reader::override_by(const std::string& text) {
  const auto [name, value] = parts_of(text);
  set("--set", name, value);
  overridden_.insert(name);
}

void Reader::refuse(std::string_view name, std::string_view what) const {
  const Key* const key = key_named(name);
  const std::string value = key ? key->get(config_) : "";
  throw UsageError("{}: {}{}{}: {}", overridden_.contains(name) ? "--set" : text_.place_of(name), name,
                   value.empty() ? "" : " = ", value, what);
}

void Reader::check_required(Mistakes& mistakes) const {
  Config defaults;
  defaults.model = {.type = config_.model.type, .options = config_.model.type->defaults};
  defaults.task = {.type = config_.task.type, .options = config_.task.type->defaults};
  defaults.data.kind = {.type = config_.data.kind.type, .options = {}};
  if (config_.data.kind.type) defaults.data.kind.options = config_.data.kind.type->defaults;
  defaults.optimizer.algorithm = {.type = config_.optimizer.algorithm.type,
                                  .options = config_.optimizer.algorithm.type->defaults};
  for (const Key& key : keys_) {
    if (key.name == model_name_key || !key.traits.required || key.get(config_) != key.get(defaults)) continue;
    mistakes.collect(
        [&] { throw UsageError("{}: {} is missing: {}", text_.origin(), key.name, key.meaning); });
  }
}

/// Reasons that are known before there is a device. The capture of the first step finds the others.
void Reader::check_graph() const {
  if (config_.train.cuda_graph != ddp::Graph::always) return;
  const auto check = [&](bool holds, std::string_view why) {
    require(holds, "train.cuda_graph", fmt::format("{}; use auto", why));
  };
  check(config_.train.device != "cpu", "only GPUs have graphs (train.device = cpu)");
  const std::string dropout = config_.model.value("dropout");
  check(dropout.empty() || dropout == "0",
        "dropout draws new random numbers in every step; a graph repeats them");
  check(config_.model.value("batch_norm") != "sync", "a graph cannot contain model.batch_norm = sync");
  check(!config_.ddp.sharded_optimizer, "a graph cannot contain ddp.sharded_optimizer = true");
}

void Reader::check_train() const {
  require(config_.train.steps > 0 || config_.train.epochs > 0, "train.steps", "is missing or not positive");
  require(config_.train.label_smoothing == 0 || config_.task.options_of<tasks::Classification>() ||
              config_.task.options_of<tasks::Language>(),
          "train.label_smoothing", "applies to the tasks classification and language only");
}

void Reader::check_data() const {
  require(config_.data.eval.empty() || config_.data.eval_fraction == 0, "data.eval_fraction",
          "cannot be combined with data.eval; give one of them");
  const DataConfig& data = config_.data;
  const bool arrays = data.format.empty() || data.format == "arrays";
  const bool read_as_they_are = data.format == "images" || data.format == "text";
  for (const auto& [key, is_in_vain] : {std::pair("data.fields", !data.fields.empty() && !arrays),
                                        {"data.normalize", !data.normalize.empty() && read_as_they_are}})
    require(!is_in_vain, key,
            fmt::format("is a key of arrays, but data.format is {}; remove it", data.format));
  if (data.range.empty()) return;
  require(data.range.size() == 2 && data.range[0] < data.range[1], "data.range",
          "takes two numbers, the lower one first");
  require(std::ranges::find(data.normalize, "x") == data.normalize.end(), "data.range",
          "cannot be combined with data.normalize of x; give one of them");
}

/// Completes the configuration, and checks the rules that need several keys.
Config Reader::finish() {
  // --set of one of them replaces the other of the file.
  const bool steps = overridden_.contains("train.steps"), epochs = overridden_.contains("train.epochs");
  if (steps && !epochs) config_.train.epochs = 0;
  if (epochs && !steps) config_.train.steps = 0;
  if (!unused_.empty())
    config_.note = fmt::format("{}: {}: of other optimizers than optimizer.name = {}, without effect",
                               text_.origin(), fmt::join(unused_, ", "), config_.optimizer.algorithm.name());
  Mistakes mistakes;
  check_required(mistakes);
  mistakes.collect([&] { check_data(); });
  mistakes.collect([&] { check_train(); });
  mistakes.collect([&] {
    const optim::Algorithm& algorithm = config_.optimizer.algorithm;
    check_fit("optimizer", [&] {
      if (algorithm.type->check) algorithm.type->check(algorithm.options);
      config_.optimizer.schedule.check();
    });
  });
  mistakes.collect([&] { check_fit("ema", [&] { config_.ema.check(); }); });
  mistakes.collect([&] { check_graph(); });
  mistakes.throw_if_any();
  return config_;
}

/// Its keys would be refused one by one, and without keys it would do nothing.
void check_sections(const ConfigText& text, const Registries& registries) {
  std::vector<std::string> known;
  for (const Key& key : keys_of({})) known.push_back(key.name.substr(0, key.name.find('.')));
  const auto add = [&](const auto& registry) {
    for (const auto& type : registry.types())
      if (!type.section.empty()) known.push_back(type.section);
  };
  add(registries.models);
  add(registries.tasks);
  add(registries.optimizers);
  add(registries.data);
  Mistakes mistakes;
  for (const IniLine& line : text.sections()) {
    const std::string name(line.section);
    if (std::ranges::find(known, name) != known.end()) continue;
    const std::string nearest = nearest_name(name, known);
    mistakes.collect([&, where = text.place(line.number)] {
      throw UsageError("{}: [{}]: unknown section; {}", where, name,
                       nearest.empty() ? "see " + registries.program + " train --help-keys"
                                       : "did you mean [" + nearest + "]?");
    });
  }
  mistakes.throw_if_any();
}

}  // namespace

Config parse_config(const std::string& text, const std::string& origin,
                    const std::vector<std::string>& overrides, const Registries& registries) {
  const ConfigText read(text, origin, true);
  check_sections(read, registries);
  Reader reader(read, registries);
  reader.choose(overrides);
  Mistakes mistakes;
  for (const IniLine& key : read.keys())
    mistakes.collect([&] { reader.set_from_file(key.name(), std::string(key.value)); });
  for (const std::string& override_text : overrides)
    mistakes.collect([&] { reader.override_by(override_text); });
  mistakes.throw_if_any();
  return reader.finish();
}

Config parse_stored_config(const std::string& text, const std::string& origin, const Registries& registries) {
  const ConfigText read(text, origin, false);
  Reader reader(read, registries);
  try {
    reader.choose({});
  } catch (const UsageError& error) {
    throw UsageError(
        "{}; if another program wrote it, whose models and tasks {} does not have, use that program",
        error.what(), registries.program);
  }
  for (const IniLine& key : read.keys()) reader.set_stored(key.name(), std::string(key.value));
  return reader.finish();
}

Config read_config(const std::string& path, const std::vector<std::string>& overrides,
                   const Registries& registries) {
  std::string text;
  try {
    text = read_text(path);
  } catch (const Error& error) {
    throw UsageError("{}; the configuration is read from there: check the path", error.what());
  }
  return parse_config(text, path, overrides, registries);
}

std::string to_text(const optim::ParamGroup& group) {
  return fmt::format("{} {} {}", option::printed(group.pattern, true), group.lr_factor, group.decay_factor);
}

std::string to_text(const Config& config) {
  std::string text, section;
  for (const Key& key : keys_of(kinds_of(config))) {
    const std::size_t dot = key.name.find('.');
    if (key.name.substr(0, dot) != section) {
      if (section == "optimizer") {
        for (const auto& [number, group] : config.optimizer.groups)
          text += fmt::format("group.{} = {}\n", number, to_text(group));
      }
      section = key.name.substr(0, dot);
      text += fmt::format("{}[{}]\n", text.empty() ? "" : "\n", section);
    }
    text += fmt::format("{} = {}\n", key.name.substr(dot + 1), key.get(config));
  }
  return text;
}

}  // namespace lockstep::train
