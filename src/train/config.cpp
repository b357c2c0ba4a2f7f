#include "train/config.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <boost/program_options.hpp>
#include <cctype>
#include <cmath>
#include <functional>
#include <map>
#include <set>
#include <sstream>

#include "base/files.h"
#include "base/text.h"
#include "lockstep/base/error.h"
#include "lockstep/optim/registry.h"
#include "train/config_keys.h"

namespace lockstep::train {
namespace {

namespace po = boost::program_options;

constexpr std::string_view group_prefix = "optimizer.group.";

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
  ParamGroup group{.pattern = words[0]};
  if (words.size() > 1) option::read(words[1], factors, group.lr_factor);
  if (words.size() > 2) option::read(words[2], factors, group.decay_factor);
  config.optimizer.groups[number] = group;
}

std::string group_text(const ParamGroup& group) {
  return fmt::format("{} {} {}", option::printed(group.pattern, true), group.lr_factor, group.decay_factor);
}

/// "batch-size" and "train.Batch_Size" -> "batch_size"
std::string bare_name(const std::string& name) {
  std::string bare = name.substr(name.rfind('.') + 1);
  for (char& letter : bare)
    letter = letter == '-' ? '_' : static_cast<char>(std::tolower(static_cast<unsigned char>(letter)));
  return bare;
}

/// The key that somebody means who knows it from another program, or from another section; or the nearest.
std::string likely_key(const std::string& name) {
  const std::string bare = bare_name(name);
  std::vector<std::string> known;
  for (const Key& key : config_keys()) {
    if (std::ranges::find(key.traits.peers, bare) != key.traits.peers.end()) return key.name;
    known.push_back(key.name);
  }
  if (const std::string nearest = nearest_name(name, known); !nearest.empty()) return nearest;
  const auto same =
      std::ranges::find_if(known, [&](const std::string& key) { return bare_name(key) == bare; });
  return same == known.end() ? "" : *same;
}

const Key* key_named(const std::string& name) {
  const auto key = std::ranges::find(config_keys(), name, &Key::name);
  return key == config_keys().end() ? nullptr : &*key;
}

/// A key of earlier versions. Where a text says no more of it than its default was, it continues as it is.
struct RemovedKey {
  std::string_view name, initial, instead;
};
constexpr std::array removed_keys{
    RemovedKey{"ddp.hook", "none",
               "gradients travel in half the bytes with ddp.reduce_dtype = bf16, and in any other way with a "
               "hook of your own program (ddp::Options::hook)"},
    RemovedKey{"checkpoint.io", "posix",
               "each rank writes its share by itself, as with posix; the file is the same"},
};

const RemovedKey* removed_key_named(std::string_view name) {
  const auto key = std::ranges::find(removed_keys, name, &RemovedKey::name);
  return key == removed_keys.end() ? nullptr : &*key;
}

void set_key(Config& config, const std::string& name, const std::string& value) {
  if (name.starts_with(group_prefix)) return set_group(config, name, value);
  if (const Key* const key = key_named(name)) return key->set(config, value);
  const std::string likely = likely_key(name);
  throw UsageError("unknown key; {}", likely.empty() ? "see lockstep train --help-keys"
                                                     : fmt::format("did you mean {}?", likely));
}

/// A name of a key in an error: people's typing errors as they are, anything else so that it can be read.
std::string shown(const std::string& name) {
  constexpr std::size_t longest_shown = 120;
  return name.size() <= longest_shown && is_printable(name) ? name : quote(name);
}

void set_key_named(Config& config, const std::string& origin, const std::string& name,
                   const std::string& value) {
  const RemovedKey* const removed = removed_key_named(name);
  try {
    if (!removed) return set_key(config, name, value);
    if (option::unquoted(value) == removed->initial) return;
  } catch (const UsageError& error) {
    throw UsageError("{}: {}: {}", origin, shown(name), error.what());
  }
  throw UsageError("{}: {} was removed: {}; leave it out", origin, name, removed->instead);
}

/// Where each key was said last, for errors found when all are known.
struct Origin {
  std::string file;
  std::set<std::string, std::less<>> overridden;  ///< by --set
  std::string_view of(std::string_view key) const {
    return overridden.contains(key) ? std::string_view("--set") : std::string_view(file);
  }
};

/// Judges single keys of a configuration; what is wrong is said with origin, key and value.
class Judge {
 public:
  Judge(const Config& config, const Origin& origin) : config_(config), origin_(origin) {}

