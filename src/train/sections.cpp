#include "train/sections.h"

#include <algorithm>
#include <map>
#include <utility>

#include "base/resources.h"
#include "base/text.h"
#include "train/config.h"

namespace lockstep::train {
namespace {

Option<DataConfig> augment_row() {
  return {{.name = "augment",
           .kind = "texts",
           .allowed =
               "crop, crop=N, flip, random_erasing=P, mixup=A, cutmix=A, random_resized_crop, color_jitter=S",
           .meaning = "random changes of training images; the last two of pictures only",
           .traits = {.peers = {"transforms", "augmentation", "aug"}},
           .words = {}},
          [](DataConfig& config, const std::string& value) { config.augment = data::Augment::parse(value); },
          [](const DataConfig& config) { return config.augment.text(); }};
}

template <class Section>
void insert_behind(std::vector<Option<Section>>& rows, std::string_view name,
                   const std::vector<Option<Section>>& more) {
  rows.insert(std::ranges::find(rows, name, &Option<Section>::name) + 1, more.begin(), more.end());
}

/// An empty value if it is auto, as versions without the key read such configurations.
Option<DataConfig> data_format() {
  Option<DataConfig> row =
      option::text("format", &DataConfig::format,
                   "kind of data set in the files; default: auto, by what the first file holds",
                   {.peers = {"data_format", "data_type", "dataset_type"}},
                   "auto, images, text, arrays, pictures, or a data set of the program");
  row.set = [](DataConfig& config, const std::string& value) {
    config.format = option::unquoted(value);
    if (config.format == "auto") config.format.clear();
  };
  return row;
}

/// "1GB", "512 MiB": bytes.
std::int64_t bytes_in(const std::string& text) {
  static const std::map<std::string_view, double> units{
      {"", 1},  {"KB", 1e3},     {"MB", 1e6},     {"GB", 1e9},     {"TB", 1e12},
      {"B", 1}, {"KiB", 0x1p10}, {"MiB", 0x1p20}, {"GiB", 0x1p30}, {"TiB", 0x1p40}};
  const std::size_t end = std::min(text.find_first_not_of("0123456789."), text.size());
  const std::size_t unit = std::min(text.find_first_not_of(' ', end), text.size());
  const auto found = units.find(std::string_view(text).substr(unit));
  if (end == 0 || found == units.end())
    throw UsageError("{} is no amount of memory: write auto, or a number and its unit, such as 4GB or 512MiB",
                     quote(text));
  double number = 0;
  option::read(text.substr(0, end), Range::from(0, 1e15), number);
  return static_cast<std::int64_t>(std::min(number * found->second, 1e18));
}

Option<DataConfig> data_memory() {
  Option<DataConfig> row = option::text(
      "memory", &DataConfig::memory,
      "memory of a node for data: files that fit are held there, once for all of its ranks, others are read "
      "during training; auto: a quarter of the node's memory",
      {.may_change = true, .peers = {"cache", "in_memory", "preload", "cache_size"}},
      "auto, or a number and its unit (KB, MB, GB, TB, KiB ...)");
  row.set = [](DataConfig& config, const std::string& value) {
    config.memory = option::unquoted(value);
    if (config.memory != "auto") bytes_in(config.memory);
  };
  return row;
}

}  // namespace

std::int64_t DataConfig::memory_bytes() const {
  return memory == "auto" ? static_cast<std::int64_t>(node_memory_bytes() / 4) : bytes_in(memory);
}

std::vector<Option<DataConfig>> DataConfig::options() {
  using D = DataConfig;
  std::vector<Option<DataConfig>> rows{
      option::texts(
          "train", &D::train,
          "data files to train on (HDF5, see lockstep prepare), or folders of pictures; put a name with "
          "blanks in quotes; a-*.h5: all such files; a.h5*0.7 b.h5*0.3: a mixture by weight",
          {.may_change = true, .peers = {"data", "dataset", "train_data", "data_path", "data_dir"}}),
      option::text("eval", &D::eval, "data file or folder to evaluate on",
                   {.may_change = true, .peers = {"val", "valid", "eval_data", "val_data", "test_data"}}),
      option::number(
          "eval_fraction", &D::eval_fraction, Range::below(0, 1),
          "fraction of data.train that is held out to evaluate on, chosen by the seed; instead of data.eval",
          {.peers = {"val_split", "validation_split", "eval_split"}}),
      data_format(),
      option::texts("fields", &D::fields,
                    "arrays: the fields, each NAME:/PATH, or NAME for /NAME; default: every array at the "
                    "root of the file",
                    {.peers = {"features", "columns", "keys", "input_keys"}}),
      option::texts("normalize", &D::normalize, "arrays: fields that become (value - mean) / deviation",
                    {.peers = {"normalise", "standardize", "normalization", "scaler"}}),
      option::numbers("range", &D::range, data_range,
                      "LOW HIGH: values of x that become -1 and 1, for a task that takes such values; "
                      "default: 0 255 for uint8, -1 1 for floats",
                      {.peers = {"value_range", "data_range", "pixel_range", "input_range"}}),
      option::text(
          "balance", &D::balance,
          "field whose values training draws equally often, such as y: samples are drawn with replacement",
          {.peers = {"class_balance", "balanced", "class_weights"}}),
      option::text(
          "weights", &D::weights,
          "field by whose values samples are drawn, with replacement: one of weight 2 twice as often",
          {.peers = {"sample_weights", "sampler_weights"}}),
      option::flag("shuffle", &D::shuffle,
                   "whether each epoch has its own order of samples; false: the order of the data, in every "
                   "epoch",
                   {.peers = {"random_order", "shuffle_train", "sequential"}}),
      option::choice("documents", &D::documents, {"cross", "mask"},
                     "text: a sample may hold several documents. cross: each is read after the one before; "
                     "mask: as if it were alone",
                     {.peers = {"reset_attention_mask", "packing", "document_mask", "sample_packing"}}),
      augment_row(),
      option::number("threads", &D::threads, Range::from(0, 1024),
                     "threads of a rank that read and decode; 0: the cores that it has and does not compute "
                     "with, at least 1",
                     {.unit = "threads",
                      .may_change = true,
                      .peers = {"num_workers", "workers", "n_workers", "dataloader_num_workers"}}),
      option::number("ahead", &D::ahead, Range::from(1, 1000),
                     "steps that are read before they are computed; each takes memory for a batch",
                     {.unit = "steps",
                      .may_change = true,
                      .peers = {"prefetch", "prefetch_factor", "num_prefetch", "buffer_size"}}),
      option::number(
          "max_rows", &D::max_rows, counts,
          "samples that differ in size: the largest number of rows of a field, such as nodes or "
          "edges, in a shard; more are an error. 0: any number",
          {.unit = "rows", .may_change = true, .peers = {"max_nodes", "max_num_nodes", "max_num"}}),
      data_memory()};
  insert_behind(rows, "range",
                option::within<DataConfig>(
                    data::PictureOptions::options(), [](auto& config) -> auto& { return config.pictures; }));
  return rows;
}

std::vector<Option<TrainConfig>> TrainConfig::options() {
  using namespace option;
  using T = TrainConfig;
  return {
      number(
          "steps", &T::steps, counts,
          "length of the whole run; optimizer.schedule spans it, so another number changes the rest of its "
          "curve",
          {.unit = "steps",
           .may_change = true,
           .peers = {"max_steps", "num_steps", "iterations", "max_iters", "num_iterations", "train_steps"}}),
      number("epochs", &T::epochs, Range::from(0, 1e9),
             "length of the run in passes over data.train, instead of train.steps; the first start turns "
             "them into steps",
             {.unit = "epochs",
              .may_change = true,
              .peers = {"epoch", "num_epochs", "max_epochs", "n_epochs", "num_train_epochs"}}),
      number("global_batch", &T::global_batch, Range::from(1, 1e9),
             "size of the batch of a step, over all ranks",
             {.unit = "samples",
              .required = true,
              .peers = {"batch_size", "batch", "global_batch_size", "total_batch_size", "train_batch_size",
                        "per_device_train_batch_size"}}),
      choice("precision", &T::precision, {"fp32", "bf16"}, "type of activations and of matrix products",
             {.peers = {"dtype", "amp", "mixed_precision", "bf16", "fp16", "compute_dtype"}}),
      choice("bf16_fallback", &T::bf16_fallback, {"refuse", "fp32", "convert"},
             "what to do on a CPU where bf16 would be slower than fp32", {.may_change = true}),
      flag("reproducible", &T::reproducible,
           "GPUs: sum along the tree and use no atomic kernels, for the same bits at any number of ranks",
           {.peers = {"deterministic"}}),
      choice("device", &T::device, {"auto", "cpu", "cuda"},
             "where to compute; auto: on GPUs if every rank has one",
             {.may_change = true, .peers = {"gpu", "gpus", "accelerator"}}),
      number("threads", &T::threads, Range::from(0, 1024),
             "threads of a rank (their number is part of the bits); 0: as many as it has cores at the first "
             "start",
             {.unit = "threads", .peers = {"num_threads", "omp_num_threads"}}),
      choice("bind", &T::bind, {"cores", "none"},
             "CPU: bind each thread to its cores, or leave the launcher's binding", {.may_change = true}),
      number("eval_every", &T::eval_every, counts, "steps between evaluations; 0: evaluate at the end only",
             {.unit = "steps",
              .may_change = true,
              .peers = {"eval_interval", "eval_steps", "val_every", "val_interval", "evaluate_every"}}),
      number("eval_samples", &T::eval_samples, counts,
             "size of an evaluation, chosen by the seed; 0: all samples, as lockstep eval takes",
             {.unit = "samples",
              .may_change = true,
              .peers = {"eval_iters", "eval_batches", "limit_val_batches"}}),
      number(
          "patience", &T::patience, counts,
          "evaluations in a row without a better value of checkpoint.keep_best (without one: of eval_loss) "
          "that end the run, with exit code 0; 0: the run takes all its steps",
          {.unit = "evaluations",
           .may_change = true,
           .peers = {"early_stopping", "early_stopping_patience", "early_stop", "early_stopping_rounds"}}),
      text("init", &T::init, "checkpoint, .safetensors, .pt or HDF5 file whose weights a new run starts from",
           {.peers = {"pretrained", "init_from", "weights", "load", "finetune"}}),
      number("label_smoothing", &T::label_smoothing, Range::below(0, 1),
             "label smoothing of the cross-entropy"),
      texts("frozen", &T::frozen, "name patterns of parameters that are not trained", {.peers = {"freeze"}}),
      flag("frozen_statistics", &T::frozen_statistics,
           "batch norms normalise by their running statistics in training, too, and keep them",
           {.peers = {"freeze_bn", "frozen_bn", "norm_eval", "bn_eval"}}),
  };
}

std::unique_ptr<optim::Optimizer> OptimizerConfig::make(GradientSource& source) const {
  std::unique_ptr<optim::Optimizer> optimizer = algorithm.make(source);
  optimizer->set_lr(schedule.lr);
  std::vector<optim::ParamGroup> in_order;
  for (const auto& [number, group] : groups) in_order.push_back(group);
  optimizer->set_groups(in_order);
  return optimizer;
}

std::vector<Option<OptimizerConfig>> OptimizerConfig::options(const optim::Registry::Type* algorithm) {
  using O = OptimizerConfig;
  std::vector<Option<O>> rows = option::within<O>(
      optim::Schedule::options(), [](auto& config) -> auto& { return config.schedule; });
  std::vector<Option<O>> middle;  // behind lr and min_lr
  if (algorithm)
    middle = option::within<O>(
        algorithm->options, [](auto& config) -> auto& { return config.algorithm; });
  std::erase_if(middle, [&](const Option<O>& row) {  // lr of a program's optimizer
    return std::ranges::find(rows, row.name, &Option<O>::name) != rows.end();
  });
  middle.push_back(option::number(
      "clip", &O::clip, Range::from(0, 1e38), "largest global gradient norm; 0: no clipping",
      {.may_change = true,
       .peers = {"grad_clip", "max_grad_norm", "gradient_clip", "gradient_clip_val", "clip_grad_norm"}}));
  insert_behind(rows, "min_lr", std::move(middle));
  return rows;
}

std::vector<Option<EmaConfig>> EmaConfig::options() {
  using namespace option;
  using E = EmaConfig;
  std::vector<Option<E>> averages = within<E>(
      optim::EmaOptions::options(), [](auto& config) -> auto& { return config.averages; });
  std::vector<Option<E>> rows{
      numbers("rates", &E::rates, Range::below(0, 1), "decay of each moving average of the weights",
              {.peers = {"rate", "ema", "ema_decay", "ema_rate", "ema_rates"}}),
      numbers("sigma_rel", &E::sigma_rel, {.low = 0, .high = 0.28, .low_open = true, .high_open = true},
              "widths of power-function averages (0.05 0.10); each checkpoint leaves a snapshot of them in "
              "RUN/ema for lockstep ema, at most 22 while the steps double"),
      choice("init", &E::init, {"weights", "file"},
             "what EMA weights of a new run start from, where train.init names a file: its weights, or its "
             "EMA weights"),
  };
  insert_behind(rows, "sigma_rel", {averages.begin() + 1, averages.end()});
  insert_behind(rows, "rates", {averages.front()});  // warmup, of these
  return rows;
}

void EmaConfig::check() const {
  const auto is_twice_in = [](std::vector<double> numbers) {
    std::ranges::sort(numbers);
    return std::ranges::adjacent_find(numbers) != numbers.end();
  };
  if (is_twice_in(rates)) throw Misfit("rates", "a rate is given twice");
  if (is_twice_in(sigma_rel)) throw Misfit("sigma_rel", "a width is given twice");
  if (averages.warmup && rates.empty()) throw Misfit("warmup", "applies to ema.rates, and none is given");
  averages.check();
}

std::vector<Option<CheckpointConfig>> CheckpointConfig::options() {
  using C = CheckpointConfig;
  Range every = counts;
  every.word = "auto";
  every.word_value = C::auto_every;
  std::vector<Option<C>> rows = option::within<C>(
      checkpoint::StoreOptions::options(), [](auto& config) -> auto& { return config.store; });
  rows.insert(rows.begin(),
              option::number("every", &C::every, every,
                             "steps between checkpoints; auto: as many as take 10 minutes, found after 20 "
                             "steps; 0: save at the end only",
                             {.unit = "steps",
                              .may_change = true,
                              .peers = {"save_every", "save_interval", "save_steps", "save_freq",
                                        "checkpoint_every", "checkpoint_interval"}}));
  return rows;
}

std::vector<Option<FaultConfig>> FaultConfig::options() {
  using namespace option;
  using F = FaultConfig;
  Range timeout = Range::from(1, 1e9);
  timeout.or_zero = true;
  return {
      number("hang_timeout_s", &F::hang_timeout_s, timeout,
             "a rank without progress for so long counts as hung, and the job ends; 0: no limit",
             {.unit = "s", .may_change = true, .peers = {"timeout", "ddp_timeout", "nccl_timeout"}}),
      flag("signal_report", &F::signal_report,
           "SIGUSR1 prints the phase and the stack of each rank, as does the end of a job that hangs",
           {.may_change = true}),
  };
}

std::vector<Option<ReportConfig>> ReportConfig::options() {
  return {option::flag("write", &ReportConfig::write,
                       "write RUN/report.html at the end of a run, as lockstep report does",
                       {.may_change = true})};
}

std::vector<Option<SampleConfig>> SampleConfig::options(bool texts_of_models) {
  using namespace option;
  using S = SampleConfig;
  std::vector<Option<S>> rows = {
      number("every", &S::every, counts,
             "steps between samples, RUN/samples/step-STEP-WEIGHTS.png, or .txt of a language model; 0: none",
             {.unit = "steps",
              .may_change = true,
              .peers = {"sample_every", "sample_interval", "sample_freq", "save_image_every"}}),
      texts("weights", &S::weights,
            "weights to sample with, a file of each: model, ema/RATE, ema/sigma_rel=S; default: model. "
            "lockstep sample takes the first",
            {.may_change = true})};
  if (texts_of_models) {
    using G = GenerateOptions;
    std::vector<Option<S>> of_texts = within<S>(
        std::vector{
            number("seed", &G::seed, range_of<std::uint64_t>(), "seed of the draws", {.may_change = true}),
            number("tokens", &G::tokens, Range::from(1, 1e6), "number of tokens that a text gets",
                   {.unit = "tokens", .may_change = true, .peers = {"max_new_tokens"}}),
            number("temperature", &G::temperature, Range::from(0, 1000),
                   "above 0: randomness of the draws; 0: always the most likely token", {.may_change = true}),
            number("top_k", &G::top_k, counts, "draw among the K most likely tokens; 0: all",
                   {.may_change = true}),
            number("top_p", &G::top_p, Range::above(0, 1),
                   "draw among the most likely tokens that have this probability together",
                   {.may_change = true})},
        [](auto& config) -> auto& { return config.continuation; });
    of_texts.push_back(texts("prompts", &S::prompts,
                             "texts to continue, those with blanks in quotes; default: a new line",
                             {.may_change = true, .peers = {"prompt", "start"}}));
    rows.insert(rows.end(), of_texts.begin(), of_texts.end());
    return rows;
  }
  const std::vector<Option<S>> of_pictures = {
      number("count", &S::count, Range::from(1, 1e9), "number of samples in a picture",
             {.unit = "samples", .may_change = true, .peers = {"num_samples", "n_samples"}}),
      text("class", &S::classes,
           "class of the samples: a number, all (sample i has class i mod num_classes) or none; auto: all, "
           "if the model takes classes",
           {.may_change = true, .peers = {"class_cond", "labels"}}, "auto, all, none, or a whole number"),
      text("features", &S::features,
           "checkpoint of a classifier: evaluations get frechet, the distance between samples and data.train "
           "in what its last layer takes",
           {.may_change = true, .peers = {"fid", "compute_fid"}}),
      number("features_count", &S::features_count, Range::from(2, 1e7),
             "number of samples that sample.features compares",
             {.unit = "samples", .may_change = true, .peers = {"fid_num_samples"}}),
  };
  insert_behind(rows, "every", of_pictures);
  std::vector<Option<S>> how = within<S>(
      SampleOptions::options(), [](auto& config) -> auto& { return config.how; });
  const auto seed = std::ranges::find(how, "seed", &Option<S>::name);
  insert_behind(rows, "weights", {*seed});
  how.erase(seed);
  insert_behind(rows, "class", std::move(how));
  return rows;
}

std::vector<Option<LogConfig>> LogConfig::options() {
  using namespace option;
  using L = LogConfig;
  Option<L> every =
      number("every", &L::every, Range::from(1, 1e15),
             "steps between lines of metrics; unless it is set, the terminal and the job's log show at most "
             "one a second",
             {.unit = "steps",
              .may_change = true,
              .peers = {"log_interval", "logging_steps", "log_every", "log_every_n_steps", "print_freq"}});
  every.set = [set = every.set](L& config, const std::string& value) {
    set(config, value);
    config.every_is_set = true;
  };
  return {
      every,
      text("trace", &L::trace, "FILE.json: a timeline of all ranks for chrome://tracing",
           {.may_change = true, .peers = {"profile", "profiler", "timeline"}}),
      flag("tensorboard", &L::tensorboard, "also write the metrics for TensorBoard, to RUN/tensorboard/",
           {.may_change = true, .peers = {"tensorboard_dir", "tb", "use_tensorboard", "report_to"}}),
      number("histograms_every", &L::histograms_every, counts,
             "steps between histograms of parameters and gradients in TensorBoard; 0: none",
             {.unit = "steps",
              .may_change = true,
              .peers = {"histogram_freq", "log_histograms", "watch_freq", "log_gradients"}}),
  };
}

namespace {

/// Keys SECTION.NAME of the section access(config).
template <class Section, class Access>
void add_rows(std::vector<Key>& keys, const std::string& prefix, std::vector<Option<Section>> rows,
              Access access) {
  for (Key& key : option::within<Config>(std::move(rows), access)) {
    key.name = prefix + key.name;
    keys.push_back(std::move(key));
  }
}

template <class Section>
void add_section(std::vector<Key>& keys, const std::string& section, Section Config::*member) {
  add_rows(
      keys, section + ".", Section::options(), [member](auto& config) -> auto& { return config.*member; });
}

/// The key SECTION.name of the choice access(config), with the default `usual`; with a type also its options.
template <class Type, class Access>
void add_choice(std::vector<Key>& keys, std::string_view name_key, const Type* type, Access access,
                std::string usual, std::string meaning, OptionTraits traits) {
  keys.push_back({{std::string(name_key), "word", {}, std::move(meaning), std::move(traits), {}},
                  [](Config&, const std::string&) {},  // read first: the other keys depend on it
                  [access, usual](const Config& config) {
                    return access(config).type ? access(config).name() : usual;
                  }});
  if (type) add_rows(keys, section_prefix(*type, name_key), type->options, access);
}

}  // namespace

std::vector<Key> keys_of(const Config& of) {
  std::vector<Key> keys;
  add_choice(keys, model_name_key, of.model.type, [](auto& config) -> auto& { return config.model; }, "",
             "which model; it decides the other keys of [model]",
             {.required = true, .peers = {"model", "arch", "architecture", "type"}});
  add_choice(keys, task_name_key, of.task.type, [](auto& config) -> auto& { return config.task; }, "",
             "what is learned, which decides the other keys of [task]; default: language for gpt and llama, "
             "diffusion for unet, regression for cosmoflow, classification for the others",
             {.peers = {"task", "objective", "criterion"}});
  add_section(keys, "data", &Config::data);
  if (const data::Registry::Type* const kind = of.data.kind.type)
    add_rows(
        keys, section_prefix(*kind, data_format_key), kind->options,
        [](auto& config) -> auto& { return config.data.kind; });
  add_section(keys, "train", &Config::train);
  std::vector<Key> of_run;
  add_rows(
      of_run, "train.", ddp::Options::options_of_run(), [](auto& config) -> auto& { return config.ddp; });
  keys.push_back(std::move(of_run.back()));  // cuda_graph; the others follow the batch that they divide
  of_run.pop_back();
  insert_behind(keys, "train.global_batch", of_run);
  // OptimizerConfig::options() has the position of the algorithm's options.
  add_choice<optim::Registry::Type>(
      keys, optimizer_name_key, nullptr, [](auto& config) -> auto& { return config.optimizer.algorithm; },
      OptimizerConfig::usual, "optimization algorithm", {.peers = {"optim", "optimizer", "optimizer_type"}});
  add_rows(
      keys, "optimizer.", OptimizerConfig::options(of.optimizer.algorithm.type),
      [](auto& config) -> auto& { return config.optimizer; });
  add_section(keys, "ema", &Config::ema);
  add_section(keys, "ddp", &Config::ddp);
  add_section(keys, "checkpoint", &Config::checkpoint);
  add_section(keys, "fault", &Config::fault);
  add_section(keys, "log", &Config::log);
  add_section(keys, "report", &Config::report);
  add_rows(
      keys, "sample.", SampleConfig::options(of.task.options_of<tasks::Language>() != nullptr),
      [](auto& config) -> auto& { return config.sample; });
  return keys;
}

}  // namespace lockstep::train
