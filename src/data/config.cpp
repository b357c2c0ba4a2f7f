#include "data/config.h"

namespace lockstep::data {
namespace {

Option<DataConfig> augment() {
  static const std::vector<std::string> words{"crop", "flip"};
  return {{.name = "augment",
           .kind = "texts",
           .allowed = "crop, flip",
           .meaning = "random changes of training images: crop, flip, or both",
           .traits = {},
           .words = words},
          [](DataConfig& config, const std::string& value) {
            bool crop = false, flip = false;
            for (const std::string& word : option::words_of(value)) {
              option::check_word(word, words);
              (word == "crop" ? crop : flip) = true;
            }
            config.crop = crop;
            config.flip = flip;
          },
          [](const DataConfig& config) -> std::string {
            if (config.crop && config.flip) return "crop flip";
            return config.crop ? "crop" : config.flip ? "flip" : "";
          }};
}

}  // namespace

std::vector<Option<DataConfig>> DataConfig::options() {
  using D = DataConfig;
  return {option::texts(
              "train", &D::train,
              "data files to train on (HDF5, see lockstep prepare); put a name with blanks in quotes",
              {.may_change = true, .peers = {"data", "dataset", "train_data", "data_path", "data_dir"}}),
          option::text("eval", &D::eval, "data file to evaluate on",
                       {.may_change = true, .peers = {"val", "valid", "eval_data", "val_data", "test_data"}}),
          option::number("eval_fraction", &D::eval_fraction, Range::below(0, 1),
                         "or the part of data.train held out, fixed by the seed",
                         {.peers = {"val_split", "validation_split", "eval_split"}}),
          augment()};
}

}  // namespace lockstep::data
