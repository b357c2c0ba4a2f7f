// Texts of a configuration. Over 600 lines: each rule has one short case, and all cases read the same text.
#include "train/config.h"

#include <fmt/format.h>

#include <boost/test/unit_test.hpp>
#include <cstdint>
#include <random>
#include <sstream>
#include <string_view>
#include <utility>

#include "lockstep/autograd/gradient_sink.h"
#include "lockstep/base/error.h"
#include "lockstep/kernels/backend.h"
#include "lockstep/tasks/built_in.h"
#include "support/mentions.h"
#include "train/components.h"
#include "train/run/resume.h"

namespace lockstep::test {
namespace {
BOOST_AUTO_TEST_SUITE(config)

const std::string some_training = "[train]\nsteps = 5\nglobal_batch = 8\n";
const std::string minimal = "[model]\nname = mlp\nsizes = 64 10\n" + some_training;
const std::string resnet =
    "[model]\nname = resnet\nblocks = 1 1\nwidth = 8\nin_channels = 3\nclasses = 10\n" + some_training;

std::string error_of(const std::string& text, const std::vector<std::string>& overrides = {}) {
  try {
    train::parse_config(text, "a.ini", overrides);
  } catch (const UsageError& error) {
    return error.what();
  }
  return "no error";
}

BOOST_AUTO_TEST_CASE(memory_for_data_is_an_amount_with_its_unit) {
  const auto bytes = [](const std::string& amount) {
    return train::parse_config(minimal, "a.ini", {fmt::format("data.memory={}", amount)}).data.memory_bytes();
  };
  BOOST_TEST(bytes("0") == 0);
  BOOST_TEST(bytes("4GB") == 4'000'000'000);
  BOOST_TEST(bytes("1.5 MiB") == 3 << 19);
  BOOST_TEST(bytes("auto") > 0);
  for (const char* const wrong : {"4 giga", "GB", "-1GB"})
    BOOST_TEST(contains(error_of(minimal, {fmt::format("data.memory={}", wrong)}),
                        fmt::format("data.memory: \"{}\" is no amount of memory", wrong)));
}

BOOST_AUTO_TEST_CASE(the_resolved_text_reads_back_as_the_same_configuration) {
  const std::string full =
      minimal +
      "shards = 4\nfrozen = net.0.* *.bias\n[optimizer]\nlr = 3e-4\nbetas = 0.9 0.95\n"
      "group.1 = net.2.* 0.1 0\ngroup.2 = * 1 2\n[ema]\nrates = 0.99 0.9999\nwarmup = 1 0.75 10\n"
      "[data]\ntrain = a.h5 b.h5\naugment = flip crop\n";
  const train::Config config = train::parse_config(full, "a.ini");
  const train::Config again = train::parse_config(to_text(config), "b.ini");
  BOOST_TEST(to_text(again) == to_text(config));
  BOOST_TEST(train::forbidden_changes(config, again).empty());
  BOOST_TEST(again.optimizer.groups.at(1).lr_factor == 0.1);
  BOOST_TEST(again.data.augment.crop_padding == data::Augment::crop_by_width);
  BOOST_TEST(again.optimizer.algorithm.value("betas") == "0.9 0.95");
}

BOOST_AUTO_TEST_CASE(unknown_keys_name_the_nearest_known_one) {
  BOOST_TEST(contains(error_of(minimal + "step = 3\n"),
                      "a.ini:7: train.step: unknown key; did you mean train.steps?"));
  BOOST_TEST(contains(error_of(minimal + "[optimiser]\nlr = 3\n"),
                      "a.ini:7: [optimiser]: unknown section; did you mean [optimizer]?"));
  BOOST_TEST(contains(error_of(minimal + "[nosuch]\n"), "[nosuch]: unknown section"));
  BOOST_TEST(contains(error_of(minimal, {"optimiser.lr=3"}), "did you mean optimizer.lr?"));
}

BOOST_AUTO_TEST_CASE(true_and_false_may_be_written_as_python_prints_them) {
  for (const std::string yes : {"true", "True"})
    BOOST_TEST(train::parse_config(minimal, "a.ini", {"ddp.sharded_optimizer=" + yes}).ddp.sharded_optimizer);
  for (const std::string no : {"false", "False"})
    BOOST_TEST(!train::parse_config(minimal, "a.ini", {"train.reproducible=" + no}).train.reproducible);
}

BOOST_AUTO_TEST_CASE(bad_values_name_file_key_and_value) {
  BOOST_TEST(contains(error_of(minimal + "seed = -1\n"),
                      "a.ini:7: train.seed: \"-1\" is not a whole number in [0, "));
  BOOST_TEST(contains(error_of(minimal + "[optimizer]\nlr = fast\n"),
                      "a.ini:8: optimizer.lr: \"fast\" is not a number in (0, 1e+38]"));
  BOOST_TEST(
      contains(error_of(minimal, {"optimizer.clip=x"}), "--set: optimizer.clip: \"x\" is not a number"));
  BOOST_TEST(contains(error_of(minimal + "[optimizer]\ngroup.x = a 1 1\n"), "group"));
  BOOST_TEST(
      contains(error_of(minimal, {"train.steps=0"}), "--set: train.steps = 0: is missing or not positive"));
  BOOST_TEST(contains(error_of(minimal + "[ddp]\nbucket_mb = -2\n"),
                      "a.ini:8: ddp.bucket_mb: \"-2\" is not a number in (0, 1000000]"));
  BOOST_TEST(contains(error_of(minimal, {"optimizer.name=sgd", "optimizer.momentum=1"}),
                      "--set: optimizer.momentum: \"1\" is not auto or a number in [0, 1)"));
  BOOST_TEST(contains(error_of(minimal, {"optimizer.betas=0.9 2"}),
                      "optimizer.betas: \"2\" is not a number in [0, 1)"));
  BOOST_TEST(
      contains(error_of(minimal, {"ema.rates=0.99,0.999"}),
               "ema.rates: \"0.99,0.999\" is not a number in [0, 1); values of a list are separated by "
               "blanks, and decimals have a point"));
  BOOST_TEST(contains(error_of(minimal, {"ema.rates=0.99, 0.999"}), "separated by blanks"));
  BOOST_TEST(!contains(error_of(minimal, {"ema.rates=0.99 1.5"}), "blanks"));
  BOOST_TEST(
      contains(error_of(minimal, {"ddp.sharded_optimizer=TRUE"}), "\"TRUE\" is neither true nor false"));
  BOOST_TEST(contains(error_of(minimal, {"train.bind=core"}),
                      "train.bind: \"core\" is not one of: cores, none; did you mean cores?"));
  BOOST_TEST(contains(error_of("[train]\nsteps = 5\n"), "a.ini: model.name: is missing; one of mlp"));
  for (const char* const absurd :
       {"ddp.bucket_mb=inf", "ddp.bucket_mb=1e30", "optimizer.lr=nan", "ema.warmup=1 1 0.5"}) {
    BOOST_TEST(error_of(minimal, {absurd}) != "no error", absurd);
  }
  BOOST_TEST(contains(error_of(minimal + "steps = 6\n"), "a.ini:7: train.steps: is given twice"));
  BOOST_TEST(contains(error_of("# none\nno section here\n"), "a.ini:2: not an INI file"));
}

BOOST_AUTO_TEST_CASE(all_mistakes_are_in_one_error_each_with_its_line) {
  BOOST_TEST(error_of("[model]\nname = mlp\nsizes = 64 10\n\n# training\n[train]\nstepps = 5  # five\n" +
                          std::string("global_batch = 8\nseed = -1\n"),
                      {"optimizer.lr=fast"}) ==
             "3 mistakes: (1) a.ini:7: train.stepps: unknown key; did you mean train.steps? "
             "(2) a.ini:9: train.seed: \"-1\" is not a whole number in [0, 1.84467e+19] "
             "(3) --set: optimizer.lr: \"fast\" is not a number in (0, 1e+38]");
  BOOST_TEST(contains(
      error_of("[modl]\n[model]\nname = mlp\n[trian]\n"),
      "2 mistakes: (1) a.ini:1: [modl]: unknown section; did you mean [model]? (2) a.ini:4: [trian]"));
  const std::string missing = error_of("[model]\nname = gpt\nlayers = 2\n" + some_training +
                                       "label_smoothing = 0.1\n[ema]\nrates = 0.9 0.9\n");
  for (const char* const part :
       {"model.heads is missing", "model.channels is missing", "model.vocab is missing",
        "a.ini:9: ema.rates = 0.9 0.9: a rate is given twice"})
    BOOST_TEST(contains(missing, part), missing);
  std::string many = minimal;
  for (int i = 0; i < 20; ++i) many += fmt::format("wrong_{} = 1\n", i);
  BOOST_TEST(error_of(many).starts_with("20 mistakes: (1) a.ini:7: train.wrong_0: unknown key"));
  BOOST_TEST(error_of(many).ends_with(" ... and 8 more"));
}

BOOST_AUTO_TEST_CASE(a_whole_number_may_be_written_with_an_exponent) {
  BOOST_TEST(train::parse_config(minimal, "a", {"train.steps=1e3"}).train.steps == 1000);
  BOOST_TEST(train::parse_config(minimal, "a", {"train.steps=2.5e3"}).train.steps == 2500);
  BOOST_TEST(train::parse_config(minimal, "a", {"checkpoint.every=1e2"}).checkpoint.every == 100);
  for (const char* const setting : {"train.steps=2.5", "train.steps=1e-1", "train.steps=1e300",
                                    "train.steps=-1e3", "train.seed=nan", "train.threads=1e9"})
    BOOST_TEST(contains(error_of(minimal, {setting}), "is not a"), setting);
}

BOOST_AUTO_TEST_CASE(every_key_has_a_range_or_a_form_and_refuses_what_is_beyond_it) {
  for (const auto& [setting, part] :
       {std::pair{"train.threads=100000", "in [0, 1024]"},
        {"train.micro_batches=2147483647", "in [1, 1000000]"},
        {"train.global_batch=4611686018427387904", "in [1, 1000000000]"},
        {"model.sizes=64 72057594037927937 10", "in [1, 2147483647]"},
        {"model.dropout=1", "in [0, 1)"},
        {"fault.hang_timeout_s=0.5", "in 0 or [1, 1000000000]"},
        {"checkpoint.every=often", "is not auto or a whole number in [0, 1000000000000000]"},
        {"ema.sigma_rel=0.28", "in (0, 0.28)"},
        {"optimizer.lr=0", "in (0, 1e+38]"}}) {
    const std::string error = error_of(minimal, {setting});
    BOOST_TEST(contains(error, part), setting << ": " << error);
  }
}

BOOST_AUTO_TEST_CASE(a_model_takes_its_own_keys_only_and_an_error_says_whose_a_key_is) {
  BOOST_TEST(error_of(minimal, {"model.heads=4"}) ==
             "--set: model.heads: is a key of gpt, llama, vit, encoder, and model.name is mlp; remove it");
  BOOST_TEST(contains(error_of(resnet, {"model.dropout=0.5"}),
                      "model.dropout: is a key of mlp, gpt, unet, vit, encoder, rnn, cosmoflow, and"));
  BOOST_TEST(
      contains(error_of("[model]\nstem = 7x7\n" + minimal), "a.ini:2: model.stem: is a key of resnet"));
  BOOST_TEST(contains(error_of(resnet, {"model.name=mlp"}), "a.ini:"));
}

BOOST_AUTO_TEST_CASE(a_required_key_of_the_model_is_missed_by_name) {
  BOOST_TEST(
      error_of("[model]\nname = gpt\nlayers = 2\nchannels = 8\n" + some_training) ==
      "3 mistakes: (1) a.ini: model.heads is missing: attention heads (2) a.ini: model.context is missing: "
      "length of a sample, in tokens (3) a.ini: model.vocab is missing: size of the vocabulary");
}

BOOST_AUTO_TEST_CASE(the_resolved_text_has_the_keys_of_its_model_and_its_task_only) {
  const std::string text = to_text(train::parse_config(resnet, "a.ini"));
  BOOST_TEST(
      text.substr(0, text.find("[data]")) ==
      "[model]\nname = resnet\nblocks = 1 1\nwidth = 8\nin_channels = 3\nclasses = 10\ndims = 2\nblock = "
      "basic\nstem = 3x3\n"
      "batch_norm = plain\nrecompute = false\n\n[task]\nname = classification\nper_class = false\n\n");
}

/// Version 0394c50 wrote the keys of all models.
BOOST_AUTO_TEST_CASE(keys_of_other_models_are_passed_over_in_a_file_where_they_have_their_old_defaults) {
  const std::string old =
      "[model]\nname = resnet\nsizes = \nblocks = 1 1\nwidth = 8\nin_channels = 3\nclasses = 10\nlayers = 0\n"
      "heads = 0\nchannels = 0\ncontext = 0\nvocab = 0\nstem = 3x3\nbatch_norm = plain\ndropout = 0\n"
      "recompute = false\n" +
      some_training;
  const train::Config now = train::parse_config(resnet, "a.ini");
  for (const train::Config& config :
       {train::parse_stored_config(old, "run/config.ini"), train::parse_config(old, "run/config.ini")}) {
    BOOST_TEST(to_text(config) == to_text(now));
    BOOST_TEST(train::forbidden_changes(config, now).empty());
    BOOST_TEST(train::allowed_changes(config, now).empty());
  }
  const std::string mlp =
      "[model]\nname = mlp\nsizes = 64 10\nstem = 3x3\nbatch_norm = plain\n" + some_training;
  BOOST_TEST(to_text(train::parse_stored_config(mlp, "x.h5")) == to_text(train::parse_config(minimal, "a")));
  BOOST_CHECK_THROW(train::parse_stored_config("[model]\nheads = 4\n" + minimal, "x.h5"), UsageError);
}

BOOST_AUTO_TEST_CASE(another_model_is_one_forbidden_change) {
  const std::vector<std::string> forbidden =
      train::forbidden_changes(train::parse_config(minimal, "a"), train::parse_config(resnet, "a"));
  BOOST_TEST(
      forbidden == std::vector<std::string>{"model.name: the run has 'mlp', the configuration has 'resnet'"},
      boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(a_configuration_without_a_task_has_that_of_its_model) {
  const std::string gpt =
      "[model]\nname = gpt\nlayers = 1\nheads = 1\nchannels = 8\ncontext = 4\nvocab = 9\n" + some_training;
  BOOST_TEST(train::parse_config(minimal, "a").task.name() == "classification");
  BOOST_TEST(train::parse_config(resnet, "a").task.name() == "classification");
  BOOST_TEST(train::parse_config(gpt, "a").task.name() == "language");
  BOOST_TEST(train::parse_config(minimal, "a", {"task.name=regression", "task.loss=l1"})
                 .task.options_of<tasks::Regression>()
                 ->loss == "l1");
}

BOOST_AUTO_TEST_CASE(keys_of_another_task_and_unknown_tasks_are_named) {
  BOOST_TEST(contains(error_of(minimal, {"task.loss=l1"}),
                      "task.loss: is a key of regression, and task.name is classification; remove it"));
  BOOST_TEST(contains(error_of(minimal, {"task.name=regresion"}), "did you mean regression?"));
  BOOST_TEST(contains(error_of(minimal, {"task.name=regression", "train.label_smoothing=0.1"}),
                      "train.label_smoothing = 0.1: applies to the tasks classification and language only"));
  const train::Config run = train::parse_config(minimal, "a"),
                      asked = train::parse_config(minimal, "a", {"task.name=binary"});
  BOOST_TEST(
      train::forbidden_changes(run, asked) ==
          std::vector<std::string>{"task.name: the run has 'classification', the configuration has 'binary'"},
      boost::test_tools::per_element());
}

/// A model of a program that links Lockstep.
struct Scale final : models::Model {
  struct Options {
    std::int64_t width = 0;
    double gain = 1;
    static std::vector<Option<Options>> options() {
      return {
          option::number("width", &Options::width, models::widths, "numbers of a sample", {.required = true}),
          option::number("gain", &Options::gain, Range::from(0, 10), "factor", {.peers = {"amplification"}})};
    }
  };
  Scale(const Options& options, std::uint64_t seed) : Model(seed), width(options.width) {}
  std::int64_t classes() const override { return width; }
  Shape sample_shape(std::int64_t) const override { return {width}; }
  void check_input(const Shape&) const override {}
  Var forward(Tape& tape, const Batch& batch) override { return tape.batch(batch["x"]); }
  std::int64_t width;
};

std::string train_error(const std::string& text, const Registries& registries) {
  try {
    train::parse_config(text, "a.ini", {}, registries);
  } catch (const UsageError& error) {
    return error.what();
  }
  return "";
}

BOOST_AUTO_TEST_CASE(a_model_of_a_program_has_its_keys_in_the_configuration_as_built_in_ones_do) {
  Registries registries;
  add_built_in(registries);
  registries.models.add<Scale>("scale");
  const auto parse = [&](const std::string& keys) {
    return train::parse_config(
        "[model]\nname = scale\n" + keys + "[task]\nname = regression\n" + some_training, "a.ini", {},
        registries);
  };
  const train::Config config = parse("width = 7\ngain = 2.5\n");
  BOOST_TEST(config.model.options_of<Scale>()->gain == 2.5);
  BOOST_TEST(models::make_model(config.model, 1)->classes() == 7);
  BOOST_TEST(to_text(train::parse_stored_config(to_text(config), "b.ini", registries)) == to_text(config));
  const auto refusal = [&](const std::string& keys) {
    try {
      parse(keys);
    } catch (const UsageError& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  BOOST_TEST(contains(train_error("[model]\nname = scale\nwidth = 7\n" + some_training, registries),
                      "a.ini: task.name: is missing; one of classification, language, regression, binary"));
  BOOST_TEST(refusal("") == "a.ini: model.width is missing: numbers of a sample");
  BOOST_TEST(contains(refusal("width = 7\ngain = 11\n"), "model.gain: \"11\" is not a number in [0, 10]"));
  BOOST_TEST(contains(refusal("width = 7\namplification = 2\n"), "did you mean model.gain?"));
  BOOST_TEST(
      contains(error_of("[model]\nname = scale\n" + some_training),
               "\"scale\" is not one of: mlp, resnet, gpt, llama, unet, vit, encoder, rnn, cosmoflow"));
}

BOOST_AUTO_TEST_CASE(a_task_may_have_a_section_of_its_own) {
  const std::string unet =
      "[model]\nname = unet\nimage_size = 8\nin_channels = 1\nmodel_channels = 32\nout_channels = 1\n"
      "num_res_blocks = 1\nchannel_mult = 1\n" +
      some_training;
  const std::string given = "[diffusion]\nsteps = 50\nloss = kl\n" + unet;
  const auto config = train::parse_config(given, "a.ini", {"diffusion.steps=60"});
  BOOST_TEST(config.task.name() == "diffusion");  // unet's
  BOOST_TEST(config.task.value("steps") == "60");
  BOOST_TEST(
      contains(to_text(config), "[task]\nname = diffusion\n\n[diffusion]\nschedule = linear\nsteps = 60\n"));
  BOOST_TEST(to_text(train::parse_stored_config(to_text(config), "b.ini")) == to_text(config));
  BOOST_TEST(contains(error_of(unet, {"diffusion.loss=l1"}), "\"l1\" is not one of: mse, rescaled_mse, kl"));
  BOOST_TEST(contains(error_of(unet, {"diffusion.step=5"}), "unknown key; did you mean diffusion.steps?"));
  BOOST_TEST(contains(error_of(unet, {"task.diffusion_steps=5"}), "did you mean diffusion.steps?"));
  BOOST_TEST(error_of(minimal, {"diffusion.steps=5"}) ==
             "--set: diffusion.steps: is a key of diffusion, and task.name is classification; remove it");
  BOOST_TEST(contains(error_of("[diffusoin]\n" + unet), "did you mean [diffusion]?"));
}

BOOST_AUTO_TEST_CASE(words_of_other_programs_lead_to_the_key) {
  for (const auto& [word, key] : {std::pair{"lr", "optimizer.lr"},
                                  {"optimizer.learning_rate", "optimizer.lr"},
                                  {"batch_size", "train.global_batch"},
                                  {"train.batch-size", "train.global_batch"},
                                  {"epochs", "train.epochs"},
                                  {"train.max_steps", "train.steps"},
                                  {"train.lr", "optimizer.lr"},
                                  {"model.n_head", "model.heads"},
                                  {"ddp.find_unused_parameters", "ddp.unused"},
                                  {"train.dropout", "model.dropout"},
                                  {"save_steps", "checkpoint.every"}}) {
    const std::string error = error_of(minimal, {std::string(word) + "=1"});
    BOOST_TEST(contains(error, fmt::format("{}: unknown key; did you mean {}?", word, key)), error);
  }
}

BOOST_AUTO_TEST_CASE(any_path_survives_the_text_of_a_configuration) {
  for (const std::string path :
       {"d#1.h5", " lead.h5", "trail.h5 ", "my data.h5", "it's.h5", "\"quoted\".h5", "back\\slash.h5",
        "new\nline.h5", "tab\t.h5", "\xff\xfe.h5", "=.h5", "[x].h5", ";.h5", "ünïcode.h5"}) {
    train::Config config = train::parse_config(minimal, "a.ini");
    config.data.train = {path, "plain.h5", path};
    config.data.eval = config.train.init = path;
    const train::Config again = train::parse_config(to_text(config), "b.ini");
    BOOST_TEST(again.data.train == config.data.train, boost::test_tools::per_element());
    BOOST_TEST(again.data.eval == path);
    BOOST_TEST(again.train.init == path);
  }
}

BOOST_AUTO_TEST_CASE(values_may_stand_in_quotes) {
  const train::Config config =
      train::parse_config(minimal + "[data]\ntrain = \"my data.h5\" 'b#2.h5' c.h5 # three\neval = 'x y.h5'\n",
                          "a.ini", {"optimizer.lr=\"0.5\"", "train.init='w#1.h5'"});
  BOOST_TEST(config.data.train == (std::vector<std::string>{"my data.h5", "b#2.h5", "c.h5"}),
             boost::test_tools::per_element());
  BOOST_TEST(config.data.eval == "x y.h5");
  BOOST_TEST(config.optimizer.schedule.lr == 0.5);
  BOOST_TEST(config.train.init == "w#1.h5");
  BOOST_TEST(contains(error_of(minimal, {"data.train=\"a b.h5"}), "the quote \" is not closed"));
  BOOST_TEST(contains(error_of(minimal, {"data.eval='a'b"}), "there is text behind the closing quote"));
}

BOOST_AUTO_TEST_CASE(epochs_of_the_command_line_stand_for_steps_of_the_file) {
  const train::Config config = train::parse_config(minimal, "a", {"train.epochs=2.5"});
  BOOST_TEST(config.train.steps == 0);
  BOOST_TEST(train::steps_of(config, 100) == 32);  // 250 samples, 8 a step
  BOOST_TEST(train::steps_of(train::parse_config(minimal, "a"), 100) == 5);
}

BOOST_AUTO_TEST_CASE(a_key_of_another_version_is_passed_over_when_it_says_nothing) {
  for (const char* const line : {"ghost =", "ghost = 0", "ghost = false", "ghost = \"\""})
    BOOST_CHECK_NO_THROW(train::parse_stored_config(minimal + line + "\n", "run/config.ini"));
  BOOST_CHECK_EXCEPTION(train::parse_stored_config(minimal + "ghost = 7\n", "run/config.ini"), UsageError,
                        mentions("run/config.ini: train.ghost = \"7\": this version of Lockstep"));
}

BOOST_AUTO_TEST_CASE(a_removed_key_is_passed_over_at_its_old_default_and_else_refused_with_what_to_do) {
  struct Removed {
    const char *section, *key, *initial, *other, *instead;
  };
  for (const Removed& removed :
       {Removed{"ddp", "hook", "none", "powersgd rank=2", "ddp.reduce_dtype = bf16"},
        Removed{"checkpoint", "io", "posix", "mpiio", "each rank writes its share"}}) {
    const std::string name = fmt::format("{}.{}", removed.section, removed.key);
    const auto line = [&](const std::string& value) {
      return fmt::format("{}[{}]\n{} = {}\n", minimal, removed.section, removed.key, value);
    };
    const std::string initial = removed.initial;
    for (const std::string& given : {initial, "\"" + initial + "\"", "'" + initial + "'"}) {
      BOOST_TEST(to_text(train::parse_config(line(given), "a.ini")) ==
                 to_text(train::parse_config(minimal, "a.ini")));
      BOOST_TEST(error_of(minimal, {name + "=" + given}) == "no error");
    }
    for (const std::string& stored : {initial, std::string(), std::string("0")})
      BOOST_CHECK_NO_THROW(train::parse_stored_config(line(stored), "run/config.ini"));

    const std::string gone = fmt::format("{} was removed: ", name);
    for (const std::string& given : {std::string(removed.other), std::string()}) {
      for (const std::string& error : {error_of(line(given)), error_of(minimal, {name + "=" + given})}) {
        BOOST_TEST(contains(error, gone), error);
        BOOST_TEST(contains(error, removed.instead), error);
      }
    }
    BOOST_CHECK_EXCEPTION(
        train::parse_stored_config(line(removed.other), "run/config.ini"), UsageError,
        mentions(fmt::format("run/config.ini: {0} = \"{1}\": {0} was removed", name, removed.other),
                 "--resume FILE"));
  }
}

BOOST_AUTO_TEST_CASE(what_people_change_weekly_may_change_on_resume) {
  const train::Config run = train::parse_config(minimal, "a");
  const train::Config asked =
      train::parse_config(minimal, "a",
                          {"optimizer.lr=0.5", "optimizer.schedule=cosine", "optimizer.min_lr=0.1",
                           "optimizer.warmup_steps=3", "optimizer.clip=1", "optimizer.weight_decay=0.1"});
  BOOST_TEST(train::forbidden_changes(run, asked).empty());
  const std::vector<train::KeyChange> changed = train::allowed_changes(run, asked);
  BOOST_TEST(changed.size() == 6u);
  BOOST_TEST(changed[0].key == "optimizer.lr");
  BOOST_TEST(changed[0].before == "0.001");
  BOOST_TEST(changed[0].now == "0.5");
}

BOOST_AUTO_TEST_CASE(a_schedule_takes_its_own_keys_only) {
  const auto with = [](std::vector<std::string> keys) { return error_of(minimal, keys); };
  for (const std::string& key : {std::string("decay_steps=2"), std::string("milestones=2 3"),
                                 std::string("gamma=0.5"), std::string("power=2")}) {
    const std::string& name = "optimizer." + key.substr(0, key.find('='));
    BOOST_TEST(contains(with({"optimizer." + key}), "--set: " + name), key);
    BOOST_TEST(contains(with({"optimizer." + key}), "but the schedule is constant"), key);
  }
  BOOST_TEST(with({"optimizer.schedule=wsd", "optimizer.decay_steps=2", "optimizer.min_lr=1e-4"}) ==
             "no error");
  BOOST_TEST(with({"optimizer.schedule=step", "optimizer.milestones=2 3", "optimizer.gamma=0.5"}) ==
             "no error");
  BOOST_TEST(with({"optimizer.schedule=poly", "optimizer.power=2", "optimizer.min_lr=1e-4"}) == "no error");
  BOOST_TEST(contains(with({"optimizer.schedule=wsd"}), "optimizer.decay_steps = 0: is missing"));
  BOOST_TEST(contains(with({"optimizer.schedule=step"}), "optimizer.milestones: is missing"));
  for (const char* const milestones : {"3 3", "3 2"}) {
    BOOST_TEST(contains(with({"optimizer.schedule=step", fmt::format("optimizer.milestones={}", milestones)}),
                        fmt::format("--set: optimizer.milestones = {}: must be increasing", milestones)));
  }
  BOOST_TEST(contains(with({"optimizer.schedule=step", "optimizer.milestones=2", "optimizer.min_lr=1e-4"}),
                      "--set: optimizer.min_lr = 0.0001: has no effect"));
}

BOOST_AUTO_TEST_CASE(a_schedules_keys_come_back_and_may_change_on_resume) {
  const train::Config run = train::parse_config(minimal, "a");
  for (const std::vector<std::string>& keys :
       {std::vector<std::string>{"optimizer.schedule=wsd", "optimizer.decay_steps=2"},
        std::vector<std::string>{"optimizer.schedule=step", "optimizer.milestones=2 3",
                                 "optimizer.gamma=0.5"},
        std::vector<std::string>{"optimizer.schedule=poly", "optimizer.power=2"}}) {
    const train::Config asked = train::parse_config(minimal, "a", keys);
    BOOST_TEST(to_text(train::parse_stored_config(to_text(asked), "b")) == to_text(asked));
    BOOST_TEST(train::forbidden_changes(run, asked).empty());
    BOOST_TEST(train::allowed_changes(run, asked).size() == keys.size());
  }
}

/// What a forged /config may hold: its digest has no key.
BOOST_AUTO_TEST_CASE(mutated_texts_of_a_checkpoint_end_in_shapes_or_in_one_error) {
  const std::vector<std::string> models{
      "name = mlp\nsizes = 64 32 10", "name = resnet\nblocks = 2 2\nwidth = 8\nin_channels = 3\nclasses = 10",
      "name = gpt\nlayers = 2\nheads = 2\nchannels = 8\ncontext = 16\nvocab = 256"};
  const std::vector<std::string> extremes{
      "0",     "-1",  "1", "2147483647", "4611686018427387904",     "9223372036854775807",
      "1e308", "nan", "",  "\"",         "65536 65536 65536 65536", "10000"};
  const std::uint64_t seed = std::random_device{}();
  BOOST_TEST_MESSAGE("seed " << seed);
  std::mt19937_64 random(seed);
  const auto below = [&](std::size_t count) { return static_cast<std::size_t>(random() % count); };
  int built = 0, refused = 0;
  for (int round = 0; round < 600; ++round) {
    const train::Config config = train::parse_config(
        fmt::format("[model]\n{}\n[train]\nsteps = 5\nglobal_batch = 8\n", models[below(models.size())]),
        "a.ini");
    std::vector<std::string> lines;
    std::istringstream text(to_text(config));
    for (std::string line; std::getline(text, line);) lines.push_back(line);
    for (std::size_t changes = 1 + below(2); changes > 0; --changes) {
      std::string& line = lines[below(12)];  // of the section model
      if (const std::size_t equals = line.find('='); equals != line.npos)
        line = line.substr(0, equals + 1) + " " + extremes[below(extremes.size())];
    }
    std::string mutated;
    for (const std::string& line : lines) mutated += line + "\n";
    try {
      train::build_meta_model(train::parse_stored_config(mutated, "x.h5 /config"));
      ++built;
    } catch (const UsageError& error) {
      BOOST_TEST(std::string_view(error.what()).find('\n') == std::string_view::npos);
      ++refused;
    }
  }
  BOOST_TEST(built > 0);
  BOOST_TEST(refused > 0);
}

BOOST_AUTO_TEST_CASE(errors_are_short_whatever_the_text_is) {
  const std::string long_text(10'000'000, 'x');
  BOOST_TEST(error_of(minimal, {long_text + "=1"}).size() < 500);
  BOOST_TEST(error_of(minimal, {"optimizer.lr=" + long_text}).size() < 500);
  BOOST_TEST(error_of(minimal + long_text + " = 1\n").size() < 500);
}

BOOST_AUTO_TEST_CASE(errors_about_averages_name_key_and_value) {
  const std::string rates = minimal + "[ema]\nrates = 0.99\n";
  BOOST_TEST(contains(error_of(minimal, {"ema.rates=0.9 1.5"}),
                      "--set: ema.rates: \"1.5\" is not a number in [0, 1)"));
  BOOST_TEST(
      contains(error_of(minimal, {"ema.rates=-1"}), "--set: ema.rates: \"-1\" is not a number in [0, 1)"));
  BOOST_TEST(contains(error_of(minimal, {"ema.rates=0.9 0.90"}),
                      "--set: ema.rates = 0.9 0.9: a rate is given twice"));
  BOOST_TEST(contains(error_of(minimal, {"ema.sigma_rel=0.1 0.10"}),
                      "--set: ema.sigma_rel = 0.1 0.1: a width is given twice"));
  BOOST_TEST(contains(error_of(rates + "warmup = 0 0.75 0\n"),
                      "a.ini:9: ema.warmup = 0 0.75 0: its first number, inv_gamma, must be positive"));
  BOOST_TEST(contains(error_of(rates, {"ema.warmup=1 -1 0"}),
                      "--set: ema.warmup: \"-1\" is not a number in [0, 1000000000000000]"));
  BOOST_TEST(
      contains(error_of(rates, {"ema.warmup=1 1 0.5"}), "--set: ema.warmup: \"0.5\" is not a whole number"));
  BOOST_TEST(contains(error_of(rates, {"ema.warmup=1"}), "--set: ema.warmup: takes three numbers"));
}

BOOST_AUTO_TEST_CASE(what_cannot_be_part_of_a_graph_is_refused_not_ignored) {
  train::parse_config(minimal, "a", {"train.cuda_graph=true"});
  const auto refused = [](const std::string& key, const char* why) {
    train::parse_config(minimal, "a", {key});
    return contains(error_of(minimal, {"train.cuda_graph=true", key}), "--set: train.cuda_graph = true") &&
           contains(error_of(minimal, {"train.cuda_graph=true", key}), why);
  };
  BOOST_TEST(refused("train.device=cpu", "only GPUs"));
  BOOST_TEST(refused("ddp.sharded_optimizer=true", "ddp.sharded_optimizer"));
  BOOST_TEST(
      contains(error_of(resnet, {"train.cuda_graph=true", "model.batch_norm=sync"}), "model.batch_norm"));
}

/// The bits are the same, and the device may be another.
BOOST_AUTO_TEST_CASE(a_run_may_go_on_with_a_graph_or_without) {
  const train::Config with = train::parse_config(minimal, "a", {"train.cuda_graph=true"});
  BOOST_TEST(train::forbidden_changes(with, train::parse_config(minimal, "a")).empty());
}

/// What the machine can do is found out at the start; what is computed in is part of the run.
BOOST_AUTO_TEST_CASE(a_run_may_change_its_fallback_but_not_its_precision) {
  const train::Config fp32 = train::parse_config(minimal, "a");
  const train::Config bf16 = train::parse_config(minimal, "a", {"train.precision=bf16"});
  const train::Config converted =
      train::parse_config(minimal, "a", {"train.precision=bf16", "train.bf16_fallback=convert"});
  BOOST_TEST(bf16.train.bf16_fallback == "refuse");
  BOOST_TEST(train::forbidden_changes(bf16, converted).empty());
  BOOST_TEST(train::forbidden_changes(fp32, bf16).size() == 1u);
}

/// Whether there is a GPU is found out at the start: a checkpoint of a GPU's run is read anywhere.
BOOST_AUTO_TEST_CASE(a_run_may_change_its_device) {
  const train::Config cpu = train::parse_config(minimal, "a", {"train.device=cpu"});
  const train::Config cuda = train::parse_config(minimal, "a", {"train.device=cuda"});
  BOOST_TEST(cuda.train.device == "cuda");
  BOOST_TEST(train::forbidden_changes(cpu, cuda).empty());
}

BOOST_AUTO_TEST_CASE(widths_of_averages_stand_beside_rates) {
  const train::Config both =
      train::parse_config(minimal + "[ema]\nrates = 0.99\nwarmup = 1 1 0\nsigma_rel = 0.05 0.10\n", "a");
  BOOST_TEST(both.ema.sigma_rel == (std::vector<double>{0.05, 0.1}), boost::test_tools::per_element());
  BOOST_TEST(contains(to_text(both), "sigma_rel = 0.05 0.1\n"));
  for (const char* const width : {"0", "0.28", "-0.1", "1"}) {
    BOOST_TEST(contains(error_of(minimal, {fmt::format("ema.sigma_rel=0.05 {}", width)}),
                        fmt::format("--set: ema.sigma_rel: \"{}\" is not a number in (0, 0.28)", width)),
               width);
  }
  BOOST_TEST(contains(error_of(minimal, {"ema.sigma_rel=0.1", "ema.warmup=1 1 0"}),
                      "--set: ema.warmup = 1 1 0: applies to ema.rates, and none is given"));
  BOOST_TEST(train::forbidden_changes(
                 both, train::parse_config(minimal + "[ema]\nrates = 0.99\nwarmup = 1 1 0\n", "a"))
                 .size() == 1u);
}

BOOST_AUTO_TEST_CASE(decay_defaults_to_the_algorithms_custom) {
  const auto decay_of = [](const std::string& lines) {
    return train::parse_config(minimal + "[optimizer]\n" + lines, "a").optimizer.algorithm.value("decay");
  };
  BOOST_TEST(decay_of("") == "matrices");
  BOOST_TEST(decay_of("name = sgd\n") == "all");
  BOOST_TEST(decay_of("name = sgd\ndecay =\n") == "all");
  BOOST_TEST(decay_of("name = muon\n") == "matrices");
}

BOOST_AUTO_TEST_CASE(momentum_and_nesterov_default_to_the_algorithms_custom) {
  const auto of = [](const std::string& lines) {
    const optim::Algorithm found =
        train::parse_config(minimal + "[optimizer]\n" + lines, "a").optimizer.algorithm;
    return found.value("momentum") + " " + found.value("nesterov");
  };
  BOOST_TEST(of("name = adamw\n") == " ");
  BOOST_TEST(of("name = sgd\n") == "0 false");
  BOOST_TEST(of("name = muon\n") == "0.95 true");
  BOOST_TEST(of("name = muon\nmomentum = auto\nnesterov =\n") == "0.95 true");
  BOOST_TEST(of("name = muon\nmomentum = 0\nnesterov = false\n") == "0 false");
}

/// Versions before wrote the keys of all optimizers into every configuration.
BOOST_AUTO_TEST_CASE(keys_of_other_optimizers_are_noted_in_a_file_and_passed_over_in_a_stored_text) {
  const std::string old = minimal +
                          "[optimizer]\nname = sgd\nbetas = 0.8 0.99\neps = 1e-08\nmomentum = 0.9\n"
                          "nesterov = true\nmuon = *.weight\n";
  const train::Config now =
      train::parse_config(minimal + "[optimizer]\nname = sgd\nmomentum = 0.9\nnesterov = true\n", "a");
  const train::Config read = train::parse_config(old, "a.ini"),
                      stored = train::parse_stored_config(old, "run/config.ini");
  BOOST_TEST(now.note.empty());
  BOOST_TEST(stored.note.empty());
  BOOST_TEST(contains(read.note, "a.ini: optimizer.betas, optimizer.eps, optimizer.muon"), read.note);
  for (const train::Config& config : {read, stored}) {
    BOOST_TEST(to_text(config) == to_text(now));
    BOOST_TEST(train::all_changes(config, now).empty());
  }
  BOOST_TEST(
      contains(train::parse_config(minimal, "a.ini", {"optimizer.muon=*.weight"}).note, "optimizer.muon"));
  BOOST_TEST(contains(error_of(minimal, {"optimizer.beta=0.9"}), "unknown key; did you mean"));
}

/// An optimizer of a program: each step takes a part of each parameter away.
struct Shrink final : optim::Optimizer {
  struct Options {
    double part = 0.5;
    double lr = 1;  // of a program alone: a configuration has a schedule
    LOCKSTEP_KEYS(part, "that a step takes away", lr, "how much of it")
  };
  Shrink(const Options& options, GradientSource& source)
      : Optimizer(source, options.lr, 0, optim::Decay::all, {}), part(options.part) {}
  std::string_view algorithm() const override { return "shrink"; }
  void apply(std::span<const Update> updates) override {
    for (const Update& update : updates)
      for (std::int64_t i = 0; i < update.value.numel(); ++i)
        update.value.data<float>()[i] *= static_cast<float>(1 - part * update.lr);
  }
  std::vector<SlotTensors> slot_tensors() const override { return {}; }
  double part;
};

BOOST_AUTO_TEST_CASE(a_program_has_an_optimizer_of_its_own) {
  Registries registries;
  add_built_in(registries);
  registries.optimizers.add<Shrink>("shrink");
  const std::string text = minimal + "[optimizer]\nname = shrink\npart = 0.25\nlr = 0.5\n";
  const train::Config config = train::parse_config(text, "a", {}, registries);
  const std::string resolved = to_text(config);
  BOOST_TEST(contains(resolved, "[optimizer]\nname = shrink\nlr = 0.5\nmin_lr = 0\npart = 0.25\nclip = 0\n"));
  BOOST_TEST(to_text(train::parse_stored_config(resolved, "b", registries)) == resolved);
  const auto model = train::build_model(config);
  const auto backend = kernels::make_cpu_backend();
  LocalGradients gradients(model->state(), *backend);
  Param& param = *model->state().params.front();
  const float before = param.value.data<float>()[0];
  param.gradient = Tensor::zeros(param.value.shape());
  gradients.add_count(1);
  config.optimizer.make(gradients)->step();
  BOOST_TEST(param.value.data<float>()[0] == 0.875f * before);
  BOOST_TEST(contains(error_of(minimal + "[optimizer]\nname = shrink\n"), "\"shrink\" is not one of: adamw"));
}

BOOST_AUTO_TEST_CASE(the_resolved_text_has_the_keys_of_its_optimizer_where_they_always_were) {
  const std::string text =
      to_text(train::parse_config(minimal + "[optimizer]\nname = muon\ngroup.1 = * 2 1\n", "a"));
  const std::size_t at = text.find("[optimizer]");
  BOOST_TEST(
      text.substr(at, text.find("\n\n", at) - at) ==
      "[optimizer]\nname = muon\nlr = 0.001\nmin_lr = 0\nbetas = 0.9 0.999\neps = 1e-08\n"
      "weight_decay = 0\ndecay = matrices\nmomentum = 0.95\nnesterov = true\nmuon = \nclip = 0\n"
      "schedule = constant\nwarmup_steps = 0\nwarmup_lr = 0\ndecay_steps = 0\nmilestones = \ngamma = 0.1\n"
      "power = 1\ngroup.1 = * 2 1");
}

BOOST_AUTO_TEST_CASE(a_resume_may_change_the_length_and_the_log_but_not_what_decides_the_bits) {
  const train::Config run = train::parse_config(minimal, "a");
  for (const char* const allowed :
       {"train.steps=50", "log.every=3", "checkpoint.every=7", "train.eval_every=2", "data.train=moved.h5",
        "ddp.bucket_mb=5", "train.bind=none", "ddp.sharded_optimizer=true"}) {
    BOOST_TEST(train::forbidden_changes(run, train::parse_config(minimal, "a", {allowed})).empty(), allowed);
  }
  for (const char* const forbidden : {"train.seed=9", "optimizer.betas=0.5 0.5", "train.threads=2",
                                      "ema.rates=0.5", "optimizer.group.1=* 2 1", "data.eval_fraction=0.1"}) {
    BOOST_TEST(train::forbidden_changes(run, train::parse_config(minimal, "a", {forbidden})).size() == 1u,
               forbidden);
  }
}

BOOST_AUTO_TEST_SUITE_END()
}  // namespace
}  // namespace lockstep::test