  [[noreturn]] void refuse(std::string_view name, std::string_view what) const {
    const auto key = std::ranges::find(config_keys(), name, &Key::name);
    const std::string value = key == config_keys().end() ? "" : key->get(config_);
    throw UsageError("{}: {}{}{}: {}", origin_.of(name), name, value.empty() ? "" : " = ", value, what);
  }
  void require(bool holds, std::string_view name, std::string_view what) const {
    if (!holds) refuse(name, what);
  }

 private:
  const Config& config_;
  const Origin& origin_;
};

bool has_twins(std::vector<double> numbers) {
  std::ranges::sort(numbers);
  return std::ranges::adjacent_find(numbers) != numbers.end();
}

void check_model(const Config& config, const Judge& judge) {
  judge.require(!config.model.name.empty(), "model.name", "is missing; one of mlp, resnet, gpt");
  judge.require(config.data.eval.empty() || config.data.eval_fraction == 0, "data.eval_fraction",
                "cannot be combined with data.eval; give one of them");
}

void check_train(const TrainConfig& train, const Judge& judge) {
  judge.require(train.steps > 0 || train.epochs > 0, "train.steps", "is missing or not positive");
  judge.require(train.global_batch > 0, "train.global_batch", "is missing or not positive");
}

/// What is known before there is a device; the rest is found when the first step is recorded.
void check_graph(const Config& config, const Judge& judge) {
  if (config.train.cuda_graph != "true") return;
  const auto refuse = [&](bool asked, std::string_view why) {
    judge.require(!asked, "train.cuda_graph", fmt::format("{}; use auto", why));
  };
  refuse(config.train.device == "cpu", "there are graphs on GPUs only (train.device = cpu)");
  refuse(config.model.dropout > 0, "dropout draws other numbers at every step, a graph the same");
  refuse(config.model.batch_norm == "sync", "model.batch_norm = sync cannot be part of a graph");
  refuse(config.ddp.sharded_optimizer, "ddp.sharded_optimizer = true cannot be part of a graph");
}

/// How many steps there are is settled later (run_config.cpp).
void check_schedule(const OptimizerConfig& optimizer, const Judge& judge) {
  const std::string& schedule = optimizer.schedule;
  const auto of = [&](std::string_view one, std::string_view key, bool initial) {
    judge.require(schedule == one || initial, key,
                  fmt::format("is of optimizer.schedule = {}, but that is {}; leave it out", one, schedule));
  };
  const OptimizerConfig defaults;
  of("wsd", "optimizer.decay_steps", optimizer.decay_steps == defaults.decay_steps);
  of("step", "optimizer.milestones", optimizer.milestones == defaults.milestones);
  of("step", "optimizer.gamma", optimizer.gamma == defaults.gamma);
  of("poly", "optimizer.power", optimizer.power == defaults.power);
  judge.require(schedule != "wsd" || optimizer.decay_steps > 0, "optimizer.decay_steps",
                "is missing: how many of the last steps optimizer.schedule = wsd takes to get to min_lr");
  judge.require(schedule != "step" || !optimizer.milestones.empty(), "optimizer.milestones",
                "is missing: the steps of optimizer.schedule = step");
  judge.require(schedule != "step" || optimizer.min_lr == 0, "optimizer.min_lr",
                "means nothing to optimizer.schedule = step; leave it out");
  judge.require(
      std::ranges::adjacent_find(optimizer.milestones, std::greater_equal()) == optimizer.milestones.end(),
      "optimizer.milestones", "must rise");
}

void check_optimizer(const OptimizerConfig& optimizer, const Judge& judge) {
  judge.require(optimizer.min_lr <= optimizer.lr, "optimizer.min_lr", "must be between 0 and optimizer.lr");
  judge.require(optimizer.betas.size() == 2, "optimizer.betas", "takes two numbers");
  judge.require(optimizer.name != "sgd" || optimizer.nesterov == "false" || optimizer.momentum > 0,
                "optimizer.nesterov", "needs optimizer.momentum above 0");
  judge.require(optimizer.muon.empty() || optimizer.name == "muon", "optimizer.muon",
                "is of optimizer.name = muon");
  check_schedule(optimizer, judge);
}

void check_ema(const EmaConfig& ema, const Judge& judge) {
  judge.require(!has_twins(ema.rates), "ema.rates", "a rate is given twice");
  judge.require(!has_twins(ema.sigma_rel), "ema.sigma_rel", "a width is given twice");
  if (ema.warmup.empty()) return;
  judge.require(!ema.rates.empty(), "ema.warmup", "is of ema.rates, of which there are none");
  judge.require(ema.warmup.size() == 3, "ema.warmup", "takes three numbers: inv_gamma power update_after");
  judge.require(ema.warmup[0] > 0, "ema.warmup", "its first number, inv_gamma, must be positive");
  judge.require(ema.warmup[2] == std::floor(ema.warmup[2]), "ema.warmup",
                "its third number, update_after, counts steps: a whole number");
}

/// What a single key cannot tell.
void finish(Config& config, const Origin& origin) {
  optim::complete(config.optimizer);
  const Judge judge(config, origin);
  check_model(config, judge);
  check_train(config.train, judge);
  check_optimizer(config.optimizer, judge);
  check_ema(config.ema, judge);
  check_graph(config, judge);
}

/// Program_options sees keys only: a section that is unknown and empty would pass.
void check_sections(const std::string& text, const std::string& origin) {
  std::vector<std::string> known;
  for (const Key& key : config_keys()) known.push_back(key.name.substr(0, key.name.find('.')));
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    const std::size_t open = line.find_first_not_of(" \t"), close = line.find(']');
    if (open == std::string::npos || line[open] != '[' || close == std::string::npos) continue;
    const std::string section = line.substr(open + 1, close - open - 1);
    if (std::find(known.begin(), known.end(), section) != known.end()) continue;
    const std::string nearest = nearest_name(section, known);
    throw UsageError("{}: [{}]: unknown section; {}", origin, section,
                     nearest.empty() ? "see lockstep train --help-keys" : "did you mean [" + nearest + "]?");
  }
}

