// Conversion as a library: what is read is written in the other format, with names, types and bits; rounding
// is what IEEE 754 says; nothing is lost without being said.
#include "lockstep/checkpoint/convert.h"

#include <boost/test/unit_test.hpp>
#include <cmath>
#include <limits>

#include "checkpoint/elements.h"
#include "checkpoint/sample.h"
#include "checkpoint/weights/safetensors.h"
#include "lockstep/base/error.h"
#include "lockstep/checkpoint/file.h"
#include "lockstep/checkpoint/inspect.h"
#include "lockstep/hdf5/file.h"

namespace lockstep::test {
namespace {
BOOST_AUTO_TEST_SUITE(convert)

namespace lc = checkpoint;
namespace h5 = hdf5;

struct Files {
  std::unique_ptr<comm::HostGroup> self = comm::make_self_communicator();
  TemporaryFolder folder;
  std::string path(const std::string& name) const { return folder.file(name); }

  /// A run's checkpoint: weights, a buffer that its average lacks, optimizer state.
  std::string checkpoint() {
    lc::StateDict state_dict;
    Tensor weight = Tensor::zeros({2, 3}), shadow = Tensor::zeros({2, 3});
    Tensor count = Tensor::zeros({}, DType::int64);
    for (int i = 0; i < 6; ++i) {
      weight.data<float>()[i] = 1.0f + static_cast<float>(i) / 1000;
      shadow.data<float>()[i] = -static_cast<float>(i);
    }
    *count.data<std::int64_t>() = 77;
    state_dict.sections.push_back({"model", {{"net.weight", weight}, {"net.count", count}}, {}, {}});
    state_dict.sections.push_back(
        {"ema/0.9", {{"net.weight", shadow}}, {{"updates", std::int64_t{4}, {}}}, {}});
    state_dict.sections.push_back({"optimizer/exp_avg", {{"net.weight", shadow}}, {}, {}});
    state_dict.position = {500, 3, 32'000, 4, 18'446'744'073'709'551'615u};
    state_dict.config = "[model]\nname = mlp  ; \"quoted\" \xC3\xA9\n";
    lc::save_file(path("run.h5"), state_dict, *self);
    return path("run.h5");
  }
};

const lc::NamedTensor& named(const lc::Weights& weights, const std::string& name) {
  for (const lc::NamedTensor& tensor : weights.tensors)
    if (tensor.name == name) return tensor;
  throw std::runtime_error("no tensor " + name);
}

template <class T>
Tensor tensor_of(DType dtype, const std::vector<T>& values) {
  const Tensor tensor = Tensor::empty({static_cast<std::int64_t>(values.size())}, dtype);
  std::memcpy(tensor.raw(), values.data(), values.size() * sizeof(T));
  return tensor;
}

std::vector<std::uint16_t> rounded(const std::vector<float>& values, DType to) {
  std::vector<std::uint16_t> bits(values.size());
  BOOST_TEST(lc::cast_elements(DType::float32, reinterpret_cast<const std::byte*>(values.data()), to,
                               reinterpret_cast<std::byte*>(bits.data()),
                               static_cast<std::int64_t>(bits.size())));
  return bits;
}

BOOST_FIXTURE_TEST_CASE(there_and_back_names_types_bits_position_and_configuration_are_the_same, Files) {
  const std::string run = checkpoint();
  lc::write_weights(path("a.safetensors"), lc::read_weights(run));
  lc::write_weights(path("a.h5"), lc::read_weights(path("a.safetensors")));
  lc::write_weights(path("direct.h5"), lc::read_weights(run));
  const lc::DiffReport diff = lc::diff(path("a.h5"), path("direct.h5"));
  BOOST_TEST(diff.same());
  BOOST_TEST(diff.tensors == 2);
  BOOST_TEST(lc::verify(path("a.h5"), *self).whole());
  const lc::FileIndex index = lc::read_index(path("a.h5")), original = lc::read_index(run);
  BOOST_TEST((index.position == original.position));
  BOOST_TEST(index.config == original.config);
  BOOST_TEST(index.provenance.at("converted_from") == path("a.safetensors"));
  const lc::SafetensorsFile file(path("a.safetensors"));
  BOOST_TEST(file.header().metadata.at("format") == "pt");
  BOOST_TEST(file.header().metadata.at("lockstep.step") == "500");
  BOOST_TEST(file.header().tensors.size() == 2u);  // no optimizer, no average
}

BOOST_FIXTURE_TEST_CASE(an_average_is_converted_with_the_buffers_that_it_lacks, Files) {
  const lc::Weights weights = lc::read_weights(checkpoint(), "ema/0.9");
  BOOST_TEST(weights.tensors.size() == 2u);
  BOOST_TEST(named(weights, "net.weight").value.data<float>()[5] == -5.0f);
  BOOST_TEST(*named(weights, "net.count").value.data<std::int64_t>() == 77);
  BOOST_CHECK_EXCEPTION(lc::read_weights(path("run.h5"), "ema/0.5"), DataError,
                        mentions("no weights 'ema/0.5', but model, ema/0.9"));
  lc::write_weights(path("a.safetensors"), weights);
  BOOST_CHECK_EXCEPTION(lc::read_weights(path("a.safetensors"), "ema/0.9"), DataError,
                        mentions("one set of weights"));
}

BOOST_FIXTURE_TEST_CASE(what_the_weights_mean_goes_from_a_checkpoint_to_a_checkpoint, Files) {
  lc::StateDict state_dict;
  const Tensor weight = Tensor::zeros({2}), mean = tensor_of<double>(DType::float64, {0.1, 1e300});
  state_dict.sections = {
      {"model", {{"w", weight}}, {}, {}},
      {"ema/0.9", {{"w", weight}}, {{"updates", std::int64_t{4}, {}}}, {}},
      {"data/x", {{"mean", mean}, {"deviation", mean}}, {{"units", std::string("mm"), {}}}, {}},
      {"data/y", {}, {{"classes", std::string("a\nb"), {}}}, {}}};
  state_dict.provenance = {{"data_format", "images"}, {"x_range", "0 255"}};
  lc::save_file(path("run.h5"), state_dict, *self);
  for (const char* const group : {"model", "ema/0.9"}) {
    lc::Weights weights = lc::read_weights(path("run.h5"), group);
    lc::cast_floats(weights, DType::bfloat16);
    lc::write_weights(path("a.h5"), weights, true);
    const lc::FileIndex index = lc::read_index(path("a.h5"));
    std::vector<lc::Section> data;
    lc::Provenance facts;
    lc::add_meaning(index, data, facts);
    BOOST_TEST_REQUIRE(data.size() == 2u);
    BOOST_TEST(data[0].path == "data/x");
    BOOST_TEST_REQUIRE(data[0].tensors.size() == 2u);
    for (const lc::NamedTensor& tensor : data[0].tensors)
      BOOST_TEST(std::memcmp(tensor.value.raw(), mean.raw(), mean.bytes()) == 0, tensor.name);
    BOOST_TEST((data[0].attributes.at(0).value == lc::AttributeValue("mm")));
    BOOST_TEST((data[1].attributes.at(0).value == lc::AttributeValue("a\nb")));
    BOOST_TEST((facts == lc::Provenance{{"data_format", "images"}, {"x_range", "0 255"}}));
  }
}

BOOST_FIXTURE_TEST_CASE(every_type_of_a_tensor_goes_there_and_back, Files) {
  lc::Weights weights;
  for (const DType dtype : {DType::float64, DType::float32, DType::float16, DType::bfloat16, DType::int64,
                            DType::int32, DType::uint8}) {
    std::vector<std::uint8_t> bytes(3 * bytes_of(dtype));
    for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::uint8_t>(17 * i + 5);
    const Tensor tensor = Tensor::empty({3}, dtype);
    std::memcpy(tensor.raw(), bytes.data(), bytes.size());
    weights.tensors.push_back({std::string(to_string(dtype)), tensor});
  }
  lc::write_weights(path("a.h5"), weights);
  lc::write_weights(path("b.safetensors"), lc::read_weights(path("a.h5")));
  const lc::Weights back = lc::read_weights(path("b.safetensors"));
  BOOST_TEST(back.tensors.size() == weights.tensors.size());
  for (const lc::NamedTensor& tensor : weights.tensors) {
    const Tensor& found = named(back, tensor.name).value;
    BOOST_TEST((found.dtype() == tensor.value.dtype()));
    BOOST_TEST(std::memcmp(found.raw(), tensor.value.raw(), found.bytes()) == 0);
  }
  const h5::File file = h5::File::open(path("a.h5"));
  BOOST_TEST((file.kind("bfloat16") == h5::ObjectKind::named_type));
  BOOST_TEST((file.kind("float16") == h5::ObjectKind::named_type));
  for (const lc::TensorSummary& summary : lc::inspect(path("a.h5")).tensors) BOOST_TEST(summary.digest_right);
}

BOOST_FIXTURE_TEST_CASE(only_floats_are_cast_and_what_becomes_infinite_is_an_error, Files) {
  lc::Weights weights;
  weights.tensors = {{"w", tensor_of<float>(DType::float32, {1.0f, -2.5f})},
                     {"n", tensor_of<std::int64_t>(DType::int64, {3, 4})}};
  lc::cast_floats(weights, DType::bfloat16);
  BOOST_TEST((named(weights, "w").value.dtype() == DType::bfloat16));
  BOOST_TEST((named(weights, "n").value.dtype() == DType::int64));
  lc::cast_floats(weights, DType::float32);
  BOOST_TEST(named(weights, "w").value.data<float>()[1] == -2.5f);
  weights.tensors[0].value = tensor_of<double>(DType::float64, {1.0, 1e300});
  BOOST_CHECK_EXCEPTION(lc::cast_floats(weights, DType::float32), DataError,
                        mentions("w: has numbers out of the range of float32"));
  weights.tensors[0].value = tensor_of<float>(DType::float32, {std::numeric_limits<float>::max()});
  BOOST_CHECK_EXCEPTION(lc::cast_floats(weights, DType::bfloat16), DataError,
                        mentions("w: has numbers out of the range of bfloat16"));
  constexpr double inf = std::numeric_limits<double>::infinity();
  weights.tensors[0].value = tensor_of<double>(DType::float64, {inf, -inf, std::nan("")});
  lc::cast_floats(weights, DType::bfloat16);
  lc::cast_floats(weights, DType::float32);
  const float* const values = named(weights, "w").value.data<float>();
  BOOST_TEST((values[0] == inf && values[1] == -inf && std::isnan(values[2])));
}

BOOST_AUTO_TEST_CASE(rounding_is_to_the_nearest_and_ties_go_to_even) {
  // 1 + 2^-8 is between the bfloat16 1 and 1 + 2^-7, 1 + 3 * 2^-8 between 1 + 2^-7 and 1 + 2^-6.
  const std::vector<std::uint16_t> expected_bfloat16 = {0x3f80, 0x3f82, 0x3f81, 0x8000, 0x0001};
  BOOST_TEST(rounded({1.00390625f, 1.01171875f, 1.005f, -0.0f, 9.2e-41f}, DType::bfloat16) ==
             expected_bfloat16);
  const std::vector<std::uint16_t> expected_float16 = {0x3c00, 0x3c02, 0x7bff, 0x0001, 0x8000};
  BOOST_TEST(rounded({1.00048828125f, 1.00146484375f, 65504.0f, 0x1p-24f, -0.0f}, DType::float16) ==
             expected_float16);
}

BOOST_AUTO_TEST_CASE(integers_are_cast_where_they_fit_and_floats_do_not_become_integers) {
  const std::vector<std::int64_t> in = {-3, 255};
  std::vector<std::int32_t> out(2);
  BOOST_TEST(lc::cast_elements(DType::int64, reinterpret_cast<const std::byte*>(in.data()), DType::int32,
                               reinterpret_cast<std::byte*>(out.data()), 2));
  BOOST_TEST((out == std::vector<std::int32_t>{-3, 255}));
  std::vector<std::uint8_t> bytes(2);
  BOOST_TEST(!lc::cast_elements(DType::int64, reinterpret_cast<const std::byte*>(in.data()), DType::uint8,
                                reinterpret_cast<std::byte*>(bytes.data()), 2));
  const float half = 0.5f;
  BOOST_CHECK_THROW((void)lc::cast_elements(DType::float32, reinterpret_cast<const std::byte*>(&half),
                                            DType::int64, reinterpret_cast<std::byte*>(bytes.data()), 1),
                    UsageError);
}

BOOST_FIXTURE_TEST_CASE(what_a_format_cannot_hold_is_refused_by_name, Files) {
  const auto write = [&](const char* tensor) {
    const std::string header = std::string("{") + tensor + "}";
    const std::uint64_t bytes = header.size();
    write_bytes(path("b.safetensors"), std::string(reinterpret_cast<const char*>(&bytes), 8) + header + "12");
  };
  write(R"("a":{"dtype":"I16","shape":[1],"data_offsets":[0,2]})");
  BOOST_CHECK_EXCEPTION(lc::read_weights(path("b.safetensors")), DataError,
                        mentions("b.safetensors", "a is int16", "float64, float32"));
  write(R"("a":{"dtype":"U8","shape":[1,1,1,1,1,1,2],"data_offsets":[0,2]})");
  BOOST_CHECK_EXCEPTION(lc::read_weights(path("b.safetensors")), DataError, mentions("a has 7 dimensions"));
  write(R"("a/b":{"dtype":"U8","shape":[2],"data_offsets":[0,2]})");
  BOOST_CHECK_EXCEPTION(lc::write_weights(path("b.h5"), lc::read_weights(path("b.safetensors"))), DataError,
                        mentions("b.h5", "\"a/b\" is not a valid name in HDF5"));
  BOOST_TEST(names_in(folder.path()) == std::vector<std::string>{"b.safetensors"});
  write(R"("__metadata__":{"lockstep.step":"-4"},"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]})");
  BOOST_CHECK_EXCEPTION(lc::read_weights(path("b.safetensors")), DataError,
                        mentions("lockstep.step = \"-4\" is not a number"));
  write(R"("a":{"dtype":"BOOL","shape":[2],"data_offsets":[0,2]})");
  const lc::Weights booleans = lc::read_weights(path("b.safetensors"));
  BOOST_TEST((booleans.tensors.at(0).value.dtype() == DType::uint8));
  BOOST_TEST(booleans.notes.size() == 1u);
}

BOOST_FIXTURE_TEST_CASE(places_that_are_taken_wrong_or_unclear_are_refused, Files) {
  const lc::Weights weights = lc::read_weights(checkpoint());
  const auto refused = [&](const std::string& to, const char* text) {
    BOOST_CHECK_EXCEPTION(lc::write_weights(to, weights), UsageError, mentions(text));
  };
  refused(path("run.h5"), "already exists; --force replaces it");
  refused(path("weights.bin"), "give a name that ends with .h5, .safetensors or .pt");
  refused(path("none/a.h5"), "there is no directory");
  std::filesystem::create_directory(path("folder.h5"));
  refused(path("folder.h5"), "is a directory");
  lc::write_weights(path("run.h5"), weights, true);
  BOOST_TEST(lc::read_index(path("run.h5")).tensors.size() == 2u);
}

BOOST_FIXTURE_TEST_CASE(a_checkpoint_whose_bytes_are_damaged_is_not_converted, Files) {
  const std::string run = checkpoint();
  const lc::FileIndex index = lc::read_index(run);
  std::string bytes = read_bytes(run);
  bytes[index.tensors[0].offset + 3] ^= 4;
  write_bytes(run, bytes);
  BOOST_CHECK_EXCEPTION(lc::read_weights(run), DataError, mentions("/model/net.weight is damaged"));
}

BOOST_FIXTURE_TEST_CASE(arrays_at_the_root_of_a_file_are_weights, Files) {
  {
    h5::File file = h5::File::create(path("plain.h5"));
    file.create_dataset("net.weight", DType::float32, {2}).write<float>(std::vector<float>{3, 4});
    file.close();
  }
  const lc::Weights weights = lc::read_weights(path("plain.h5"));
  BOOST_TEST(weights.tensors.size() == 1u);
  BOOST_TEST(named(weights, "net.weight").value.data<float>()[1] == 4.0f);
  BOOST_TEST(weights.config.empty());
  h5::File::create(path("empty.h5")).close();
  BOOST_CHECK_EXCEPTION(lc::read_weights(path("empty.h5")), DataError,
                        mentions("no group /model, and no arrays at its root"));
  write_bytes(path("model.pt"), std::string("PK\3\4", 4) + std::string(100, 'x'));
  BOOST_CHECK_EXCEPTION(lc::read_weights(path("model.pt")), DataError,
                        mentions("model.pt: has no end of a zip archive: is it truncated?"));
}

BOOST_FIXTURE_TEST_CASE(a_data_file_is_not_taken_for_weights, Files) {
  const auto make = [&](const char* name, auto&& fill) {
    h5::File file = h5::File::create(path(name));
    fill(file);
    file.close();
  };
  const std::vector<float> pixels(12);
  make("images.h5", [&](h5::File& file) {
    file.create_dataset("x", DType::float32, {3, 1, 2, 2}).write<float>(pixels);
    file.create_dataset("y", DType::int64, {3}).write<std::int64_t>(std::vector<std::int64_t>(3));
  });
  make("text.h5", [&](h5::File& file) {
    file.create_dataset("tokens", DType::uint16, {2}).write<std::uint16_t>(std::vector<std::uint16_t>(2));
  });
  make("weights.h5", [&](h5::File& file) {  // by the same names
    file.create_dataset("x", DType::float32, {3, 1, 2, 2}).write<float>(pixels);
    file.create_dataset("y", DType::float32, {12}).write<float>(pixels);
  });
  BOOST_CHECK_EXCEPTION(lc::read_weights(path("images.h5")), DataError,
                        mentions("images.h5: is a data file of images, not weights"));
  BOOST_CHECK_EXCEPTION(lc::read_weights(path("text.h5")), DataError,
                        mentions("text.h5: is a data file of text, not weights"));
  BOOST_TEST(lc::read_weights(path("weights.h5")).tensors.size() == 2u);
}

BOOST_FIXTURE_TEST_CASE(numbers_that_are_not_finite_are_kept_and_named, Files) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  lc::Weights weights;
  weights.tensors = {{"good", tensor_of<float>(DType::float32, {1, 2})},
                     {"bad", tensor_of<float>(DType::float32, {1, nan, -HUGE_VALF})}};
  lc::write_weights(path("a.safetensors"), weights);
  const lc::Weights again = lc::read_weights(path("a.safetensors"));
  BOOST_TEST(again.notes.size() == 1u);
  BOOST_TEST(again.notes.at(0) == path("a.safetensors") + ": has numbers that are not finite: bad (2 of 3)");
  BOOST_TEST(std::isnan(named(again, "bad").value.data<float>()[1]));
}

BOOST_FIXTURE_TEST_CASE(a_safetensors_file_is_known_by_its_beginning, Files) {
  lc::Weights weights;
  weights.tensors = {{"a", tensor_of<float>(DType::float32, {1})}};
  lc::write_weights(path("a.safetensors"), weights);
  std::filesystem::copy(path("a.safetensors"), path("no_suffix"));
  write_bytes(path("text"), "[train] {}\n");
  BOOST_TEST(lc::foreign_format(path("a.safetensors")) == "a .safetensors file");
  BOOST_TEST(lc::foreign_format(path("no_suffix")) == "a .safetensors file");
  BOOST_TEST(lc::foreign_format(checkpoint()) == "");
  for (const char* const other : {"text", "gone", "."})
    BOOST_TEST(lc::foreign_format(path(other)) == "", other);
}

BOOST_AUTO_TEST_SUITE_END()
}  // namespace
}  // namespace lockstep::test
