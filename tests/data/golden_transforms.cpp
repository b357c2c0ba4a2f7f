// Sizes and colours of pictures: torchvision's pixels, to one level of 255.
#include "data/transforms.h"

#include <boost/test/unit_test.hpp>

#include "data/pictures.h"
#include "support/ranks.h"

namespace lockstep::test {
namespace {
BOOST_AUTO_TEST_SUITE(golden_transforms, *golden())

using data::Box, data::Picture;

template <class Number>
Box<Number> box_of(const nlohmann::json& numbers) {
  return {numbers[0].get<Number>(), numbers[1].get<Number>(), numbers[2].get<Number>(),
          numbers[3].get<Number>()};
}

BOOST_AUTO_TEST_CASE(a_part_becomes_another_size_as_by_resized_crop) {
  data::Resizer resizer;
  int cases = 0;
  for_each_golden_case(
      "pictures",
      [&](const GoldenCase& golden) {
        const auto& size = golden.what().at("size");
        Picture into;
        resizer.resize(picture_of(golden, "in"), box_of<double>(golden.what().at("part")), size[0], size[1],
                       box_of<std::int64_t>(golden.what().at("window")), into);
        BOOST_TEST(difference(into, picture_of(golden, "out")) <= 1, golden.name());
        ++cases;
      },
      "resize");
  BOOST_TEST(cases > 0);
}

BOOST_AUTO_TEST_CASE(colours_change_as_by_the_functions_of_these_names) {
  int cases = 0;
  for_each_golden_case(
      "pictures",
      [&](const GoldenCase& golden) {
        const auto& what = golden.what();
        Picture picture = picture_of(golden, "in");
        data::apply(data::Jitter{.brightness = what.at("brightness").get<double>(),
                                 .contrast = what.at("contrast").get<double>(),
                                 .saturation = what.at("saturation").get<double>(),
                                 .hue = what.at("hue").get<double>()},
                    picture);
        BOOST_TEST(difference(picture, picture_of(golden, "out")) <= 1, golden.name());
        ++cases;
      },
      "colour");
  BOOST_TEST(cases > 0);
}

BOOST_AUTO_TEST_CASE(evaluation_resizes_and_crops_where_torchvision_does) {
  for_each_golden_case(
      "pictures",
      [](const GoldenCase& golden) {
        for (const auto& row : golden.what().at("sizes").get<std::vector<std::vector<std::int64_t>>>()) {
          const data::Framing framing = data::evaluation_framing(row[0], row[1], row[2]);
          const Box<std::int64_t> window{row[5], row[6], row[2], row[2]};
          BOOST_TEST(framing.height == row[3], row[0] << " x " << row[1]);
          BOOST_TEST(framing.width == row[4], row[0] << " x " << row[1]);
          BOOST_TEST((framing.window == window), row[0] << " x " << row[1]);
        }
      },
      "framing");
}

BOOST_AUTO_TEST_SUITE_END()
}  // namespace
}  // namespace lockstep::test