/// The lines of an INI file.
std::vector<po::option> lines_of(const std::string& text, const std::string& origin) {
  try {
    std::istringstream stream(option::protect_quotes(text));
    const po::parsed_options parsed = po::parse_config_file(stream, po::options_description(), true);
    std::map<std::string, int> seen;
    for (const po::option& line : parsed.options) {
      if (++seen[line.string_key] > 1)
        throw UsageError("{}: {}: is given twice", origin, shown(line.string_key));
    }
    return parsed.options;
  } catch (const po::invalid_config_file_syntax& error) {
    // Not its what(): that puts the line in place of %invalid_line% for as long as the text has that word.
    throw UsageError("{}: not an INI file of [section] and key = value lines: the line {} is none", origin,
                     shown(error.tokens()));
  } catch (const po::error& error) {
    throw UsageError("{}: not an INI file of [section] and key = value lines: {}", origin, error.what());
  }
}

std::string value_of(const po::option& line) { return line.value.empty() ? "" : line.value.front(); }

/// What another version's key says nothing with.
bool says_nothing(const std::string& value) {
  return value.empty() || value == "0" || value == "false" || value == "\"\"";
}

}  // namespace

Config parse_config(const std::string& text, const std::string& origin,
                    const std::vector<std::string>& overrides) {
  Config config;
  Origin where{origin, {}};
  check_sections(text, origin);
  for (const po::option& line : lines_of(text, origin))
    set_key_named(config, origin, line.string_key, value_of(line));
  for (const std::string& override_text : overrides) {
    const std::size_t equals = override_text.find('=');
    if (equals == std::string::npos)
      throw UsageError("--set {}: write it as SECTION.KEY=VALUE", quote(override_text));
    set_key_named(config, "--set", override_text.substr(0, equals), override_text.substr(equals + 1));
    where.overridden.insert(override_text.substr(0, equals));
  }
  // One of them on the command line stands for the other of the file.
  const bool steps = where.overridden.contains("train.steps"),
             epochs = where.overridden.contains("train.epochs");
  if (steps && !epochs) config.train.epochs = 0;
  if (epochs && !steps) config.train.steps = 0;
  finish(config, where);
  return config;
}

Config parse_stored_config(const std::string& text, const std::string& origin) {
  Config config;
  for (const po::option& line : lines_of(text, origin)) {
    const std::string &name = line.string_key, value = value_of(line);
    if (!name.starts_with(group_prefix) && !key_named(name)) {
      const RemovedKey* const removed = removed_key_named(name);
      if (says_nothing(value) || (removed && value == removed->initial)) continue;
      const std::string why =
          removed ? fmt::format("{} was removed", name) : "this version of Lockstep knows no such key";
      throw UsageError(
          "{}: {} = {}: {}, so it cannot do the same; go on with the version that wrote it, or start a run "
          "from the weights (--run OTHER --resume FILE)",
          origin, shown(name), quote(value), why);
    }
    set_key_named(config, origin, name, value);
  }
  finish(config, {origin, {}});
  return config;
}

