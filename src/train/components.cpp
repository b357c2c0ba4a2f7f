#include "train/components.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

#include "base/files.h"
#include "base/resources.h"
#include "base/text.h"
#include "checkpoint/weights/foreign.h"
#include "data/ragged.h"
#include "ddp/gradient_buffer.h"
#include "kernels/gpus.h"
#include "lockstep/base/error.h"
#include "lockstep/comm/agreement.h"
#include "lockstep/comm/reduction_tree.h"
#include "lockstep/nn/module.h"
#include "lockstep/nn/norm.h"
#include "lockstep/tasks/built_in.h"
#include "train/device.h"
#include "train/threads.h"

namespace lockstep::train {
namespace {

std::string amount(double bytes) {
  const double mib = bytes / (1 << 20);
  return mib < 10240 ? fmt::format("{:.1f} MiB", mib) : fmt::format("{:.1f} GiB", mib / 1024);
}

std::unique_ptr<models::Model> make_model(const Config& config) {
  auto model = models::make_model(config.model, config.ddp.seed);
  nn::freeze(model->state(), config.train.frozen);
  try {
    if (config.train.frozen_statistics) nn::freeze_statistics(*model);
  } catch (const UsageError& error) {
    throw UsageError("train.frozen_statistics = true: {}", error.what());
  }
  optim::prepare_model(config.optimizer.algorithm, model->state());
  return model;
}

}  // namespace

std::unique_ptr<models::Model> build_meta_model(const Config& config) {
  const MetaTensors meta;
  return make_model(config);
}

std::unique_ptr<models::Model> build_model_of_file(const Config& config) {
  const nn::WithoutInitialValues none;
  return build_model(config);
}

std::unique_ptr<models::Model> build_model(const Config& config) {
  double bytes = 0;
  const auto meta = build_meta_model(config);
  for (const Param* const param : meta->state().params) bytes += static_cast<double>(param->value.bytes());
  const std::optional<std::uint64_t> available = available_memory_bytes();
  if (available && bytes > static_cast<double>(*available)) {
    throw UsageError(
        "model.name = {}: the parameters take {}, and this node has {} left; make the model smaller",
        config.model.name(), amount(bytes), amount(static_cast<double>(*available)));
  }
  return make_model(config);
}

std::unique_ptr<Task> make_task(const Config& config) {
  tasks::TaskConfig task = config.task;
  const double smoothing = config.train.label_smoothing;
  if (auto* const options = task.options_of<tasks::Classification>()) options->label_smoothing = smoothing;
  if (auto* const options = task.options_of<tasks::Language>()) options->label_smoothing = smoothing;
  return task.make();
}

void check_finite(const ModelState& model, kernels::Backend& backend, std::int64_t step) {
  for (const Param* const param : model.params) {
    param->wait_ready();
    const Tensor here = kernels::on_cpu(param->value, &backend);
    const float* const values = here.data<float>();
    if (std::all_of(values, values + param->value.numel(), [](float value) { return std::isfinite(value); }))
      continue;
    throw TrainingError("step {}: {} is not finite; lower optimizer.lr or set optimizer.clip", step,
                        param->name);
  }
}

void check_batch_norms(Model& model, std::int64_t tried, const Config& config,
                       const ddp::DataParallel& replicas, bool is_new, const Log& log) {
  const comm::ShardMap& map = replicas.shard_map();
  const std::int64_t of_rank = config.train.global_batch / map.shards() / config.ddp.micro_batches;
  std::int64_t ranks = 0;  // the smallest number of ranks in one pass
  for (int rank = 0; rank < map.ranks(); ++rank) ranks += map.block(rank).count == map.block(0).count;
  std::vector<std::string> layers;
  model.for_each_module([&](nn::Module& module) {
    const auto* const norm = dynamic_cast<const nn::BatchNorm2d*>(&module);
    if (norm && !norm->has_frozen_statistics() &&
        norm->values_per_channel() * of_rank * (norm->meets_across_ranks() ? ranks : 1) == tried)
      layers.push_back(norm->path());
  });
  if (layers.empty()) return;
  const std::string text = fmt::format(
      "{}{}: batch norm over one value a channel: its variance is 0, and the output is the bias whatever the "
      "input; give a shard more samples (train.shards and train.micro_batches divide train.global_batch = "
      "{}), "
      "or use larger images{}",
      layers.front(), layers.size() == 1 ? "" : fmt::format(" and {} more", layers.size() - 1),
      config.train.global_batch, map.ranks() > 1 ? ", or batch norms that are synchronized over ranks" : "");
  if (is_new) throw UsageError("{}", text);
  if (replicas.group().rank() == 0) log.warning("{}", text);
}

namespace {

/// Throws DataError if the images would fit with their last axis first: [height, width, channels].
void check_layout(const Model& model, const Shape& image, const std::string& file) {
  if (image.rank() != 3) return;
  try {
    model.check_input({1, image[2], image[0], image[1]});
  } catch (const DataError&) {
    return;
  }
  throw DataError(
      "{}: images are stored as [N, H, W, C], {} each, but are read as [N, C, H, W]; in Python: "
      "f = h5py.File('FILE.h5', 'a'); x = f['x'][:].transpose(0, 3, 1, 2); del f['x']; f['x'] = x",
      file, to_string(image));
}

/// Throws DataError with file and sample unless `name`, if it is a field, has one integer a sample, which
/// says how many steps of field `of` exist.
void check_lengths(const data::Dataset& data, const std::string& name, const std::string& of) {
  if (!data::has_field(data, name) || !data::has_field(data, of)) return;
  const data::Field &field = data::field_named(data, name), &series = data::field_named(data, of);
  if (series.ragged)
    throw DataError(
        "{}: field {} says how many steps of {} exist, but {} has offsets, which say it; remove one of them",
        data.name(), name, of, of);
  if (series.shape.rank() == 0) return;
  if (field.dtype != DType::int64 || field.shape.rank() != 0)
    throw DataError(
        "{}: field {} is {} {} a sample, but the lengths of series are one integer a sample, stored as [N]",
        data.name(), name, to_string(field.dtype), to_string(field.shape));
  const std::vector<double> lengths = data.column(name);
  for (std::size_t i = 0; i < lengths.size(); ++i)
    if (lengths[i] < 0 || lengths[i] > static_cast<double>(series.shape[0]))
      throw DataError("{}: {} is {}, but {} has {} steps (0 to {} can exist)",
                      data.location(static_cast<std::int64_t>(i)), name, lengths[i], of, series.shape[0],
                      series.shape[0]);
}

}  // namespace

void check_inputs(const Model& model, const data::Dataset& data) {
  for (const std::string& name : model.reads()) {
    const data::Field& field = data::field_named(data, name);
    if (name != "x") continue;
    if (field.ragged && model.reads_lengths())
      throw DataError(
          "{}: field x has offsets, but series of different lengths are x [N, T, F], padded, "
          "with lengths [N]",
          data.name());
    try {
      model.check_input(data::batch_shape(1, field.shape));
    } catch (const DataError&) {
      check_layout(model, field.shape, data.name());
      throw;
    }
  }
  if (model.reads_lengths()) check_lengths(data, "lengths", "x");
  const std::string lengths = model.output_lengths();
  if (!lengths.empty()) check_lengths(data, lengths, "y");
  if (model.reads_lengths() && lengths != "y_lengths" && data::has_field(data, "y_lengths"))
    throw DataError(
        "{}: y_lengths is for forecasts (model.horizon); here {}, so name the fields "
        "without it (data.fields)",
        data.name(), lengths.empty() ? "y has no steps" : "lengths says which steps of y exist");
}

void check_data(const Model& model, Task& task, const data::Dataset& data) {
  check_inputs(model, data);
  if (data::has_field(data, "positions") && model.context() > 0 && !model.reads_positions())
    throw UsageError("data.documents = mask: the model does not take positions; gpt and llama do");
  task.check(model, data);
}

std::string check_trained_model(checkpoint::LoadReport& report, const Config& config) {
  const std::string& path = report.index.path;
  if (const auto source = report.provenance.extract(checkpoint::foreign_config_key);
      source && config.model.type->traits.foreign)
    checkpoint::check_foreign_config(path, source.mapped(), *config.model.type->traits.foreign,
                                     [&](std::string_view option) { return config.model.value(option); });
  if (report.index.config.empty()) return {};
  models::ModelConfig trained;
  try {
    trained = parse_stored_config(report.index.config, path + " /config", *config.registries).model;
  } catch (
      const UsageError& error) {  // a configuration of a program with its own models, or of another version
    return fmt::format("the model of the weights is not compared: {}", error.what());
  }
  if (trained.type != config.model.type) return {};
  std::vector<std::string> others;
  for (const auto& option : trained.type->options) {
    const std::string then = option.get(trained), now = option.get(config.model);
    if (then != now && !option.traits.keeps_weights)
      others.push_back(fmt::format("{} = {}, not {}", option.name, then, now));
  }
  if (others.empty()) return {};
  const std::string text = fmt::format("{}: its weights were trained with {} (model.name = {})", path,
                                       fmt::join(others, ", "), trained.name());
  if (config.checkpoint.store.strict)
    throw UsageError(
        "{}: they fit, but would compute something else; set the same value, or checkpoint.load = partial",
        text);
  return text;
}

namespace {

std::int64_t updates_of(const checkpoint::GroupEntry& group) {
  const auto found = std::ranges::find(group.attributes, "updates",
                                       &std::pair<std::string, checkpoint::AttributeValue>::first);
  const auto* const updates =
      found == group.attributes.end() ? nullptr : std::get_if<std::int64_t>(&found->second);
  return updates ? std::max<std::int64_t>(*updates, 0) : 0;
}

/// The model has the weights of the file and keeps them; `ema` loads the file's averages.
void load_initial_averages(const checkpoint::FileIndex& file, const Config& config, Model& model,
                           optim::Ema& ema, Session& session, const checkpoint::LoadOptions& options) {
  constexpr std::string_view prefix = "ema/";
  std::vector<std::string> groups, lacking;
  std::set<std::int64_t> updates;
  for (const optim::EmaProfile& profile : ema.profiles()) {
    groups.push_back(fmt::format("{}{}", prefix, profile.name()));
    if (const checkpoint::GroupEntry* const stored = file.group(groups.back()))
      updates.insert(updates_of(*stored));
    else
      lacking.push_back(groups.back());
  }
  if (!lacking.empty())
    throw DataError("{}: has no {}, which ema.init = file needs", config.train.init,
                    fmt::join(lacking, ", "));
  const bool counts = config.ema.averages.warmup || !config.ema.sigma_rel.empty();
  if (counts && (updates.size() > 1 || updates.contains(0)))
    throw DataError(
        "{}: its averages have no common number of updates, on which ema.warmup and ema.sigma_rel depend; "
        "leave these out, or ema.init",
        config.train.init);
  checkpoint::LoadOptions again = options;
  again.log = false;
  for (const std::string& group : groups) {
    checkpoint::load_weights(file, model, session.world(), group, options);
    ema.reset(group.substr(prefix.size()));
    // If values may be missing in the next average, they are those of the weights.
    checkpoint::load_weights(file, model, session.world(), file.default_weights(), again);
  }
  ema.set_updates(*updates.rbegin());
}

}  // namespace

namespace {

/// What differs if the weights of a file, or of a folder of Hugging Face, are of another tokenizer.
std::string other_tokenizer(const std::string& path, const checkpoint::FileIndex& index,
                            const data::Tokens& of_data) {
  const auto stored = index.provenance.find(tokenizer_provenance);
  std::string theirs = stored == index.provenance.end() ? "" : stored->second;
  const std::string folder = is_directory(path) ? path : directory_of(path);
  if (theirs.empty() && exists(folder + "/tokenizer.json")) theirs = data::read_tokenizer(folder).id();
  if (theirs.empty() || of_data.tokenizer.empty() || theirs == of_data.tokenizer) return {};
  return fmt::format("{}: its weights are of the tokenizer {}, but the data is of {}", path, quote(theirs),
                     quote(of_data.tokenizer));
}

}  // namespace

checkpoint::Provenance load_initial_weights(const Config& config, const data::Tokens& of_data, Model& model,
                                            optim::Ema* ema, Session& session) {
  comm::HostGroup& world = session.world();
  const checkpoint::LoadOptions options{.strict = config.checkpoint.store.strict,
                                        .narrow = config.checkpoint.store.narrow};
  checkpoint::LoadReport report = checkpoint::load_weights(config.train.init, model, world, {}, options);
  std::string warning;
  comm::run_on_all(world, [&] {
    warning = check_trained_model(report, config);
    const std::string other = other_tokenizer(config.train.init, report.index, of_data);
    if (!other.empty() && config.checkpoint.store.strict)
      throw DataError("{}; lockstep prepare text takes it by --tokenizer, or set checkpoint.load = partial",
                      other);
    if (!other.empty()) warning += (warning.empty() ? "" : "; ") + other;
  });
  if (!warning.empty() && world.rank() == 0) session.log().warning("{}", warning);
  const bool averages = ema && config.ema.init == "file";
  if (averages) {
    load_initial_averages(report.index, config, model, *ema, session, options);
  } else if (ema) {
    ema->reset();
  }
  session.log().info("a new run from the weights of {}{}", config.train.init,
                     averages ? " and its averages" : (ema ? ", at which its averages begin" : ""));
  return std::move(report.provenance);
}

void check_same_updates(const Config& config, const kernels::Backend& backend, comm::HostGroup& world) {
  const optim::Algorithm& algorithm = config.optimizer.algorithm;
  if (!algorithm.type->traits.undivided || config.ddp.sharded_optimizer) return;
  if (const auto differing = comm::first_difference(world, backend.instruction_set()))
    throw UsageError(
        "optimizer.name = {}: matrix products have other bits with another instruction set: {}; set "
        "ddp.sharded_optimizer = true, which lets one rank update a matrix for all, or start all ranks on "
        "nodes with the same processor",
        algorithm.name(), differing->text());
}

std::unique_ptr<optim::Ema> build_ema(const Config& config, const ModelState& model,
                                      kernels::Backend& backend, const Partition* partition) {
  std::vector<optim::EmaProfile> profiles(config.ema.rates.begin(), config.ema.rates.end());
  for (const double width : config.ema.sigma_rel) profiles.push_back(optim::EmaProfile::power(width));
  if (profiles.empty()) return nullptr;
  optim::EmaOptions options = config.ema.averages;
  options.partition = partition;
  return std::make_unique<optim::Ema>(model, backend, std::move(profiles), options);
}

namespace {

/// What changes the batches of this run.
data::Augment augment_of(const Config& config, const DataSets& data) {
  const bool are_pictures = data.format() == "pictures";
  data::Augment augment = config.data.augment;
  if (augment.mixes() && !config.task.options_of<tasks::Classification>())
    throw UsageError("data.augment: mixup and cutmix mix classes; the task is {}", config.task.name());
  if (augment.crop_padding == data::Augment::crop_by_width) {
    const Shape image = data::field_named(data.train(), "x").shape;
    augment.crop_padding = image.rank() == 3 ? static_cast<int>(std::max<std::int64_t>(1, image[2] / 8)) : 1;
  }
  if (!are_pictures && (augment.resized_crop || augment.color_jitter > 0))
    throw UsageError("data.augment: random_resized_crop and color_jitter change pictures; the data are {}",
                     data.format());
  if (are_pictures) {  // the data set makes these changes
    augment.resized_crop = augment.flip = false;
    augment.color_jitter = 0;
  }
  return augment;
}

/// What must be known of samples that differ in size before a batch has too many rows.
void check_ragged(const Config& config, const data::Dataset& dataset) {
  if (!data::is_ragged(dataset)) {
    if (config.data.max_rows == 0) return;
    throw UsageError("data.max_rows: samples of {} have one size; remove it", dataset.name());
  }
  if (config.ddp.micro_batches > 1)
    throw UsageError(
        "train.micro_batches = {}: samples of {} differ in size, so a shard cannot be cut; remove it, and "
        "bound a shard by train.shards and data.max_rows",
        config.ddp.micro_batches, dataset.name());
  for (std::size_t i = 0; i < dataset.fields().size(); ++i)
    for (std::int64_t sample = 0; config.data.max_rows > 0 && sample < dataset.size(); ++sample)
      if (const std::int64_t rows = dataset.rows(i, {&sample, 1}); rows > config.data.max_rows)
        throw DataError("data.max_rows = {}: {} alone has {} rows of {}; raise it, or leave the sample out",
                        config.data.max_rows, dataset.location(sample), rows, dataset.fields()[i].name);
}

}  // namespace

data::LoaderOptions loader_options(const Config& config, const DataSets& data, Session& session) {
  check_ragged(config, data.train());
  return {.global_batch = config.train.global_batch,
          .shards = config.ddp.shards,
          .seed = config.ddp.seed,
          .augment = augment_of(config, data),
          .shuffle = config.data.shuffle,
          .weights = data.draw_weights(),
          .backend = &session.backend(),
          .threads = loader_threads(session.world(), config.data.threads, session.backend().threads()),
          .ahead = config.data.ahead,
          .max_rows = config.data.max_rows};
}

checkpoint::StoreOptions store_options(const Config& config, const DataSets& data,
                                       const kernels::Backend& backend, DType compute, Better keep_best) {
  const data::Dataset& dataset = data.train();
  checkpoint::Provenance provenance{
      {samples_provenance, std::to_string(dataset.size())}, {format_provenance, data.format()},
      {"device", kernels::name_of(backend.device())},       {"threads", std::to_string(backend.threads())},
      {"instruction_set", backend.instruction_set()},       {"math_library", backend.math_library()},
      {"precision", precision_text(compute, backend)}};
  const data::Tokens tokens = data.tokens();
  if (!tokens.tokenizer.empty()) provenance[tokenizer_provenance] = tokens.tokenizer;
  if (!tokens.text.empty()) provenance[tokenizer_text_provenance] = tokens.text;
  if (data.range()) add(provenance, *data.range());
  checkpoint::StoreOptions options = config.checkpoint.store;
  options.schedule = {.seed = config.ddp.seed,
                      .shards = config.ddp.shards,
                      .samples_per_step = config.train.global_batch,
                      .samples_per_epoch = dataset.size()};
  options.config = to_text(config);
  options.provenance = std::move(provenance);
  options.more_is_better = keep_best == Better::higher;
  return options;
}

namespace {

/// The minimum over ranks: a rank with many shards sums their gradients in several buffers.
int min_accumulation_buffers(const Config& config, int ranks) {
  const comm::ShardMap shards(config.ddp.shards > 0 ? config.ddp.shards : ranks, ranks);
  int min_buffers = std::numeric_limits<int>::max();
  for (int rank = 0; rank < ranks; ++rank)
    min_buffers =
        std::min(min_buffers, ddp::AccumulationSchedule(shards.shards(), shards.block(rank)).buffers());
  return min_buffers;
}

}  // namespace

MemoryNeed memory_need(const Config& config, const ModelState& model, const data::Dataset& data, int ranks,
                       Device device) {
  MemoryNeed need;
  double trained = 0;
  for (const Param* const param : model.params) {
    const auto bytes = static_cast<double>(param->value.bytes());
    need.parameters += bytes;
    if (param->trainable) trained += bytes;
  }
  for (const Buffer* const buffer : model.buffers)
    need.parameters += static_cast<double>(buffer->value.bytes());
  double batch_bytes = 0;
  const auto samples = static_cast<double>(config.train.global_batch);
  const int shards = config.ddp.shards > 0 ? config.ddp.shards : ranks;
  for (std::size_t i = 0; i < data.fields().size(); ++i) {
    const data::Field& field = data.fields()[i];
    const double bytes =
        static_cast<double>(field.shape.numel()) * static_cast<double>(bytes_of(field.dtype));
    if (!field.ragged) {
      batch_bytes += bytes * samples;
      continue;
    }
    const auto max_rows = static_cast<double>(config.data.max_rows);
    const double mean_rows = max_rows > 0 ? 0 : data::mean_rows(data, i);
    batch_bytes += (bytes + sizeof(std::int64_t)) * (max_rows > 0 ? max_rows * shards : mean_rows * samples);
    if (max_rows > 0)
      need.inputs_of = "of data.max_rows rows a shard";
    else
      need.inputs_of += fmt::format("{}{:.1f} rows of {}", need.inputs_of.empty() ? "of samples with " : ", ",
                                    mean_rows, field.name);
  }
  if (!need.inputs_of.empty() && config.data.max_rows == 0)
    need.inputs_of += ", the mean; data.max_rows bounds shards";
  const int batches = config.data.ahead + 1;
  need.inputs = batches * batch_bytes / ranks;
  if (device != Device::cpu()) return need;
  const auto profiles = static_cast<double>(config.ema.rates.size() + config.ema.sigma_rel.size());
  const double owners = config.ddp.sharded_optimizer ? ranks : 1;
  need.gradients = trained * min_accumulation_buffers(config, ranks);
  need.optimizer = static_cast<double>(optim::elements_of_state(config.optimizer.algorithm, model)) *
                   sizeof(float) / owners;
  need.ema = profiles * need.parameters / owners;
  return need;
}

std::string MemoryNeed::to_text() const {
  return fmt::format("{}: parameters {}, gradients {}, optimizer {}, EMA {}, batches of inputs {}{}",
                     amount(sum()), amount(parameters), amount(gradients), amount(optimizer), amount(ema),
                     amount(inputs), inputs_of.empty() ? "" : fmt::format(" ({})", inputs_of));
}

void check_memory(const MemoryNeed& need, comm::HostGroup& world) {
  comm::run_on_all(world, [&] {
    const std::optional<std::uint64_t> available = available_memory_bytes();
    const comm::Topology& topology = world.topology();
    const int node = topology.node_of_rank[static_cast<std::size_t>(world.rank())];
    const std::int64_t ranks = std::ranges::count(topology.node_of_rank, node);
    const double needed = need.sum() * static_cast<double>(ranks);
    if (!available || needed <= static_cast<double>(*available)) return;
    throw UsageError(
        "this run needs at least {} on {} ({} of {}), which has {} left; make the model, "
        "train.global_batch or data.ahead smaller, start fewer ranks there, or set ddp.sharded_optimizer = "
        "true",
        amount(needed), topology.host_names[static_cast<std::size_t>(node)], pluralized(ranks, "rank"),
        need.to_text(), amount(static_cast<double>(*available)));
  });
}

Inputs open_inputs(Config& config, Session& session) {
  comm::HostGroup& world = session.world();
  Inputs inputs;
  list_folders(config, world);
  comm::run_on_all(world, [&] {
    const std::unique_ptr<Model> meta = build_meta_model(config);
    inputs.data = std::make_unique<DataSets>(config, *meta);
    inputs.task = make_task(config);
    inputs.need =
        memory_need(config, meta->state(), inputs.data->train(), world.size(), session.backend().device());
  });
  log_warnings(*inputs.data, session);
  check_memory(inputs.need, world);
  inputs.data->hold_on_node(world, config);
  comm::run_on_all(world, [&] { inputs.model = build_model(config); });
  return inputs;
}

}  // namespace lockstep::train
