// Options of data sets of pictures, and random changes of training images.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lockstep/base/option.h"

namespace lockstep::data {

/// Random changes of training images: the same at any number of ranks. resized_crop and color_jitter, and the
/// flip of pictures, are drawn by (seed, step, sample) while a data set reads; crop_padding, and the flip of
/// other images, by (seed, step, shard, place in the shard); the others by (seed, step, sample). These change
/// normalised images: what they fill in has the mean colour.
struct Augment {
  /// The word `crop` without a number.
  static constexpr int crop_by_width = -1;

  /// RandomResizedCrop of torchvision: 0.08 to 1 of a picture's pixels, width / height 3/4 to 4/3.
  bool resized_crop = false;
  /// Shifts the image by up to this many pixels along each axis and fills with zeros. 0: off.
  int crop_padding = 0;
  bool flip = false;        ///< left to right, with probability 1/2
  double color_jitter = 0;  ///< S of ColorJitter(S, S, S, min(S, 0.1)), of pictures; 0: off
  double erasing = 0;       ///< probability of RandomErasing: 0.02 to 0.33 of the image becomes zeros
  /// alpha of MixUp and CutMix; with both, each sample draws one of them; 0: off. A sample's partner is the
  /// one before it in its shard. Batches get the fields y_partner, the partner's label, and y_share, float32,
  /// what the sample keeps of its own.
  double mixup = 0, cutmix = 0;

  bool mixes() const { return mixup > 0 || cutmix > 0; }  ///< whether samples get a part of others
  /// Whether batches are changed after they are read.
  bool changes_batches() const { return crop_padding != 0 || flip || erasing > 0 || mixes(); }

  /// "random_resized_crop flip color_jitter=0.4 crop=4 mixup=0.2 cutmix=1 random_erasing=0.25". UsageError
  /// for another word, or a number out of its range.
  static Augment parse(const std::string& words);
  std::string text() const;  ///< the inverse of parse()
};

/// How pictures become samples; keys of [data].
struct PictureOptions {
  std::int64_t size = 224;                ///< height and width of samples, in pixels
  std::string labels{};                   ///< CSV file of picture and label; empty: a sub-folder is a class
  bool exif = true;                       ///< turns pictures upright
  std::int64_t max_pixels = 178'956'970;  ///< larger pictures are refused, from their headers: Pillow's limit
  bool skip_bad = false;  ///< looks at each picture first, and leaves out what it cannot decode

  static std::vector<Option<PictureOptions>> options();  ///< the rows
};

}  // namespace lockstep::data
