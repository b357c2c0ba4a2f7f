#include "train/config_keys.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <concepts>
#include <sstream>

#include "lockstep/base/error.h"

namespace lockstep::train {
namespace {

template <class Number>
requires std::integral<Number> || std::floating_point<Number>
void parse_value(const std::string& text, Number& value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  bool good = error == std::errc() && end == text.data() + text.size();
  if constexpr (std::floating_point<Number>) good = good && std::isfinite(value);
  if (!good) {
    throw UsageError("'{}' is not {}", text, std::integral<Number> ? "a whole number in range" : "a number");
  }
}

void parse_value(const std::string& text, std::string& value) { value = text; }

void parse_value(const std::string& text, bool& value) {
  if (text != "true" && text != "false") throw UsageError("'{}' is neither true nor false", text);
  value = text == "true";
}

template <class Element>
void parse_value(const std::string& text, std::vector<Element>& values) {
  values.clear();
  std::istringstream words(text);
  for (std::string word; words >> word;) {
    Element element{};
    parse_value(word, element);
    values.push_back(element);
  }
}

template <class Value>
std::string print_value(const Value& value) {
  return fmt::format("{}", value);
}

template <class Element>
std::string print_value(const std::vector<Element>& values) {
  return fmt::format("{}", fmt::join(values, " "));
}

/// The field of a section: at(&Config::train, &TrainConfig::steps).
template <class Section, class Field>
auto at(Section Config::*section, Field Section::*field) {
  return [ section, field ](auto& config) -> auto& { return config.*section.*field; };
}

/// A key that reads and prints one field.
template <class Access>
Key key(std::string name, Access access, std::string help, bool may_change = false) {
  return {std::move(name), std::move(help), may_change,
          [access](Config& config, const std::string& text) { parse_value(text, access(config)); },
          [access](const Config& config) { return print_value(access(config)); }};
}

/// A key whose value is one of a few words.
template <class Access>
Key choice(std::string name, Access access, std::vector<std::string> words, const std::string& help,
           bool may_change = false) {
  Key made = key(std::move(name), access, fmt::format("{} ({})", help, fmt::join(words, ", ")), may_change);
  made.set = [access, words = std::move(words), initial = made.get(Config{})](Config& config,
                                                                              const std::string& text) {
    if (text != initial && std::find(words.begin(), words.end(), text) == words.end()) {
      throw UsageError("'{}' is none of: {}", text, fmt::join(words, ", "));
    }
    access(config) = text;
  };
  return made;
}

Key augment_key() {
  return {"data.augment", "random changes of training images: crop, flip, or both", false,
          [](Config& config, const std::string& text) {
            std::vector<std::string> words;
            parse_value(text, words);
            config.data.crop = config.data.flip = false;
            for (const std::string& word : words) {
              if (word != "crop" && word != "flip") throw UsageError("'{}' is none of: crop, flip", word);
              (word == "crop" ? config.data.crop : config.data.flip) = true;
            }
          },
          [](const Config& config) {
            return fmt::format("{}{}{}", config.data.crop ? "crop" : "",
                               config.data.crop && config.data.flip ? " " : "",
                               config.data.flip ? "flip" : "");
          }};
}

std::vector<Key> make_keys() {
  std::vector<Key> keys{
      key("model.name", at(&Config::model, &models::ModelConfig::name), "mlp, resnet or gpt"),
      key("model.sizes", at(&Config::model, &models::ModelConfig::sizes),
          "mlp: widths from input to classes"),
      key("model.blocks", at(&Config::model, &models::ModelConfig::blocks), "resnet: blocks of each stage"),
      key("model.width", at(&Config::model, &models::ModelConfig::width),
          "resnet: channels of the first stage"),
      key("model.in_channels", at(&Config::model, &models::ModelConfig::in_channels),
          "resnet: channels of an image"),
      key("model.classes", at(&Config::model, &models::ModelConfig::classes), "resnet: classes"),
      key("model.layers", at(&Config::model, &models::ModelConfig::layers), "gpt: blocks"),
      key("model.heads", at(&Config::model, &models::ModelConfig::heads), "gpt: attention heads"),
      key("model.channels", at(&Config::model, &models::ModelConfig::channels), "gpt: width"),
      key("model.context", at(&Config::model, &models::ModelConfig::context), "gpt: tokens of a sample"),
      key("model.vocab", at(&Config::model, &models::ModelConfig::vocab), "gpt: tokens known"),
      choice("model.stem", at(&Config::model, &models::ModelConfig::stem), {"3x3", "7x7"},
             "resnet: first layer; 7x7 quarters the image"),
      choice("model.batch_norm", at(&Config::model, &models::ModelConfig::batch_norm), {"plain", "sync"},
             "whose statistics: the shard's, or all ranks'"),
      key("model.dropout", at(&Config::model, &models::ModelConfig::dropout),
          "probability of zeroing an activation"),
      key("model.recompute", at(&Config::model, &models::ModelConfig::recompute),
          "keep only the inputs of blocks and compute the rest again in the backward: less memory, same "
          "bits"),

      key("data.train", at(&Config::data, &DataConfig::train),
          "data files to train on (HDF5, see lockstep prepare)", true),
      key("data.eval", at(&Config::data, &DataConfig::eval), "data file to evaluate on", true),
      key("data.eval_fraction", at(&Config::data, &DataConfig::eval_fraction),
          "or the part of data.train held out, fixed by the seed"),
      augment_key(),

      key("train.steps", at(&Config::train, &TrainConfig::steps),
          "steps of the whole run, which optimizer.schedule is laid over: with another number it goes on "
          "along another curve",
          true),
      key("train.global_batch", at(&Config::train, &TrainConfig::global_batch),
          "samples of a step, over all ranks"),
      key("train.shards", at(&Config::train, &TrainConfig::shards),
          "equal pieces of the batch; 0: the world size of the first start"),
      key("train.micro_batches", at(&Config::train, &TrainConfig::micro_batches),
          "pieces a shard is run in, to save memory"),
      key("train.seed", at(&Config::train, &TrainConfig::seed), "of every random draw"),
      choice("train.precision", at(&Config::train, &TrainConfig::precision), {"fp32", "bf16"},
             "of activations and matrix products"),
      choice("train.bf16_fallback", at(&Config::train, &TrainConfig::bf16_fallback),
             {"refuse", "fp32", "convert"}, "what bf16 becomes where it would be slower than fp32", true),
      key("train.reproducible", at(&Config::train, &TrainConfig::reproducible),
          "on GPUs: sum along the tree, no atomic kernels"),
      choice("train.device", at(&Config::train, &TrainConfig::device), {"auto", "cpu", "cuda"},
             "where to compute; auto: on GPUs if every rank has one", true),
      key("train.threads", at(&Config::train, &TrainConfig::threads),
          "threads of a rank (part of the bits); 0: as many as it has cores at the first start"),
      choice("train.bind", at(&Config::train, &TrainConfig::bind), {"cores", "none"},
             "on the CPU: each thread to cores of its own, or as the launcher left them", true),
      key("train.eval_every", at(&Config::train, &TrainConfig::eval_every),
          "steps between evaluations; 0: at the end only", true),
      key("train.init", at(&Config::train, &TrainConfig::init),
          "checkpoint, .safetensors or HDF5 file whose weights a new run starts from"),
      key("train.label_smoothing", at(&Config::train, &TrainConfig::label_smoothing), "of the cross-entropy"),
      key("train.frozen", at(&Config::train, &TrainConfig::frozen),
          "name patterns of parameters that do not learn"),
      choice("train.cuda_graph", at(&Config::train, &TrainConfig::cuda_graph), {"auto", "true", "false"},
             "record the step as a CUDA graph; auto: on one GPU, if it can be", true),

      choice("optimizer.name", at(&Config::optimizer, &OptimizerConfig::name), {"adamw", "sgd"}, "algorithm"),
      key("optimizer.lr", at(&Config::optimizer, &OptimizerConfig::lr), "learning rate"),
      key("optimizer.min_lr", at(&Config::optimizer, &OptimizerConfig::min_lr), "where the schedule ends"),
      key("optimizer.betas", at(&Config::optimizer, &OptimizerConfig::betas),
          "adamw: decay of the two moments"),
      key("optimizer.eps", at(&Config::optimizer, &OptimizerConfig::eps),
          "adamw: added to the root of the second moment"),
      key("optimizer.weight_decay", at(&Config::optimizer, &OptimizerConfig::weight_decay), "weight decay"),
      choice("optimizer.decay", at(&Config::optimizer, &OptimizerConfig::decay), {"matrices", "all"},
             "what decays; default: matrices for adamw, all for sgd"),
      key("optimizer.momentum", at(&Config::optimizer, &OptimizerConfig::momentum), "sgd: momentum"),
      key("optimizer.nesterov", at(&Config::optimizer, &OptimizerConfig::nesterov),
          "sgd: Nesterov's form of it"),
      key("optimizer.clip", at(&Config::optimizer, &OptimizerConfig::clip),
          "largest global gradient norm; 0: no clipping"),
      choice("optimizer.schedule", at(&Config::optimizer, &OptimizerConfig::schedule),
             {"constant", "cosine", "linear"}, "of the learning rate"),
      key("optimizer.warmup_steps", at(&Config::optimizer, &OptimizerConfig::warmup_steps),
          "steps of linear warm-up"),

      key("ema.rates", at(&Config::ema, &EmaConfig::rates), "decay of each moving average of the weights"),
      key("ema.warmup", at(&Config::ema, &EmaConfig::warmup),
          "inv_gamma, power and update_after of a warm-up"),
      key("ema.sigma_rel", at(&Config::ema, &EmaConfig::sigma_rel),
          "widths of power-function averages (0.05 0.10); each checkpoint leaves a snapshot of them in "
          "RUN/ema for lockstep ema, at most 22 while the steps double"),
      choice("ema.buffers", at(&Config::ema, &EmaConfig::buffers), {"copy", "average", "leave"},
             "what an average does with buffers"),

      key("ddp.bucket_mb", at(&Config::ddp, &DdpConfig::bucket_mb),
          "MiB at which a gradient bucket closes; they taper at the end", true),
      key("ddp.first_bucket_mb", at(&Config::ddp, &DdpConfig::first_bucket_mb), "the same for the first one",
          true),
      choice("ddp.unused", at(&Config::ddp, &DdpConfig::unused), {"error", "allow"},
             "parameters that no sample used"),
      choice("ddp.reduce_dtype", at(&Config::ddp, &DdpConfig::reduce_dtype), {"fp32", "bf16", "fp16"},
             "of gradients that travel: between machines, and between GPUs"),
      key("ddp.hook", at(&Config::ddp, &DdpConfig::hook),
          "none, or powersgd rank=1 start_step=1000 min_compression=2 error_feedback=true warm_start=true"),
      key("ddp.sharded_optimizer", at(&Config::ddp, &DdpConfig::sharded_optimizer),
          "each rank updates a part of every parameter, and keeps optimizer state and averages of it only",
          true),
      key("ddp.check_every", at(&Config::ddp, &DdpConfig::check_every),
          "steps between comparisons of all ranks' parameters; 0: never", true),
      choice("ddp.mode", at(&Config::ddp, &DdpConfig::mode), {"overlapped", "flat", "per_parameter"},
             "how gradients travel; flat and per_parameter are to compare with", true),

      key("checkpoint.every", at(&Config::checkpoint, &CheckpointConfig::every),
          "steps between checkpoints; 0: at the end only", true),
      key("checkpoint.keep", at(&Config::checkpoint, &CheckpointConfig::keep), "newest checkpoints kept",
          true),
      key("checkpoint.keep_best", at(&Config::checkpoint, &CheckpointConfig::keep_best),
          "metric whose best checkpoint is kept, too", true),
      key("checkpoint.async", at(&Config::checkpoint, &CheckpointConfig::async),
          "train on while a checkpoint is written", true),
      choice("checkpoint.io", at(&Config::checkpoint, &CheckpointConfig::io), {"posix", "mpiio"},
             "how the payload is written", true),
      choice("checkpoint.load", at(&Config::checkpoint, &CheckpointConfig::load), {"strict", "partial"},
             "partial: what is missing, unexpected or of another shape is said, not an error", true),
      key("checkpoint.narrow", at(&Config::checkpoint, &CheckpointConfig::narrow),
          "let float64 of a file be rounded to float32", true),

      key("fault.hang_timeout_s", at(&Config::fault, &FaultConfig::hang_timeout_s),
          "seconds without progress after which a rank is missing, and the job ends; 0: for ever", true),
      key("fault.signal_report", at(&Config::fault, &FaultConfig::signal_report),
          "SIGUSR1 prints where each rank is, with its stack; so does the end of a job that hangs", true),

      key("log.every", at(&Config::log, &LogConfig::every), "steps between lines of metrics", true),
      key("log.trace", at(&Config::log, &LogConfig::trace),
          "FILE.json: a timeline of all ranks for chrome://tracing", true),
  };
  return keys;
}

}  // namespace

const std::vector<Key>& config_keys() {
  static const std::vector<Key> keys = make_keys();
  return keys;
}

}  // namespace lockstep::train