Config read_config(const std::string& path, const std::vector<std::string>& overrides) {
  std::string text;
  try {
    text = read_text(path);
  } catch (const Error& error) {
    throw UsageError("{}; the configuration is read from there: check the path", error.what());
  }
  return parse_config(text, path, overrides);
}

std::string to_text(const Config& config) {
  std::string text, section;
  for (const Key& key : config_keys()) {
    const std::size_t dot = key.name.find('.');
    if (key.name.substr(0, dot) != section) {
      if (section == "optimizer") {
        for (const auto& [number, group] : config.optimizer.groups)
          text += fmt::format("group.{} = {}\n", number, group_text(group));
      }
      section = key.name.substr(0, dot);
      text += fmt::format("{}[{}]\n", text.empty() ? "" : "\n", section);
    }
    text += fmt::format("{} = {}\n", key.name.substr(dot + 1), key.get(config));
  }
  return text;
}

std::vector<std::string> forbidden_changes(const Config& run, const Config& asked) {
  std::vector<std::string> forbidden;
  for (const Key& key : config_keys()) {
    const std::string before = key.get(run), now = key.get(asked);
    if (!key.traits.may_change && before != now)
      forbidden.push_back(fmt::format("{}: the run has '{}', asked for '{}'", key.name, before, now));
  }
  const auto groups = [](const Config& config) {
    std::string text;
    for (const auto& [number, group] : config.optimizer.groups)
      text += fmt::format("{}: {}; ", number, group_text(group));
    return text;
  };
  if (groups(run) != groups(asked)) {
    forbidden.push_back(
        fmt::format("optimizer.group: the run has '{}', asked for '{}'", groups(run), groups(asked)));
  }
  return forbidden;
}

std::vector<KeyChange> changes(const Config& run, const Config& asked) {
  std::vector<KeyChange> found;
  for (const Key& key : config_keys()) {
    const std::string before = key.get(run), now = key.get(asked);
    if (key.traits.may_change && before != now) found.push_back({key.name, before, now});
  }
  return found;
}

namespace {

/// "whole number in [1, 1e+15], steps"
std::string form_of(const Key& key) {
  const bool is_number = key.kind.ends_with("number") || key.kind == "numbers";
  std::string form = is_number             ? key.kind + " in " + key.allowed
                     : key.allowed.empty() ? key.kind
                                           : key.allowed;
  if (*key.traits.unit != '\0') form += fmt::format("; {}", key.traits.unit);
  return form;
}

constexpr std::string_view group_meaning = "name pattern, its lr factor, its decay factor";

}  // namespace

std::string describe_keys() {
  std::string text;
  const Config defaults;
  for (const Key& key : config_keys()) {
    text += fmt::format("{} {:<26} {:<12} {} ({})\n", key.traits.may_change ? '*' : ' ', key.name,
                        key.get(defaults), key.meaning, form_of(key));
  }
  text += fmt::format("  {:<26} {:<12} {}\n", "optimizer.group.N", "", group_meaning);
  return text + "*: may change when a run goes on\n";
}

std::string describe_keys_for_man() {
  std::string text =
      ".SH CONFIGURATION KEYS\nDefaults are in brackets; keys marked * may change when a run goes on.\n";
  const Config defaults;
  const auto in_roff = [](std::string plain) {
    for (std::size_t at = 0; (at = plain.find('\\', at)) != plain.npos; at += 2) plain.replace(at, 1, "\\e");
    return plain.starts_with('.') || plain.starts_with('\'') ? "\\&" + plain : plain;
  };
  const auto add = [&](const std::string& name, bool may_change, const std::string& initial,
                       const std::string& meaning) {
    text += fmt::format(".TP\n.B {}{}{}\n{}\n", name, may_change ? " *" : "",
                        initial.empty() ? "" : fmt::format(" [{}]", initial), in_roff(meaning));
  };
  for (const Key& key : config_keys())
    add(key.name, key.traits.may_change, key.get(defaults),
        fmt::format("{} ({})", key.meaning, form_of(key)));
  add("optimizer.group.N", false, "", std::string(group_meaning));
  return text;
}

}  // namespace lockstep::train
