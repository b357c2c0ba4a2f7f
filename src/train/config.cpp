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
#include "base/text.h"
#include "checkpoint/weights/foreign.h"
#include "lockstep/base/error.h"
#include "lockstep/base/option.h"
#include "lockstep/tasks/built_in.h"

namespace lockstep::train {
namespace {

constexpr std::string_view group_prefix = "optimizer.group.", model_prefix = "model.";

/// The name of a key for an error: a typing error is unchanged, other texts are quoted and shortened.
std::string key_text(const std::string& name) {
  constexpr std::size_t max_name_bytes = 120;
  return name.size() <= max_name_bytes && is_printable(name) ? name : quote(name);
}

/// A key with its value.
struct Setting {
  std::string name, value;
  std::string place;  ///< "a.ini:7", "a.h5 /config" or "--set"

  bool is_override() const { return place == "--set"; }
};

/// The settings of an INI text and its [section] lines, whose value is empty. `origin` names the text in
/// errors, which have line numbers for a user's file, but not for the text in a checkpoint. UsageError for an
/// invalid line, and for a repeated key.
struct ConfigText {
  ConfigText(const std::string& text, const std::string& origin, bool tells_lines) {
    std::set<std::string> names;
    for (const IniLine& line : ini_lines(text)) {
      const std::string place = tells_lines ? fmt::format("{}:{}", origin, line.number) : origin;
      if (line.kind == IniLine::Kind::neither)
        throw UsageError("{}: not an INI file of [section] and key = value lines: this line is neither: {}",
                         place, key_text(std::string(line.key)));
      if (line.kind == IniLine::Kind::section)
        sections.push_back({std::string(line.section), {}, place});
      else if (names.insert(line.name()).second)
        settings.push_back({line.name(), std::string(line.value), place});
      else
        throw UsageError("{}: {}: is given twice", place, key_text(line.name()));
    }
  }
  std::vector<Setting> settings, sections;
};

/// All mistakes of a configuration, in one error.
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
    constexpr std::size_t max_named = 12;
    if (texts_.empty()) return;
    if (texts_.size() == 1) throw UsageError("{}", texts_.front());
    std::string all;
    for (std::size_t i = 0; i < std::min(texts_.size(), max_named); ++i)
      all += fmt::format(" ({}) {}", i + 1, texts_[i]);
    if (texts_.size() > max_named) all += fmt::format(" ... and {} more", texts_.size() - max_named);
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

/// A key of earlier versions. Its old default is still valid, and has no effect.
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

/// Calls use(key, registry) for each key that names a registered thing.
template <class Use>
void for_each_registry(const Registries& registries, const Use& use) {
  use(model_name_key, registries.models);
  use(task_name_key, registries.tasks);
  use(optimizer_name_key, registries.optimizers);
  use(data_format_key, registries.data);
}

/// Reads the settings of one configuration. The last setting of a key counts.
class Reader {
 public:
  /// stored: the text of a run or checkpoint, not of a user. UsageError if model.name, task.name or
  /// optimizer.name is unknown, as they decide which other keys exist.
  Reader(std::vector<Setting> settings, std::string origin, bool stored, const Registries& registries);
  void set(const Setting& setting);
  /// Completes the configuration, and checks the rules that need several keys.
  Config finish();

 private:
  const Key* key_named(std::string_view name) const {
    const auto key = std::ranges::find(keys_, name, &Key::name);
    return key == keys_.end() ? nullptr : &*key;
  }
  const Setting* last(std::string_view name) const {
    const auto found = std::find_if(settings_.rbegin(), settings_.rend(),
                                    [&](const Setting& setting) { return setting.name == name; });
    return found == settings_.rend() ? nullptr : &*found;
  }
  bool is_overridden(std::string_view name) const { return last(name) && last(name)->is_override(); }
  template <class Registry>
  typename Registry::Choice choose(const Registry& registry, std::string_view key,
                                   const std::string& otherwise) const;
  std::string why_unknown(const std::string& name) const;
  bool is_default_of_another_model(const Setting& setting) const;

  [[noreturn]] void refuse(std::string_view name, std::string_view what) const;
  void require(bool holds, std::string_view name, std::string_view what) const {
    if (!holds) refuse(name, what);
  }
  Config defaults() const;
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

