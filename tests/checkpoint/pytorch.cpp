// Files of torch.save: what PyTorch itself wrote is read bit by bit, what a pickle could do besides is
// refused by its name and never done, and no bytes at all can make reading do more than throw one DataError.
#include <fmt/format.h>

#include <boost/test/unit_test.hpp>
#include <map>

#include "checkpoint/confined.h"
#include "checkpoint/damage.h"
#include "checkpoint/elements.h"
#include "checkpoint/pytorch_pickles.h"
#include "checkpoint/sample.h"
#include "lockstep/base/error.h"
#include "support/ranks.h"

namespace lockstep::test {
namespace {
BOOST_AUTO_TEST_SUITE(pytorch)

namespace lc = checkpoint;
using namespace std::string_literals;
using namespace pickles;

std::vector<double> elements(const lc::PytorchFile& file, std::size_t i) {
  const lc::PytorchTensor& tensor = file.views().at(i);
  std::vector<std::byte> bytes(tensor.bytes);
  file.read(i, bytes);
  std::vector<double> values;
  for (std::size_t at = 0; at < bytes.size() / tensor.element_bytes; ++at)
    values.push_back(with_element_type(tensor.dtype.value_or(DType::uint8), [&]<class T>() {
      return lc::as_double(lc::element_at<T>(bytes, at));
    }));
  return values;
}

std::vector<double> counting(std::size_t count, double first = 1) {
  std::vector<double> values(count);
  for (std::size_t i = 0; i < count; ++i) values[i] = first + static_cast<double>(i);
  return values;
}

BOOST_AUTO_TEST_CASE(every_type_and_every_place_in_a_storage_is_read_as_pytorch_wrote_it) {
  const lc::PytorchFile file(file_of_pytorch("tensors.pt"));
  const std::map<std::string, std::vector<double>> others = {
      {"types.bool", {1, 1, 1}}, {"types.float8", {0, 0}}, {"expanded", {1, 2, 3, 1, 2, 3}}};
  BOOST_TEST(file.views().size() == 21u);
  BOOST_TEST(file.notes().empty());
  for (std::size_t i = 0; i < file.views().size(); ++i) {
    const lc::PytorchTensor& tensor = file.views()[i];
    BOOST_TEST_CONTEXT(tensor.name) {
      const auto other = others.find(tensor.name);
      const std::vector<double> read = elements(file, i);
      BOOST_TEST(read == (other == others.end() ? counting(read.size()) : other->second),
                 boost::test_tools::per_element());
      if (tensor.name.starts_with("types.") && tensor.dtype)
        BOOST_TEST(tensor.name == "types." + std::string(tensor.type_name));
    }
  }
  BOOST_TEST(file.views()[18].name == "permuted");
  BOOST_TEST(file.views()[18].shape == (std::vector<std::int64_t>{2, 3, 4}),
             boost::test_tools::per_element());
  BOOST_TEST(file.views()[13].shape == (std::vector<std::int64_t>{0, 7}), boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(every_protocol_is_read_and_so_is_a_file_without_checksums) {
  for (const char* const name : {"protocol_3.pt", "protocol_4.pt", "protocol_5.pt", "no_checksums.pt"}) {
    BOOST_TEST_CONTEXT(name) {
      const lc::PytorchFile file(file_of_pytorch(name));
      BOOST_REQUIRE(file.views().size() == 2u);
      BOOST_TEST(elements(file, 0) == counting(6), boost::test_tools::per_element());
      BOOST_TEST(elements(file, 1) == counting(2), boost::test_tools::per_element());
    }
  }
}

BOOST_AUTO_TEST_CASE(of_several_mappings_the_usual_one_is_taken_with_a_word_and_a_key_takes_any) {
  const std::string path = file_of_pytorch("training.pt");
  const lc::PytorchFile model(path);
  BOOST_TEST(model.views().at(0).name == "module.weight");
  BOOST_TEST(elements(model, 0) == counting(6), boost::test_tools::per_element());
  BOOST_REQUIRE(model.notes().size() == 1u);
  BOOST_TEST(model.notes()[0] ==
             path + ": reads the tensors under \"model\"; --key selects those under \"/\", \"averages/0.9\"");
  const lc::PytorchFile average(path, "averages/0.9");
  BOOST_TEST(average.views().at(1).name == "bias");
  BOOST_TEST(elements(average, 1) == counting(2, 2), boost::test_tools::per_element());
  const lc::PytorchFile outermost(path, "/");
  BOOST_REQUIRE(outermost.views().size() == 1u);
  BOOST_TEST(outermost.views()[0].name == "loss");
  BOOST_TEST(outermost.notes().at(1).starts_with(
      path + ": left out, as they are not tensors: \"epoch\", \"best\", \"big\""));
  BOOST_TEST(outermost.notes().at(1).ends_with(" and 5 more"));
  BOOST_CHECK_EXCEPTION(
      (lc::PytorchFile{path, "optimizer"}), DataError,
      mentions(
          "holds no tensors with names under \"optimizer\", but under \"/\", \"model\", \"averages/0.9\""));
}

BOOST_FIXTURE_TEST_CASE(without_a_usual_name_the_only_mapping_is_taken_and_of_several_none, Files) {
  const std::string one = tensor(0, {2}, {1}), weights = dict(text("w") + one);
  write(pickle(dict(text("net") + weights + text("epoch") + "K\3")));
  BOOST_TEST(lc::PytorchFile(path).views().at(0).name == "w");
  refused(pickle(dict(text("net") + weights + text("ema") + weights)),
          "holds tensors under \"net\", \"ema\": choose one by lockstep convert");
  refused(pickle(dict(text("epoch") + "K\3")), "is not a mapping of names to tensors, and holds none");
  refused(pickle(one), "is not a mapping of names to tensors");
  refused(pickle("](" + one + "e"), "is not a mapping of names to tensors");
  refused(pickle(dict("K\1" + one)), "a name that is not printable text");
  refused(pickle(dict(text("a\nb") + one)), "a name that is not printable text");
  refused(pickle(dict(text("a") + one + text("a") + one)), "\"a\" occurs twice");
}

BOOST_FIXTURE_TEST_CASE(a_key_may_be_a_number_as_python_prints_it, Files) {
  const std::string weights = dict(text("w") + tensor(0, {2}, {1})),
                    others = dict(text("v") + tensor(2, {2}, {1}));
  const std::string nine_tenths("G\x3f\xec\xcc\xcc\xcc\xcc\xcc\xcd"), one("G\x3f\xf0\0\0\0\0\0\0", 9);
  write(pickle(dict(text("ema") + dict(nine_tenths + weights + one + others + "K\3" + weights))));
  BOOST_TEST(lc::PytorchFile(path, "ema/0.9").views().at(0).name == "w");
  BOOST_TEST(lc::PytorchFile(path, "ema/1.0").views().at(0).name == "v");
  BOOST_CHECK_EXCEPTION(lc::PytorchFile(path, "ema/2"), DataError, mentions("\"ema/0.9\", \"ema/1.0\""));
  BOOST_TEST(lc::PytorchFile(path, "ema/3").views().at(0).name == "w");  // an optimizer's state has integers
}

BOOST_FIXTURE_TEST_CASE(tensors_in_lists_objects_and_deep_mappings_are_noted_and_a_key_reads_them, Files) {
  const std::string one = tensor(0, {2}, {1}), weights = dict(text("w") + one), rest = dict(text("v") + one);
  const auto space = [](const std::string& items) {
    return name("argparse", "Namespace") + ")\x81" + dict(items) + "b";
  };
  std::string deep = weights;
  for (int level = 0; level < 8; ++level) deep = dict(text("d") + deep);
  const std::string args = text("args") + space(text("best") + weights),
                    list = text("list") + "](" + one + rest + "e";
  write(pickle(dict(text("model") + weights + args + list + text("deep") + deep)));
  const lc::PytorchFile model(path);
  BOOST_TEST_REQUIRE(model.notes().size() == 1U);
  BOOST_TEST(model.notes()[0] ==
             path + ": left out, in lists, objects or deep: 4 tensors, the first at \"list/0\"");
  BOOST_TEST(lc::PytorchFile(path, "args/best").views().at(0).name == "w");
  BOOST_TEST(lc::PytorchFile(path, "list/1").views().at(0).name == "v");
  BOOST_TEST(lc::PytorchFile(path, "deep/d/d/d/d/d/d/d/d").views().at(0).name == "w");
  refused(pickle(dict(args)), "and holds none by name, but 1 tensor, the first at \"args/best/w\"");
  const std::string state =
      dict(text("state") + dict("K\0"s + dict(text("exp_avg") + one)) + text("param_groups") + "]");
  write(pickle(dict(text("model") + weights + text("optimizer") + state)));
  BOOST_TEST(lc::PytorchFile(path).notes().empty());  // its state is no weights
}

BOOST_FIXTURE_TEST_CASE(the_numbers_that_nanogpt_saves_of_its_model_are_read, Files) {
  const std::string weights = text("model") + dict(text("w") + tensor(0, {2}, {1}));
  write(pickle(dict(weights + text("model_args") +
                    dict(text("n_head") + number(4) + text("bias") + "\x88" + text("n_layer") + number(2)))));
  BOOST_TEST(lc::PytorchFile(path).model_args().dump() == R"({"n_head":4,"n_layer":2})");
  for (const std::string& other : {std::string("K\3"), dict(""), dict("K\1K\2"), text("n_head")}) {
    write(pickle(dict(weights + text("model_args") + other)));
    BOOST_TEST(lc::PytorchFile(path).model_args().is_null());
  }
}

BOOST_FIXTURE_TEST_CASE(what_is_written_reads_back_and_is_the_same_every_time, Files) {
  std::vector<lc::NamedTensor> tensors;
  for (const DType dtype : {DType::float32, DType::bfloat16, DType::float16, DType::float64, DType::int64,
                            DType::int32, DType::uint8}) {
    tensors.push_back({std::string(to_string(dtype)), Tensor::empty({300, 3}, dtype)});
    fill_with_any_bits(tensors.back(), 5);
  }
  tensors.push_back({"scalar", Tensor::zeros({})});
  tensors.push_back({"empty", Tensor::zeros({0, 7})});
  lc::write_pytorch(path, tensors, {{"lockstep.step", "12"}});
  BOOST_TEST(names_in(folder.path()) == std::vector<std::string>{"a.pt"}, boost::test_tools::per_element());
  const std::string first = read_bytes(path);
  lc::write_pytorch(path, tensors, {{"lockstep.step", "12"}});
  BOOST_TEST((read_bytes(path) == first));
  const lc::PytorchFile file(path);
  BOOST_TEST(file.metadata("lockstep.step") == "12");
  BOOST_TEST(file.metadata("lockstep.seed") == "");
  BOOST_REQUIRE(file.views().size() == tensors.size());
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    BOOST_TEST_CONTEXT(tensors[i].name) {
      BOOST_TEST(file.views()[i].name == tensors[i].name);
      BOOST_TEST((file.views()[i].dtype == tensors[i].value.dtype()));
      BOOST_TEST(std::ranges::equal(file.views()[i].shape, tensors[i].value.shape().extents()));
      std::vector<std::byte> bytes(file.views()[i].bytes);
      file.read(i, bytes);
      BOOST_TEST(std::ranges::equal(
          bytes, std::span(static_cast<const std::byte*>(tensors[i].value.raw()), tensors[i].value.bytes())));
    }
  }
  const lc::ZipFile zip(path);
  for (const lc::ZipEntry& entry : zip.entries()) BOOST_TEST(entry.offset % 64 == 0u, entry.name);
}

BOOST_FIXTURE_TEST_CASE(values_that_hold_no_tensors_are_left_out, Files) {
  const std::string arguments = name("argparse", "Namespace") + ")\x81" + dict(text("lr") + "K\1") + "b",
                    type = name("numpy", "dtype") + text("f8") + "\x89\x88\x87R",
                    bytes = name("_codecs", "encode") + text("12345678") + text("latin1") + "\x86R",
                    accuracy = name("numpy.core.multiarray", "scalar") + type + bytes + "\x86R",
                    folder_of_run = name("pathlib", "PosixPath") + text("runs") + text("a") + "\x86R";
  write(pickle(dict(text("w") + tensor(0, {2}, {1}) + text("args") + arguments + text("accuracy") + accuracy +
                    text("run") + folder_of_run)));
  const lc::PytorchFile file(path);
  BOOST_REQUIRE(file.views().size() == 1u);
  BOOST_TEST(file.views()[0].name == "w");

  const std::string averages = text("ema") + dict(text("w") + tensor(0, {2}, {1}));
  for (const std::string& closed : {arguments, dict(text("w") + accuracy)})
    refused(pickle(dict(text("model") + closed + averages)),
            "what is under \"model\" are arrays of NumPy or an object");
}

BOOST_FIXTURE_TEST_CASE(a_pickle_with_code_is_refused_by_the_name_and_nothing_is_done, Files) {
  const std::string command = text("touch " + folder.file("done"));
  const auto calls = [&](const std::string& module, const std::string& function) {
    return name(module, function) + command + "\x85R";
  };
  const std::vector<std::pair<std::string, const char*>> cases = {
      {calls("posix", "system"),
       "a.pt: data.pkl names posix.system: only tensors are read; nothing was executed"},
      {calls("os", "system"), "data.pkl names os.system: only"},
      {calls("builtins", "eval"), "data.pkl names builtins.eval: only"},
      {calls("builtins", "getattr"), "data.pkl names builtins.getattr"},
      {calls("torch", "load"), "data.pkl names torch.load"},
      {calls("torch", "ComplexFloatStorage"), "data.pkl names torch.ComplexFloatStorage"},
      {calls("torch._utils", "_rebuild_sparse_tensor"), "data.pkl names torch._utils._rebuild_sparse_tensor"},
      {calls("numpy", "load"), "data.pkl names numpy.load"},
      {"(iposix\nsystem\n", "data.pkl names posix.system"},
      {"(itorch\nSize\n", "an object of a class (INST)"},
      {text("posix") + text("system") + "\x93" + command + "\x85R", "data.pkl names posix.system"},
      {calls("two\tparts", "of\x1b[31ma name"), "data.pkl names \"two\\x09parts.of\\x1b[31ma name\""},
      {calls(std::string(5000, 'm'), "f"), "mmm\"...: only tensors are read"},
      {calls("torch", "FloatStorage"), "it calls a value that is not a function"},
      {command + command + "\x85R", "it calls a value that is not a function"},
      {name("torch", "Size") + command + "R", "arguments are not a tuple"},
      {name("collections", "OrderedDict") + ")\x81", "an object of a class (NEWOBJ)"},
      {"C\1x", "it holds bytes"},
      {"\x8f", "it holds a set"},
      {"\x82\1", "a registered extension"},
      {"I1\n", "the opcode 0x49 is not supported, as tensors do not need it"},
      {name("collections", "OrderedDict") + "](" + text("w") + "e\x85R", "it creates a dict from arguments"},
      {")}b", "attributes of a value that is not an OrderedDict"}};
  for (const auto& [value, why] : cases) {
    BOOST_TEST_CONTEXT(why) {
      refused(pickle(value), why);
      // However deep: as a value, as a key, as an argument, and behind a tensor that is whole.
      refused(pickle(dict(text("w") + tensor(0, {2}, {1}) + text("v") + value)), why);
      refused(pickle(dict(value + tensor(0, {2}, {1}))), why);
      refused(pickle(name("collections", "OrderedDict") + value), why);
    }
  }
  BOOST_TEST(!std::filesystem::exists(folder.file("done")));
}

BOOST_FIXTURE_TEST_CASE(pickles_that_are_not_whole_are_refused_with_the_byte, Files) {
  refused("", "is not a pickle of protocol 2 to 5");
  refused("(lp0\n.", "is not a pickle of protocol 2 to 5");
  refused("\x80\x06}.", "is not a pickle of protocol 2 to 5");
  refused("\x80\x02", "data.pkl, byte 2: it ends too early");
  refused("\x80\x02}", "byte 3: it ends too early");
  refused("\x80\x02X\xff\xff\xff\x7f.", "it ends too early");
  refused("\x80\x02\x8d\xff\xff\xff\xff\xff\xff\xff\xff.", "it ends too early");
  refused("\x80\x02\x8b\xff\xff\xff\xff.", "it ends too early");
  refused("\x80\x04\x95\xff\xff\xff\xff\xff\xff\xff\xff}.", "a frame reaches beyond its end");
  refused(
      "\x80\x02"
      "cposix",
      "it ends too early");
  refused(pickle(""), "it ends with 0 values");
  refused(pickle("NN"), "it ends with 2 values");
  refused(pickle("N("), "it ends with 1 values");
  refused(pickle("}") + "}", "bytes follow its end");
  refused(pickle("t"), "a mark is missing");
  refused(pickle("u"), "a mark is missing");
  refused(pickle("\x87"), "more values than the stack has");
  refused(pickle("N(\x85"), "more values than the stack has");
  refused(pickle("R"), "more values than the stack has");
  refused(pickle("}Na"), "it appends to a value that is not a list");
  refused(pickle("]NNs"), "it sets items of a value that is not a dict");
  refused(pickle(")"
                 "NNs"),
          "it sets items of a value that is not a dict");
  refused(pickle("}(Nu"), "a key has no value");
  refused(pickle("h\1"), "it reads index 1 of the memo, which has 0");
  refused(pickle("Nr\xff\xff\xff\xff"), "it stores a value at index 4294967295 of the memo, which has 0");
  refused(pickle("NN\x93"), "a name is not a text");
}

BOOST_FIXTURE_TEST_CASE(a_tensor_outside_its_storage_is_refused_by_its_name, Files) {
  const auto with = [&](const std::string& value) { return pickle(dict(text("w") + value)); };
  constexpr std::int64_t huge = std::numeric_limits<std::int64_t>::max();
  refused(with(tensor(0, {9}, {1})),
          "\"w\" reaches beyond its storage \"archive/data/0\", which has 32 bytes");
  refused(with(tensor(1, {8}, {1})), "\"w\" reaches beyond its storage");
  refused(with(tensor(9, {}, {})), "\"w\" reaches beyond its storage");
  refused(with(tensor(0, {2, 2}, {7, 1})), "\"w\" reaches beyond its storage");
  refused(with(tensor(huge, {1}, {1})), "\"w\" claims more elements than any machine could hold");
  refused(with(tensor(0, {2}, {huge})), "\"w\" claims more elements");
  refused(with(tensor(0, {huge, huge}, {0, 0})), "\"w\" claims more elements");
  refused(with(tensor(0, {0, huge, huge}, {1, 1, 1})), "\"w\" claims more elements");
  refused(with(tensor(0, {1 << 20, 1 << 20}, {0, 0})), "views that would take more than 16 times its bytes");
  refused(with(tensor(0, {-1}, {1})), "\"w\" has an offset, a shape or strides that are not sizes");
  refused(with(tensor(0, {2}, {-1})), "\"w\" has an offset, a shape or strides that are not sizes");
  refused(with(tensor(-1, {2}, {1})), "\"w\" has an offset, a shape or strides that are not sizes");
  std::string short_offset = tensor(-1, {2}, {1});  // -1 in one byte, as Python writes it
  short_offset.replace(short_offset.find(number(-1)), number(-1).size(), "\x8a\x01\xff");
  refused(with(short_offset), "\"w\" has an offset, a shape or strides that are not sizes");
  refused(with(tensor(0, {2}, {})), "\"w\" has an offset, a shape or strides that are not sizes");
  refused(with(tensor(0, std::vector<std::int64_t>(33, 1), std::vector<std::int64_t>(33, 1))),
          "\"w\" has an offset, a shape or strides that are not sizes");
  refused(with(tensor_in(storage("0", 9), 0, {2}, {1})), "which has 32 bytes, unlike in data.pkl");
  refused(with(tensor_in(storage("0", -8), 0, {2}, {1})), "which has 32 bytes, unlike in data.pkl");
  refused(with(tensor_in(storage("0", 8, "DoubleStorage"), 0, {2}, {1})), "which has 32 bytes, unlike in");
  refused(with(tensor_in(storage("1", 8), 0, {2}, {1})),
          "the storage \"archive/data/1\", which the file lacks");
  refused(with(tensor_in(storage("../data.pkl", 8), 0, {2}, {1})), "which the file lacks");
  refused(with(tensor_in(storage("0", 8, "Size"), 0, {2}, {1})), "\"w\" has no element type");
  refused(with(tensor_in("N", 0, {2}, {1})), "\"w\" has no storage");
  refused(with(tensor_in(text("storage") + "Q", 0, {2}, {1})), "\"w\" has no storage");
  refused(with(name("torch._utils", "_rebuild_tensor_v2") + ")R"), "\"w\" has too few arguments");
  refused(with(name("torch._utils", "_rebuild_tensor_v3") + "(" + storage("0", 8) + "K\0"s +
               ")))Nt"
               "R"),
          "\"w\" has too few");
  std::string negative = tensor(0, {2}, {1});
  negative.insert(negative.size() - 2, "}(" + text("neg") + "\x88u");
  refused(with(negative), "\"w\" is a conjugate or negative view");
  write(with(name("torch._utils", "_rebuild_parameter_with_state") + "(" + tensor(1, {1}, {1}) +
             "\x88})"
             "tR"));
  BOOST_TEST(floats(lc::PytorchFile(path), 0) == std::vector<float>{2}, boost::test_tools::per_element());
  write(with(tensor(7, {1, 1}, {huge, 5})));
  BOOST_TEST(floats(lc::PytorchFile(path), 0) == std::vector<float>{8}, boost::test_tools::per_element());
  write(with(tensor(huge / 8, {0}, {1})));
  BOOST_TEST(floats(lc::PytorchFile(path), 0).empty());
}

BOOST_FIXTURE_TEST_CASE(small_files_that_ask_for_much_do_not_get_it, Files) {
  const std::string one = tensor(0, {8}, {1});
  std::string deep_tuples = "\x80\x02N", deep_dicts = "\x80\x02", chain = "\x80\x02}" + text("all") + "(}",
              many_views = "\x80\x02}(";
  for (int i = 0; i < 1'000'000; ++i) deep_tuples += "\x85";
  for (int i = 0; i < 1'000'000; ++i) deep_dicts += "}" + text("k");
  deep_dicts += "N" + std::string(1'000'000, 's');
  // Dicts that hold the one before twice: 2^40 ways to the innermost.
  for (int i = 0; i < 40; ++i)
    chain += "q" + std::string(1, static_cast<char>(i)) + "}(" + text("a") + "h" + static_cast<char>(i) +
             text("b") + "h" + static_cast<char>(i) + "u";
  for (int i = 0; i < 20'000; ++i) many_views += text(std::to_string(i)) + tensor(0, {1000, 1000}, {0, 0});
  const std::string itself = "\x80\x02}q" + "\0"s + text("a") + "h" + "\0"s + "s" + text("w") + one + "s.";
  const std::vector<std::pair<std::string, const char*>> cases = {
      {deep_tuples + ".", "is not a mapping"},
      {deep_dicts + ".", "is not a mapping"},
      {chain + "ts" + text("top") + "h" + static_cast<char>(39) + "s.", "is not a mapping"},
      {many_views + "u.", "more than 16 times its bytes"},
      {"\x80\x02" + std::string(5'000'000, ']') + ".", "has more than 2097152 values"},
      {"\x80\x02" + std::string(5'000'000, '(') + ".", "it ends with 0 values"},
      {"\x80\x04N" + std::string(5'000'000, '\x94') + ".", "is not a mapping"},
      {std::string((32u << 20) + 1, ']'), "more than the 33554432 allowed"}};
  const Confined result = run_confined(static_cast<int>(cases.size()) + 1, [&](int i) {
    if (static_cast<std::size_t>(i) == cases.size()) {
      write(itself);
      if (lc::PytorchFile(path).views().size() != 1) throw std::logic_error("the dict in itself");
      return;
    }
    write(cases[static_cast<std::size_t>(i)].first);
    try {
      const lc::PytorchFile file(path);
    } catch (const DataError& error) {
      if (mentions(cases[static_cast<std::size_t>(i)].second)(error)) return;
      throw std::logic_error(error.what());
    }
    throw std::logic_error("it is read");
  });
  BOOST_TEST(result.problem() == "");
}

BOOST_FIXTURE_TEST_CASE(archives_of_others_are_refused_by_what_they_are, Files) {
  const std::string whole = pickle(dict(text("w") + tensor(0, {2}, {1})));
  const auto refused_archive = [&](const std::vector<std::pair<std::string, std::string>>& entries,
                                   const char* why) {
    write(entries);
    BOOST_CHECK_EXCEPTION(lc::PytorchFile{path}, DataError, mentions("a.pt: ", why));
  };
  refused_archive({}, "is a zip archive without data.pkl");
  refused_archive({{"data.pkl", whole}}, "is a zip archive without data.pkl");
  refused_archive({{"a/data.pkl", whole}, {"b/data.pkl", whole}}, "holds data.pkl more than once");
  refused_archive({{"a/data.pkl", whole}, {"a/constants.pkl", whole}}, "is a program of torch.jit.save");
  refused_archive({{"a/data.pkl", whole}, {"a/byteorder", "big"}}, "its numbers are big endian");
  refused_archive({{"a/data.pkl", whole}, {"a/byteorder", "no\x1b"}}, "its numbers are \"no\\x1b\" endian");
  refused_archive({{"a/data.pkl", whole}, {"a/data.pkl", whole}}, "\"a/data.pkl\" occurs twice");
  for (const char* const name : {"../data.pkl", "a/../../b", "/etc/passwd", "a\\..\\b", "", ".."})
    refused_archive({{"a/data.pkl", whole}, {name, "x"}}, "leads out of the archive");
  BOOST_CHECK_EXCEPTION(lc::read_weights(file_of_pytorch("old.pt")), DataError,
                        mentions("old.pt: is in the format that torch.save wrote before PyTorch 1.6"));
}

/// Replaces the `which`-th occurrence of a text.
std::string with(std::string bytes, const std::string& before, const std::string& after, int which = 0) {
  std::size_t at = bytes.find(before);
  for (; which > 0; --which) at = bytes.find(before, at + 1);
  BOOST_REQUIRE(at != std::string::npos);
  return bytes.replace(at, before.size(), after);
}

BOOST_FIXTURE_TEST_CASE(archives_that_contradict_themselves_are_refused, Files) {
  const std::string whole = read_bytes(file_of_pytorch("protocol_3.pt"));
  const std::size_t directory = whole.find("PK\1\2"), end = whole.rfind("PK\5\6"),
                    wide = whole.rfind("PK\6\6");
  const auto refused_bytes = [&](const std::string& bytes, const char* why) {
    write_bytes(path, bytes);
    BOOST_TEST_CONTEXT(why) {
      BOOST_CHECK_EXCEPTION(lc::PytorchFile{path}, DataError, mentions("a.pt: ", why));
    }
  };
  const auto patched = [&](std::size_t at, const std::string& bytes) {
    std::string copy = whole;
    return copy.replace(at, bytes.size(), bytes);
  };
  refused_bytes(patched(8, "\x08"), "the directory and the entry disagree on \"protocol_3/data.pkl\"");
  refused_bytes(patched(directory + 10, "\x08"), "\"protocol_3/data.pkl\" is compressed (method 8)");
  refused_bytes(patched(directory + 8, "\x09"), "\"protocol_3/data.pkl\" is encrypted");
  refused_bytes(patched(directory + 24, "\xff\xff\xff\x7f"), "stored bytes instead of 2147483647");
  refused_bytes(patched(directory + 20, "\xff\xff\xff\x7f\xff\xff\xff\x7f"), "is not within the archive");
  refused_bytes(patched(directory + 20, "\xff\xff\xff\xff\xff\xff\xff\xff"), "lacks its size");
  refused_bytes(patched(directory + 42, "\x01"), "the directory and the entry disagree");
  refused_bytes(patched(directory + 42, "\xff\xff\xff\x7f"), "is not within the archive");
  refused_bytes(patched(directory, "PK\1\3"), "its directory is damaged");
  refused_bytes(patched(directory + 28, "\xff\xff"), "its directory is damaged");
  refused_bytes(patched(end + 10, "\xfe"), "end record and its zip64 record disagree");
  refused_bytes(patched(wide + 24, "\xff\xff\xff"), "is a part of a multi-part archive");
  refused_bytes(patched(wide + 40, "\xff\xff\xff\xff\xff\xff\xff\xff"), "disagree");
  refused_bytes(patched(wide + 56 + 8, "\xff\xff\xff\xff\xff\xff\xff\xff"),
                "its zip64 record is not within the file");
  refused_bytes(patched(wide + 56 + 8, "\x01"), "its zip64 record is not at the offset in its end record");
  refused_bytes(whole + "x", "has no end of a zip archive");
  // The second entry of the directory leads to the bytes of the first: one storage for two names.
  std::string overlapping = with(whole, "protocol_3/data/1", "protocol_3/data/0", 0);
  refused_bytes(with(overlapping, "protocol_3/data/1", "protocol_3/data/0", 0),
                "\"protocol_3/data/0\" occurs twice");
  const std::size_t first = whole.find("protocol_3/data/0", directory) - 46,
                    second = whole.find("protocol_3/data/1", directory) - 46;
  refused_bytes(patched(second + 42, whole.substr(first + 42, 4)), "the directory and the entry disagree on");
  // A storage and a pickle with other bits.
  const std::size_t bits = whole.find(std::string("\0\0\x80?", 4));
  BOOST_REQUIRE(bits != std::string::npos);
  write_bytes(path, patched(bits, "\x01"));
  BOOST_CHECK_EXCEPTION(floats(lc::PytorchFile(path), 0), DataError, mentions("is damaged: its CRC-32 is"));
  refused_bytes(with(whole, "weight", "weighs"), "\"protocol_3/data.pkl\" is damaged: its CRC-32 is");
}

BOOST_FIXTURE_TEST_CASE(entries_that_share_bytes_are_refused, Files) {
  // The header of the second entry lies within the bytes of the first, as in archives that unpack to far more
  // than they hold.
  const std::string inner = "inner entry";
  write({{"a/data.pkl", inner}});
  const std::string header_and_bytes = read_bytes(path).substr(0, read_bytes(path).find("PK\1\2"));
  write({{"a/outer", header_and_bytes}, {"a/data.pkl", inner}});
  std::string bytes = read_bytes(path);
  const std::size_t listed = bytes.rfind("a/data.pkl") - 46;
  const auto offset = static_cast<std::uint32_t>(bytes.find("PK\3\4", 1));
  bytes.replace(listed + 42, sizeof offset, reinterpret_cast<const char*>(&offset), sizeof offset);
  write_bytes(path, bytes);
  BOOST_CHECK_EXCEPTION(lc::ZipFile{path}, DataError, mentions("\"a/data.pkl\" overlaps \"a/outer\""));
}

BOOST_FIXTURE_TEST_CASE(a_file_cut_anywhere_is_refused, Files) {
  for (const char* const name : {"protocol_5.pt", "no_checksums.pt"}) {
    const std::string whole = read_bytes(file_of_pytorch(name));
    for (std::size_t bytes = 0; bytes < whole.size(); ++bytes) {
      write_bytes(path, whole.substr(0, bytes));
      BOOST_CHECK_EXCEPTION(lc::PytorchFile{path}, DataError, mentions("a.pt: "));
    }
  }
}

/// Random damage to files of PyTorch.
struct Mutations : Files {
  std::uint64_t seed = seed_of_test();
  int read_ = 0;

  static void damage(std::string& bytes, Chance& random) {
    for (std::size_t changes = 1 + random.below(4); changes > 0; --changes) {
      const std::size_t at = random.below(bytes.size()), length = 1 + random.below(24);
      switch (random.below(6)) {
        case 0:
          bytes.erase(at, length);
          break;
        case 1:
          bytes.insert(random.below(bytes.size()), bytes.substr(at, length));
          break;
        case 2:
          bytes.insert(at, std::string(length, static_cast<char>(random.below(256))));
          break;
        default:
          bytes[at] = random.changed(bytes[at]);
      }
      if (bytes.empty()) return;
    }
  }
  /// All tensors, by name; none if it is refused in one line.
  std::optional<std::map<std::string, std::string>> read() {
    try {
      const lc::PytorchFile file(path);
      std::map<std::string, std::string> tensors;
      for (std::size_t i = 0; i < file.views().size(); ++i) {
        std::string& bytes = tensors[file.views()[i].name];
        bytes.resize(file.views()[i].bytes);
        file.read(i, std::as_writable_bytes(std::span(bytes)));
      }
      return tensors;
    } catch (const DataError& error) {
      check_text(error.what());
      return std::nullopt;
    }
  }
  void check_text(const std::string& what) const {
    if (what.find('\n') != std::string::npos || what.size() > 2000 || what.find("a.pt") == std::string::npos)
      throw std::logic_error("it says: " + what);
  }
  /// AdamW's state is taken, or refused in one line.
  void take_state() const {
    Layer layer;
    lc::Weights weights;
    try {
      lc::add_optimizer(weights, path, layer.state);
    } catch (const DataError& error) {
      check_text(error.what());
    }
  }
  /// A file with checksums is read as it was, or not at all. A pickle that was damaged before the checksums
  /// were made may say other things, within the storages.
  void try_one(int number) {
    Chance random{std::mt19937_64(seed + static_cast<std::uint64_t>(number))};
    const std::array names{"tensors.pt", "training.pt", "protocol_5.pt"};
    const std::string name = file_of_pytorch(names[static_cast<std::size_t>(number) % names.size()]);
    std::filesystem::copy_file(name, path, std::filesystem::copy_options::overwrite_existing);
    if (random.below(3) == 0) {
      const auto before = read();
      std::string bytes = read_bytes(path);
      damage(bytes, random);
      write_bytes(path, bytes);
      const auto after = read();
      if (after && after != before) throw std::logic_error("other values are read");
      read_ += after.has_value();
      take_state();
    } else {
      const lc::ZipFile zip(name);
      std::vector<std::pair<std::string, std::string>> entries;
      for (std::size_t i = 0; i < zip.entries().size(); ++i) {
        std::string text = zip.text(i, 1 << 20);
        if (zip.entries()[i].name.ends_with("/data.pkl")) damage(text, random);
        entries.emplace_back(zip.entries()[i].name, std::move(text));
      }
      write(entries);
      read_ += read().has_value();
      take_state();
    }
  }
};

BOOST_FIXTURE_TEST_CASE(some_mutated_files_are_read_right_or_refused, Mutations) {
  const Confined result = run_confined(200, [&](int number) { try_one(number); });
  BOOST_TEST(result.problem() == "");
}

BOOST_FIXTURE_TEST_CASE(many_mutated_files_are_read_right_or_refused, Mutations, *slow()) {
  const int count = many_files();
  const Confined result = run_confined(count, [&](int number) {
    try_one(number);
    if (number + 1 == count) throw std::runtime_error(fmt::format("{} of {} files were read", read_, count));
  });
  BOOST_TEST_MESSAGE(result.text);
  BOOST_TEST(result.text.ends_with(fmt::format(" of {} files were read", count)), result.problem());
  BOOST_TEST(result.signal == 0);
}

BOOST_AUTO_TEST_SUITE_END()
}  // namespace
}  // namespace lockstep::test
