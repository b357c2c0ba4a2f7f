#include "train/config_keys.h"

namespace lockstep::train {
namespace {

template <class Section>
void add_section(std::vector<Key>& keys, const std::string& section, Section Config::*member) {
  for (Option<Section>& option : Section::options()) {
    keys.push_back(
        {.name = section + "." + option.name,
         .kind = std::move(option.kind),
         .allowed = std::move(option.allowed),
         .meaning = std::move(option.meaning),
         .traits = std::move(option.traits),
         .words = std::move(option.words),
         .set = [member, set = std::move(option.set)](
                    Config& config, const std::string& value) { set(config.*member, value); },
         .get = [member, get = std::move(option.get)](const Config& config) { return get(config.*member); }});
  }
}

std::vector<Key> all_keys() {
  std::vector<Key> keys;
  add_section(keys, "model", &Config::model);
  add_section(keys, "data", &Config::data);
  add_section(keys, "train", &Config::train);
  add_section(keys, "optimizer", &Config::optimizer);
  add_section(keys, "ema", &Config::ema);
  add_section(keys, "ddp", &Config::ddp);
  add_section(keys, "checkpoint", &Config::checkpoint);
  add_section(keys, "fault", &Config::fault);
  add_section(keys, "log", &Config::log);
  return keys;
}

}  // namespace

std::vector<Option<TrainConfig>> TrainConfig::options() {
  using namespace option;
  using T = TrainConfig;
  return {
      number(
          "steps", &T::steps, counts,
          "of the whole run, which optimizer.schedule is laid over: with another number it goes on along "
          "another "
          "curve",
          {.unit = "steps",
           .may_change = true,
           .peers = {"max_steps", "num_steps", "iterations", "max_iters", "num_iterations", "train_steps"}}),
      number("epochs", &T::epochs, Range::from(0, 1e9),
             "in place of train.steps: passes through data.train; becomes steps when the data is known",
             {.unit = "epochs",
              .may_change = true,
              .peers = {"epoch", "num_epochs", "max_epochs", "n_epochs", "num_train_epochs"}}),
      number("global_batch", &T::global_batch, Range::from(0, 1e9), "over all ranks, in a step",
             {.unit = "samples",
              .peers = {"batch_size", "batch", "global_batch_size", "total_batch_size", "train_batch_size",
                        "per_device_train_batch_size"}}),
      number("shards", &T::shards, Range::from(0, 1e6),
             "equal pieces of the batch; 0: the world size of the first start"),
      number("micro_batches", &T::micro_batches, Range::from(1, 1e6),
             "pieces a shard is run in, to save memory",
             {.peers = {"gradient_accumulation_steps", "grad_accum", "grad_accumulation",
                        "accumulate_grad_batches", "accumulation_steps", "micro_batch_size"}}),
      number("seed", &T::seed, Range::from(0, 18446744073709551615.0), "of every random draw",
             {.peers = {"random_seed", "manual_seed"}}),
      choice("precision", &T::precision, {"fp32", "bf16"}, "of activations and matrix products",
             {.peers = {"dtype", "amp", "mixed_precision", "bf16", "fp16", "compute_dtype"}}),
      choice("bf16_fallback", &T::bf16_fallback, {"refuse", "fp32", "convert"},
             "what bf16 becomes where it would be slower than fp32", {.may_change = true}),
      flag("reproducible", &T::reproducible, "on GPUs: sum along the tree, no atomic kernels",
           {.peers = {"deterministic"}}),
      choice("device", &T::device, {"auto", "cpu", "cuda"},
             "where to compute; auto: on GPUs if every rank has one",
             {.may_change = true, .peers = {"gpu", "gpus", "accelerator"}}),
      number("threads", &T::threads, Range::from(0, 1024),
             "of a rank (part of the bits); 0: as many as it has cores at the first start",
             {.unit = "threads", .peers = {"num_threads", "omp_num_threads"}}),
      choice("bind", &T::bind, {"cores", "none"},
             "on the CPU: each thread to cores of its own, or as the launcher left them",
             {.may_change = true}),
      number("eval_every", &T::eval_every, counts, "between evaluations; 0: at the end only",
             {.unit = "steps",
              .may_change = true,
              .peers = {"eval_interval", "eval_steps", "val_every", "val_interval", "evaluate_every"}}),
      number("eval_samples", &T::eval_samples, counts,
             "an evaluation takes the first so many of a permutation by the seed; 0: all (lockstep eval "
             "takes all)",
             {.unit = "samples",
              .may_change = true,
              .peers = {"eval_iters", "eval_batches", "limit_val_batches"}}),
      text("init", &T::init, "checkpoint, .safetensors or HDF5 file whose weights a new run starts from",
           {.peers = {"pretrained", "init_from", "weights", "load", "finetune"}}),
      number("label_smoothing", &T::label_smoothing, Range::below(0, 1), "of the cross-entropy"),
      texts("frozen", &T::frozen, "name patterns of parameters that do not learn", {.peers = {"freeze"}}),
      choice("cuda_graph", &T::cuda_graph, {"auto", "true", "false"},
             "record the step as a CUDA graph; auto: on one GPU, if it can be",
             {.may_change = true, .peers = {"cuda_graphs", "compile"}}),
  };
}

std::vector<Option<FaultConfig>> FaultConfig::options() {
  using namespace option;
  using F = FaultConfig;
  Range timeout = Range::from(1, 1e9);
  timeout.or_zero = true;
  return {
      number("hang_timeout_s", &F::hang_timeout_s, timeout,
             "without progress, after which a rank is missing, and the job ends; 0: for ever",
             {.unit = "s", .may_change = true, .peers = {"timeout", "ddp_timeout", "nccl_timeout"}}),
      flag("signal_report", &F::signal_report,
           "SIGUSR1 prints where each rank is, with its stack; so does the end of a job that hangs",
           {.may_change = true}),
  };
}

std::vector<Option<LogConfig>> LogConfig::options() {
  using namespace option;
  using L = LogConfig;
  return {
      number("every", &L::every, Range::from(1, 1e15), "between lines of metrics",
             {.unit = "steps",
              .may_change = true,
              .peers = {"log_interval", "logging_steps", "log_every", "log_every_n_steps", "print_freq"}}),
      text("trace", &L::trace, "FILE.json: a timeline of all ranks for chrome://tracing",
           {.may_change = true, .peers = {"profile", "profiler", "timeline"}}),
  };
}

const std::vector<Key>& config_keys() {
  static const std::vector<Key> keys = all_keys();
  return keys;
}

}  // namespace lockstep::train