  const std::vector<Setting> settings_;
  const std::string origin_;
  const bool stored_;
  const Registries& registries_;
  Config config_;
  std::vector<Key> keys_;
  std::vector<std::string> unused_;  // keys of other optimizers
};

/// The registered thing that the key names; `otherwise` is the default.
template <class Registry>
typename Registry::Choice Reader::choose(const Registry& registry, std::string_view key,
                                         const std::string& otherwise) const {
  const Setting* const user_setting = last(key);
  try {
    std::string name = user_setting ? option::unquoted(user_setting->value) : "";
    if (name.empty()) name = otherwise;
    if (name.empty()) throw UsageError("is missing; one of {}", fmt::join(registry.names(), ", "));
    return registry.configure(name);
  } catch (const UsageError& error) {
    throw UsageError("{}: {}: {}", user_setting ? user_setting->place : origin_, key, error.what());
  }
}

Reader::Reader(std::vector<Setting> settings, std::string origin, bool stored, const Registries& registries)
    : settings_(std::move(settings)), origin_(std::move(origin)), stored_(stored), registries_(registries) {
  config_.registries = &registries;
  config_.model = choose(registries.models, model_name_key, "");
  config_.task = choose(registries.tasks, task_name_key, config_.model.type->traits.task);
  config_.optimizer.algorithm = choose(registries.optimizers, optimizer_name_key, OptimizerConfig::usual);
  if (const Setting* const format = last(data_format_key))
    if (const std::string kind = option::unquoted(format->value); registries.data.has(kind))
      config_.data.kind = registries.data.configure(kind);
  keys_ = keys_of(config_);
}

/// A value without effect, which a text of another version may have for an unknown key.
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
bool Reader::is_default_of_another_model(const Setting& setting) const {
  if (!setting.name.starts_with(model_prefix)) return false;
  const std::string option = setting.name.substr(model_prefix.size());
  const models::Registry& models = registries_.models;
  return std::ranges::any_of(owners_of(setting.name, models, model_name_key), [&](const std::string& owner) {
    return says_nothing(setting.value) || models.configure(owner).value(option) == setting.value;
  });
}

/// The error of an unknown key, with a suggestion: for a name of another program, the nearest name, or the
/// same name in another section.
std::string Reader::why_unknown(const std::string& name) const {
  const std::string bare = bare_name(name);
  std::vector<std::string> known;
  std::string meant, of_others;
  const auto add = [&](const std::string& key, const OptionTraits& traits) {
    if (meant.empty() && std::ranges::find(traits.peers, bare) != traits.peers.end()) meant = key;
    known.push_back(key);
  };
  for (const Key& key : keys_) add(key.name, key.traits);
  for_each_registry(registries_, [&](std::string_view name_key, const auto& registry) {
    const std::vector<std::string> owners = owners_of(name, registry, name_key);
    const std::string value = key_named(name_key)->get(config_);
    if (!owners.empty() && of_others.empty())
      of_others = fmt::format("is a key of {}, and {} is {}; remove it", fmt::join(owners, ", "), name_key,
                              value.empty() ? "auto" : value);
    for (const auto& type : registry.types())
      for (const auto& option : type.options)
        add(section_prefix(type, name_key) + option.name, option.traits);
  });
  if (!of_others.empty()) return of_others;
  if (meant.empty()) meant = nearest_name(name, known);
  if (meant.empty()) {
    const auto same =
        std::ranges::find_if(known, [&](const std::string& key) { return bare_name(key) == bare; });
    if (same == known.end()) return fmt::format("unknown key; see {} train --help-keys", registries_.program);
    meant = *same;
  }
  return fmt::format("unknown key; did you mean {}?", meant);
}

void Reader::set(const Setting& setting) {
  const std::string &name = setting.name, &value = setting.value;
  const RemovedKey* const removed = removed_key_named(name);
  try {
    if (name.starts_with(group_prefix)) return set_group(config_, name, value);
    if (const Key* const key = key_named(name)) return key->set(config_, value);
    if (stored_ && (says_nothing(value) || name.starts_with("sample."))) return;
    if (removed && option::unquoted(value) == removed->initial) return;
    if (!setting.is_override() && is_default_of_another_model(setting)) return;
    if (!owners_of(name, registries_.optimizers, optimizer_name_key).empty()) {
      if (!stored_ && std::ranges::find(unused_, name) == unused_.end()) unused_.push_back(name);
      return;
    }
    if (!stored_ && !removed) throw UsageError("{}", why_unknown(name));
  } catch (const UsageError& error) {
    throw UsageError("{}: {}: {}", setting.place, key_text(name), error.what());
  }
  if (!stored_) throw UsageError("{}: {} was removed: {}; remove it", setting.place, name, removed->instead);
  throw UsageError(
      "{}: {} = {}: {}, so it cannot continue the run; use the version that wrote it, or start a new run "
      "from the weights (--run OTHER --resume FILE)",
      setting.place, key_text(name), quote(value),
      removed ? fmt::format("{} was removed", name) : "this version of Lockstep does not know the key");
}

void Reader::refuse(std::string_view name, std::string_view what) const {
  const Key* const key = key_named(name);
  const std::string value = key ? key->get(config_) : "";
  throw UsageError("{}: {}{}{}: {}", last(name) ? last(name)->place : origin_, name,
                   value.empty() ? "" : " = ", value, what);
}

/// Those of the chosen model, task, optimizer and format.
Config Reader::defaults() const {
  Config defaults;
  defaults.model = registries_.models.configure(config_.model.name());
  defaults.task = registries_.tasks.configure(config_.task.name());
  defaults.optimizer.algorithm = registries_.optimizers.configure(config_.optimizer.algorithm.name());
  if (config_.data.kind.type) defaults.data.kind = registries_.data.configure(config_.data.kind.name());
  return defaults;
}

void Reader::check_required(Mistakes& mistakes) const {
  const Config defaults = this->defaults();
  for (const Key& key : keys_) {
    if (key.name == model_name_key || !key.traits.required || key.get(config_) != key.get(defaults)) continue;
    mistakes.collect([&] { throw UsageError("{}: {} is missing: {}", origin_, key.name, key.meaning); });
  }
}

/// Reasons that do not depend on the device. The capture of the first step finds the others.
void Reader::check_graph() const {
  if (config_.ddp.graph != ddp::Graph::always) return;
  const auto check = [&](bool holds, std::string_view why) {
    require(holds, "train.cuda_graph", fmt::format("{}; use auto", why));
  };
  check(config_.train.device != "cpu", "only GPUs have graphs (train.device = cpu)");
  check(config_.model.value("batch_norm") != "sync" || config_.train.frozen_statistics,
        "a graph cannot contain model.batch_norm = sync");
  check(!config_.ddp.sharded_optimizer, "a graph cannot contain ddp.sharded_optimizer = true");
}

void Reader::check_train() const {
  require(config_.train.steps > 0 || config_.train.epochs > 0, "train.steps", "is missing or not positive");
  require(config_.train.patience == 0 || config_.train.eval_every > 0, "train.patience",
          "counts evaluations, and there is one at the end only; set train.eval_every");
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

Config Reader::finish() {
  // --set of one of them overrides the other one in the file.
  const bool steps = is_overridden("train.steps"), epochs = is_overridden("train.epochs");
  if (steps && !epochs) config_.train.epochs = 0;
  if (epochs && !steps) config_.train.steps = 0;
  if (!unused_.empty())
    config_.note = fmt::format("{}: {}: of other optimizers than optimizer.name = {}, without effect",
                               origin_, fmt::join(unused_, ", "), config_.optimizer.algorithm.name());
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
  const Config defaults = this->defaults();
  for (const Key& key : keys_)
    if (last(key.name) &&
        (is_overridden(key.name) || key.name.ends_with(".name") || key.get(config_) != key.get(defaults)))
      config_.user_settings.emplace_back(key.name, key.get(config_));
  for (const auto& [number, group] : config_.optimizer.groups)
    config_.user_settings.emplace_back(fmt::format("{}{}", group_prefix, number), to_text(group));
  return config_;
}

/// Reports an unknown section once, instead of each of its keys.
void check_sections(const ConfigText& text, const Registries& registries) {
  std::vector<std::string> known;
  for (const Key& key : keys_of({})) known.push_back(key.name.substr(0, key.name.find('.')));
  for_each_registry(registries, [&](std::string_view, const auto& registry) {
    for (const auto& type : registry.types())
      if (!type.section.empty()) known.push_back(type.section);
  });
  Mistakes mistakes;
  for (const Setting& section : text.sections) {
    if (std::ranges::find(known, section.name) != known.end()) continue;
    const std::string nearest = nearest_name(section.name, known);
    mistakes.collect([&] {
      throw UsageError("{}: [{}]: unknown section; {}", section.place, section.name,
                       nearest.empty() ? "see " + registries.program + " train --help-keys"
                                       : "did you mean [" + nearest + "]?");
    });
  }
  mistakes.throw_if_any();
}

}  // namespace

namespace {

/// The value of a key; empty: it is not set.
std::string last_of(std::span<const Setting> settings, std::string_view name) {
  std::string value;
  for (const Setting& setting : settings)
    if (setting.name == name) value = setting.value;
  return value;
}

/// The options of the model that a folder of another program means, which the user's settings override.
/// folder: empty: that of train.init.
std::vector<Setting> settings_of_folder(std::string folder, std::span<const Setting> settings,
                                        const Registries& registries) {
  const std::string model = option::unquoted(last_of(settings, model_name_key));
  if (folder.empty()) folder = option::unquoted(last_of(settings, "train.init"));
  std::vector<Setting> found;
  if (!registries.models.has(model) || !is_directory(folder)) return found;
  if (const ForeignWeights* const by = registries.models.configure(model).type->traits.foreign)
    for (const auto& [option, value] : checkpoint::foreign_options(folder, *by))
      found.push_back({std::string(model_prefix) + option, value, folder + "/config.json"});
  return found;
}

}  // namespace

Config parse_config(const std::string& text, const std::string& origin,
                    const std::vector<std::string>& overrides, const Registries& registries,
                    const std::string& folder) {
  ConfigText read(text, origin, true);
  check_sections(read, registries);
  std::vector<Setting>& settings = read.settings;
  for (const std::string& override_text : overrides) {
    const std::size_t equals = override_text.find('=');
    if (equals == std::string::npos)
      throw UsageError("--set {}: write it as SECTION.KEY=VALUE", quote(override_text));
    settings.push_back({override_text.substr(0, equals), override_text.substr(equals + 1), "--set"});
  }
  const std::vector<Setting> of_folder = settings_of_folder(folder, settings, registries);
  settings.insert(settings.begin(), of_folder.begin(), of_folder.end());
  Reader reader(settings, origin, false, registries);
  Mistakes mistakes;
  for (const Setting& setting : settings) mistakes.collect([&] { reader.set(setting); });
  mistakes.throw_if_any();
  try {
    return reader.finish();
  } catch (const UsageError& error) {
    const std::string init = option::unquoted(last_of(settings, "train.init"));
    if (init.empty() || exists(init)) throw;
    throw UsageError("{} (train.init = {}: is not there; a folder of Hugging Face says the model's options)",
                     error.what(), init);
  }
}

Config parse_stored_config(const std::string& text, const std::string& origin, const Registries& registries) {
  const ConfigText read(text, origin, false);
  std::optional<Reader> reader;
  try {
    reader.emplace(read.settings, origin, true, registries);
  } catch (const UsageError& error) {
    throw UsageError(
        "{}; if another program wrote it, whose models and tasks {} does not have, use that program",
        error.what(), registries.program);
  }
  for (const Setting& setting : read.settings) reader->set(setting);
  return reader->finish();
}

Config read_config(const std::string& path, const std::vector<std::string>& overrides,
                   const Registries& registries, const std::string& folder) {
  std::string text;
  try {
    text = read_text(path);
  } catch (const Error& error) {
    throw UsageError("{}; the configuration is read from there: check the path", error.what());
  }
  return parse_config(text, path, overrides, registries, folder);
}

std::string to_text(const optim::ParamGroup& group) {
  return fmt::format("{} {} {}", option::printed(group.pattern, true), group.lr_factor, group.decay_factor);
}

std::string to_text(const Config& config) {
  std::string text, section;
  for (const Key& key : keys_of(config)) {
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
