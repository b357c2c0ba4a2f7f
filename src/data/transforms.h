// What becomes of pictures on the way into a batch: size, colours, and what is drawn for each of them.
// Each has the meaning and the pixels of torchvision.transforms.v2 (0.29), to one level of 255.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "data/picture.h"
#include "lockstep/base/random.h"

namespace lockstep::data {

/// Random numbers for one transform of one sample at one step: the same wherever it is read.
class Draws {
 public:
  Draws(std::uint64_t seed, std::string_view transform, std::int64_t step, std::int64_t sample);

  double uniform(double low = 0, double high = 1);  ///< in [low, high)
  std::int64_t below(std::int64_t bound);           ///< an integer in [0, bound), bound in [1, 2^32]
  double beta(double shape);                        ///< of Beta(shape, shape), shape > 0

 private:
  double normal();
  double gamma(double shape);

  Random random_;
  std::uint64_t count_ = 0;  // of those drawn
};

/// Bilinear and antialiased, as resize(antialias=True). Keeps its buffers: one for each thread.
class Resizer {
 public:
  /// `part` of a picture becomes height x width pixels, of which `window` is computed. Pixels outside the
  /// part have no influence. The part is within the picture and not empty, the window within the new size.
  void resize(const Picture& from, const Box<double>& part, std::int64_t height, std::int64_t width,
              const Box<std::int64_t>& window, Picture& into);
  /// All of the new size.
  void resize(const Picture& from, const Box<double>& part, std::int64_t height, std::int64_t width,
              Picture& into) {
    resize(from, part, height, width, {.height = height, .width = width}, into);
  }

 private:
  /// Which pixels along an axis make a new one, and by what weights: as many for each.
  struct Axis {
    std::array<double, 3> key{};  // begin, extent and new extent that the table is for
    std::int64_t window_begin = 0, window_extent = 0, taps = 0;
    std::vector<std::int64_t> first{};
    std::vector<float> weights{};

    void set(double begin, double extent, std::int64_t size, std::int64_t from, std::int64_t count);
  };

  Axis rows_, columns_;
  std::vector<float> row_, new_row_;
};

/// The size that a whole picture gets, and the part of it that is used.
struct Framing {
  std::int64_t height = 0, width = 0;
  Box<std::int64_t> window{};
};
/// The square of `size` at the centre of a picture, as torchvision's CenterCrop.
Box<std::int64_t> centre_of(std::int64_t height, std::int64_t width, std::int64_t size);
/// Evaluation: the shorter side becomes round(size * 8 / 7) pixels, and the square of `size` at the centre is
/// used: Resize(256) and CenterCrop(224), for 224.
Framing evaluation_framing(std::int64_t height, std::int64_t width, std::int64_t size);

/// RandomResizedCrop: 0.08 to all of the pixels, width / height from 3/4 to 4/3.
Box<std::int64_t> draw_resized_crop(Draws& draws, std::int64_t height, std::int64_t width);

/// RandomHorizontalFlip
bool draw_flip(Draws& draws);
void flip(Picture& picture);

/// ColorJitter: factors of the three, 1: unchanged; hue in turns of the circle, 0: unchanged.
struct Jitter {
  enum class Step { brightness, contrast, saturation, hue };
  double brightness = 1, contrast = 1, saturation = 1, hue = 0;
  std::array<Step, 4> order{Step::brightness, Step::contrast, Step::saturation, Step::hue};
};
/// ColorJitter(S, S, S, min(S, 0.1)): factors in [max(0, 1 - S), 1 + S], in any order.
Jitter draw_jitter(Draws& draws, double strength);
void apply(const Jitter& jitter, Picture& picture);

/// RandomErasing(p=probability, value=0) of normalised images: a box of 0.02 to 0.33 of the pixels, height /
/// width 0.3 to 3.3. None: the image stays.
std::optional<Box<std::int64_t>> draw_erasing(Draws& draws, double probability, std::int64_t height,
                                              std::int64_t width);
/// An image [channels, height, width] gets zeros there.
void erase(const Box<std::int64_t>& box, float* image, std::int64_t channels, std::int64_t height,
           std::int64_t width);

/// MixUp(alpha) and CutMix(alpha); 0: not used. With both, each sample draws one of them.
struct MixRange {
  double mixup = 0, cutmix = 0;
};
/// What a sample of a batch gets of another one.
struct Mix {
  std::int64_t partner = 0;                ///< its place in the batch: the one before, as torchvision rolls
  double share = 1;                        ///< of its own label; the partner's has the rest
  std::optional<Box<std::int64_t>> box{};  ///< CutMix: what is the partner's; none: all pixels are mixed
};
Mix draw_mix(Draws& draws, const MixRange& range, std::int64_t place, std::int64_t samples,
             std::int64_t height, std::int64_t width);
/// Images [channels, height, width]; the partner's before it was mixed itself.
void apply(const Mix& mix, const float* partner, float* image, std::int64_t channels, std::int64_t height,
           std::int64_t width);

}  // namespace lockstep::data
