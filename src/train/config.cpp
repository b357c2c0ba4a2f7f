#include "lockstep/train/config.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <boost/program_options.hpp>
#include <cmath>
#include <fstream>
#include <functional>
#include <set>
#include <sstream>

#include "lockstep/base/error.h"
#include "lockstep/base/names.h"
#include "lockstep/ddp/hooks.h"
#include "train/config_keys.h"

namespace lockstep::train {
namespace {

namespace po = boost::program_options;

constexpr std::string_view group_prefix = "optimizer.group.";

/// optimizer.group.N = PATTERN [lr factor [decay factor]]
void set_group(Config& config, const std::string& name, const std::string& value) {
  int number = 0;
  std::istringstream digits(name.substr(group_prefix.size()));
  if (!(digits >> number) || !digits.eof() || number < 0)
    throw UsageError("the N of {}N is not a number", group_prefix);
  GroupConfig group;
  std::istringstream words(value);
  if (!(words >> group.pattern)) throw UsageError("a name pattern is missing");
  if (words >> group.lr_factor) words >> group.decay_factor;
  if (!words.eof()) throw UsageError("'{}' is not: PATTERN LR_FACTOR DECAY_FACTOR", value);
  config.optimizer.groups[number] = group;
}

void set_key(Config& config, const std::string& name, const std::string& value) {
  if (name.starts_with(group_prefix)) return set_group(config, name, value);
  for (const Key& key : config_keys()) {
    if (key.name == name) return key.set(config, value);
  }
  std::vector<std::string> known;
  for (const Key& key : config_keys()) known.push_back(key.name);
  const std::string nearest = nearest_name(name, known);
  throw UsageError("unknown key; {}", nearest.empty() ? "see lockstep train --help-keys"
                                                      : fmt::format("did you mean {}?", nearest));
}

void set_key_named(Config& config, const std::string& origin, const std::string& name,
                   const std::string& value) {
  try {
    set_key(config, name, value);
  } catch (const UsageError& error) {
    throw UsageError("{}: {}: {}", origin, name, error.what());
  }
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
  judge.require(config.model.dropout >= 0 && config.model.dropout < 1, "model.dropout", "must be in [0, 1)");
  judge.require(config.data.eval_fraction >= 0 && config.data.eval_fraction < 1, "data.eval_fraction",
                "must be in [0, 1)");
  judge.require(config.data.eval.empty() || config.data.eval_fraction == 0, "data.eval_fraction",
                "cannot be combined with data.eval; give one of them");
}

void check_train(const TrainConfig& train, const Judge& judge) {
  judge.require(train.steps > 0, "train.steps", "is missing or not positive");
  judge.require(train.global_batch > 0, "train.global_batch", "is missing or not positive");
  judge.require(train.shards >= 0, "train.shards", "must be positive, or 0 for the world size");
  judge.require(train.micro_batches >= 1, "train.micro_batches", "must be at least 1");
  judge.require(train.threads >= 0, "train.threads", "must be positive, or 0 for as many as there are cores");
  judge.require(train.eval_every >= 0, "train.eval_every", "must not be negative");
  judge.require(train.label_smoothing >= 0 && train.label_smoothing < 1, "train.label_smoothing",
                "must be in [0, 1)");
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
  refuse(!config.ddp.hook.empty() && config.ddp.hook != "none", "ddp.hook cannot be part of a graph");
}

void check_optimizer(const OptimizerConfig& optimizer, const Judge& judge) {
  judge.require(optimizer.lr > 0, "optimizer.lr", "must be positive");
  judge.require(optimizer.min_lr >= 0 && optimizer.min_lr <= optimizer.lr, "optimizer.min_lr",
                "must be between 0 and optimizer.lr");
  const auto is_fraction = [](double value) { return value >= 0 && value < 1; };
  judge.require(optimizer.betas.size() == 2, "optimizer.betas", "takes two numbers");
  judge.require(std::ranges::all_of(optimizer.betas, is_fraction), "optimizer.betas", "must be in [0, 1)");
  judge.require(optimizer.eps >= 0, "optimizer.eps", "must not be negative");
  judge.require(optimizer.weight_decay >= 0, "optimizer.weight_decay", "must not be negative");
  judge.require(is_fraction(optimizer.momentum), "optimizer.momentum", "must be in [0, 1)");
  judge.require(optimizer.name != "sgd" || !optimizer.nesterov || optimizer.momentum > 0,
                "optimizer.nesterov", "needs optimizer.momentum above 0");
  judge.require(optimizer.clip >= 0, "optimizer.clip", "must not be negative");
  judge.require(optimizer.warmup_steps >= 0, "optimizer.warmup_steps", "must not be negative");
}

void check_ema(const EmaConfig& ema, const Judge& judge) {
  const auto is_rate = [](double rate) { return rate >= 0 && rate < 1; };
  const auto is_width = [](double width) { return width > 0 && width < 0.28; };
  judge.require(std::ranges::all_of(ema.rates, is_rate), "ema.rates", "must be in [0, 1)");
  judge.require(!has_twins(ema.rates), "ema.rates", "a rate is given twice");
  judge.require(std::ranges::all_of(ema.sigma_rel, is_width), "ema.sigma_rel", "must be between 0 and 0.28");
  judge.require(!has_twins(ema.sigma_rel), "ema.sigma_rel", "a width is given twice");
  if (ema.warmup.empty()) return;
  judge.require(!ema.rates.empty(), "ema.warmup", "is of ema.rates, of which there are none");
  judge.require(ema.warmup.size() == 3, "ema.warmup", "takes three numbers: inv_gamma power update_after");
  judge.require(ema.warmup[0] > 0, "ema.warmup", "its first number, inv_gamma, must be positive");
  judge.require(ema.warmup[1] >= 0, "ema.warmup", "its second number, power, must not be negative");
  const double update_after = ema.warmup[2];
  judge.require(update_after >= 0 && update_after < 1e15 && update_after == std::floor(update_after),
                "ema.warmup", "its third number, update_after, counts steps: a whole number");
}

void check_ddp(const Config& config, const Origin& origin, const Judge& judge) {
  const auto bucket_size = [](double mb) { return mb > 0 && mb <= 1e6; };
  judge.require(bucket_size(config.ddp.bucket_mb), "ddp.bucket_mb", "must be in (0, 1000000]");
  judge.require(bucket_size(config.ddp.first_bucket_mb), "ddp.first_bucket_mb", "must be in (0, 1000000]");
  judge.require(config.ddp.check_every >= 0, "ddp.check_every", "must not be negative");
  try {
    ddp::hook_named(config.ddp.hook, config.train.seed);
  } catch (const UsageError& error) {
    throw UsageError("{}: {}", origin.of("ddp.hook"), error.what());
  }
}

/// What a single key cannot tell.
void finish(Config& config, const Origin& origin) {
  if (config.optimizer.decay.empty())
    config.optimizer.decay = config.optimizer.name == "adamw" ? "matrices" : "all";
  const Judge judge(config, origin);
  check_model(config, judge);
  check_train(config.train, judge);
  check_optimizer(config.optimizer, judge);
  check_ema(config.ema, judge);
  check_ddp(config, origin, judge);
  config.ddp.hook = ddp::hook_text(config.ddp.hook);
  judge.require(config.checkpoint.every >= 0, "checkpoint.every", "must not be negative");
  judge.require(config.checkpoint.keep >= 1, "checkpoint.keep", "must be at least 1");
  judge.require(!config.checkpoint.async || config.checkpoint.io == "posix", "checkpoint.async",
                "needs checkpoint.io = posix: a writer beside training may not call MPI");
  judge.require(config.fault.hang_timeout_s == 0 || config.fault.hang_timeout_s >= 1, "fault.hang_timeout_s",
                "must be at least 1, or 0 for ever");
  judge.require(config.log.every >= 1, "log.every", "must be at least 1");
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

}  // namespace

Config parse_config(const std::string& text, const std::string& origin,
                    const std::vector<std::string>& overrides) {
  Config config;
  Origin where{origin, {}};
  try {
    check_sections(text, origin);
    std::istringstream stream(text);
    const po::parsed_options parsed = po::parse_config_file(stream, po::options_description(), true);
    std::map<std::string, int> seen;
    for (const po::option& option : parsed.options) {
      if (++seen[option.string_key] > 1)
        throw UsageError("{}: {}: is given twice", origin, option.string_key);
      set_key_named(config, origin, option.string_key, option.value.empty() ? "" : option.value.front());
    }
  } catch (const po::error& error) {
    throw UsageError("{}: not an INI file of [section] and key = value lines: {}", origin, error.what());
  }
  for (const std::string& override_text : overrides) {
    const std::size_t equals = override_text.find('=');
    if (equals == std::string::npos)
      throw UsageError("--set {}: write it as SECTION.KEY=VALUE", override_text);
    set_key_named(config, "--set", override_text.substr(0, equals), override_text.substr(equals + 1));
    where.overridden.insert(override_text.substr(0, equals));
  }
  finish(config, where);
  return config;
}

Config read_config(const std::string& path, const std::vector<std::string>& overrides) {
  std::ifstream file(path);
  std::ostringstream text;
  if (!file || !(text << file.rdbuf()))
    throw UsageError("{}: cannot read the configuration; check the path", path);
  return parse_config(text.str(), path, overrides);
}

std::string to_text(const Config& config) {
  std::string text, section;
  for (const Key& key : config_keys()) {
    const std::size_t dot = key.name.find('.');
    if (key.name.substr(0, dot) != section) {
      if (section == "optimizer") {
        for (const auto& [number, group] : config.optimizer.groups) {
          text += fmt::format("group.{} = {} {} {}\n", number, group.pattern, group.lr_factor,
                              group.decay_factor);
        }
      }
      section = key.name.substr(0, dot);
      text += fmt::format("{}[{}]\n", text.empty() ? "" : "\n", section);
    }
    text += fmt::format("{} = {}\n", key.name.substr(dot + 1), key.get(config));
  }
  return text;
}

std::vector<std::string> forbidden_changes(const Config& run, const Config& asked) {
  std::vector<std::string> changes;
  for (const Key& key : config_keys()) {
    const std::string before = key.get(run), now = key.get(asked);
    if (!key.may_change && before != now) {
      changes.push_back(fmt::format("{}: the run has '{}', asked for '{}'", key.name, before, now));
    }
  }
  const auto groups = [](const Config& config) {
    std::string text;
    for (const auto& [number, group] : config.optimizer.groups) {
      text += fmt::format("{}: {} {} {}; ", number, group.pattern, group.lr_factor, group.decay_factor);
    }
    return text;
  };
  if (groups(run) != groups(asked)) {
    changes.push_back(
        fmt::format("optimizer.group: the run has '{}', asked for '{}'", groups(run), groups(asked)));
  }
  return changes;
}

std::string describe_keys() {
  std::string text;
  const Config defaults;
  for (const Key& key : config_keys()) {
    text += fmt::format("{} {:<26} {:<12} {}\n", key.may_change ? '*' : ' ', key.name, key.get(defaults),
                        key.help);
  }
  text += fmt::format("  {:<26} {:<12} {}\n", "optimizer.group.N", "",
                      "name pattern, its lr factor, its decay factor");
  return text + "*: may change when a run goes on\n";
}

}  // namespace lockstep::train
