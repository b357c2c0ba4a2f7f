// Random changes of a batch that is read: crop, flip, erasing, MixUp and CutMix.
#include "data/augment_batch.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>

#include "base/text.h"
#include "data/ragged.h"
#include "data/transforms.h"
#include "lockstep/base/error.h"
#include "lockstep/base/random.h"
#include "lockstep/data/loader.h"

namespace lockstep::data {
namespace {

/// The change of one image: out(h, w) = in(h + down, flip(w + right)), zero outside.
struct Change {
  std::int64_t down = 0, right = 0;
  bool flip = false;
};

Change draw(const Augment& augment, const Random& random, std::int64_t sample) {
  const auto words = random.block(static_cast<std::uint64_t>(sample));
  const auto shift = [&](std::uint32_t word) {
    const auto places = static_cast<std::uint64_t>(2 * augment.crop_padding + 1);
    return static_cast<std::int64_t>((word * places) >> 32) - augment.crop_padding;
  };
  return {shift(words[0]), shift(words[1]), augment.flip && (words[2] >> 31) != 0};
}

void apply(const Change& change, const float* in, std::int64_t height, std::int64_t width, float* out) {
  for (std::int64_t h = 0; h < height; ++h, out += width) {
    const std::int64_t from = h + change.down;
    if (from < 0 || from >= height) {
      std::fill_n(out, width, 0.0f);
      continue;
    }
    const float* row = in + from * width;
    for (std::int64_t w = 0; w < width; ++w) {
      const std::int64_t column = w + change.right;
      const bool inside = column >= 0 && column < width;
      out[w] = inside ? row[change.flip ? width - 1 - column : column] : 0.0f;
    }
  }
}

}  // namespace

void augment_images(const Augment& augment, std::uint64_t seed, std::int64_t step, int shard, const Tensor& x,
                    std::span<float> scratch) {
  if (augment.crop_padding == 0 && !augment.flip) return;
  if (x.shape().rank() != 4 || x.channel_block() != 1) {
    throw UsageError("augmentation changes images [N, C, H, W], not {}", to_string(x.shape()));
  }
  const std::int64_t channels = x.size(1), height = x.size(2), width = x.size(3),
                     image = channels * height * width;
  if (augment.crop_padding < 0 || augment.crop_padding > std::min(height, width)) {
    throw UsageError("a crop by {} pixels was asked of images {}", augment.crop_padding,
                     to_string(x.shape()));
  }
  if (static_cast<std::int64_t>(scratch.size()) < image) {
    throw UsageError("augmentation of images {} needs scratch memory for {} floats", to_string(x.shape()),
                     image);
  }
  const Random random(
      {seed, purpose_of("augment"), static_cast<std::uint64_t>(step), static_cast<std::uint32_t>(shard)});
  float* data = x.data<float>();
  for (std::int64_t n = 0; n < x.size(0); ++n, data += image) {
    const Change change = draw(augment, random, n);
    std::copy_n(data, image, scratch.data());
    for (std::int64_t c = 0; c < channels; ++c) {
      apply(change, scratch.data() + c * height * width, height, width, data + c * height * width);
    }
  }
}

namespace {

constexpr const char *partner_field = "y_partner", *share_field = "y_share";

/// A word of data.augment that takes a number.
struct NumberWord {
  const char* name;
  double Augment::*member;
  Range range;
};
const std::array number_words{NumberWord{"color_jitter", &Augment::color_jitter, Range::above(0, 1)},
                              NumberWord{"mixup", &Augment::mixup, Range::above(0, 1e3)},
                              NumberWord{"cutmix", &Augment::cutmix, Range::above(0, 1e3)},
                              NumberWord{"random_erasing", &Augment::erasing, Range::above(0, 1)}};

}  // namespace

Augment Augment::parse(const std::string& words) {
  Augment augment;
  for (const std::string& word : option::words_of(words)) {
    const std::size_t equals = word.find('=');
    const std::string name = word.substr(0, equals);
    const std::string value = equals == word.npos ? "" : word.substr(equals + 1);
    const auto number = std::ranges::find(number_words, name, &NumberWord::name);
    std::vector<std::string> names{"crop", "flip", "random_resized_crop"};
    for (const NumberWord& one : number_words) names.emplace_back(one.name);
    option::check_word(name, names);
    try {
      if (number != number_words.end()) {
        option::read(value, number->range, augment.*number->member);
      } else if (name == "crop") {
        augment.crop_padding = crop_by_width;
        if (equals != word.npos) option::read(value, Range::from(1, 1e6), augment.crop_padding);
      } else {
        if (equals != word.npos) throw UsageError("takes no number");
        (name == "flip" ? augment.flip : augment.resized_crop) = true;
      }
    } catch (const UsageError& error) {
      throw UsageError("{}: {}", word, error.what());
    }
  }
  return augment;
}

std::string Augment::text() const {
  std::vector<std::string> words;
  if (resized_crop) words.emplace_back("random_resized_crop");
  if (crop_padding == crop_by_width) words.emplace_back("crop");
  if (crop_padding > 0) words.push_back(fmt::format("crop={}", crop_padding));
  if (flip) words.emplace_back("flip");
  for (const NumberWord& one : number_words)
    if (this->*one.member > 0) words.push_back(fmt::format("{}={}", one.name, this->*one.member));
  return option::joined(words, " ");
}

std::vector<Field> batch_fields(const Dataset& dataset, const Augment& augment) {
  std::vector<Field> fields = with_indices(dataset);
  if (augment.changes_batches()) {
    if (is_ragged(dataset))
      throw UsageError("{}: only images can be augmented, not samples that differ in size", dataset.name());
    const Field& x = field_named(dataset, "x");
    if (x.shape.rank() != 3 || x.dtype != DType::float32)
      throw UsageError("{}: only images can be augmented", dataset.name());
  }
  if (augment.mixes()) {
    const Field& y = field_named(dataset, "y");
    if (y.dtype != DType::int64 || y.shape.rank() != 0)
      throw UsageError("{}: mixup and cutmix take labels, but y is {} {}", dataset.name(), to_string(y.dtype),
                       to_string(y.shape));
    fields.push_back({.name = partner_field, .dtype = DType::int64, .classes = y.classes});
    fields.push_back({.name = share_field, .dtype = DType::float32});
  }
  return fields;
}

void augment_batch(const Augment& augment, const Moment& moment, std::span<const std::int64_t> samples,
                   const Batch& batch, std::span<float> scratch) {
  if (!augment.changes_batches()) return;
  const Tensor& x = batch["x"];
  augment_images(augment, moment.seed, moment.step, batch.index, x, scratch);
  const std::int64_t channels = x.size(1), height = x.size(2), width = x.size(3), count = x.size(0),
                     elements = channels * height * width;
  const auto image = [&](std::int64_t place) { return x.data<float>() + place * elements; };
  const auto draws = [&](std::string_view transform, std::int64_t place) {
    return Draws(moment.seed, transform, moment.step, samples[static_cast<std::size_t>(place)]);
  };
  for (std::int64_t place = 0; augment.erasing > 0 && place < count; ++place) {
    Draws drawn = draws("random_erasing", place);
    if (const auto box = draw_erasing(drawn, augment.erasing, height, width))
      erase(*box, image(place), channels, height, width);
  }
  if (!augment.mixes() || count == 0) return;
  // From the last on, each partner is as yet unmixed, but for that of the first: the last.
  std::copy_n(image(count - 1), elements, scratch.data());
  const std::int64_t* const labels = batch["y"].data<std::int64_t>();
  for (std::int64_t place = count - 1; place >= 0; --place) {
    Draws drawn = draws("mix", place);
    const Mix mix = draw_mix(drawn, {augment.mixup, augment.cutmix}, place, count, height, width);
    apply(mix, place == 0 ? scratch.data() : image(mix.partner), image(place), channels, height, width);
    batch[partner_field].data<std::int64_t>()[place] = labels[mix.partner];
    batch[share_field].data<float>()[place] = static_cast<float>(mix.share);
  }
}

}  // namespace lockstep::data
