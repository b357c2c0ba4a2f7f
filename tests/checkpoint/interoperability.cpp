// Other programs read the files: HDF5's own tools, and h5py where it is installed, every bit of every type.
#include <stdlib.h>

#include <bit>
#include <boost/test/unit_test.hpp>
#include <cmath>
#include <cstdio>

#include "checkpoint/sample.h"
#include "lockstep/checkpoint/convert.h"
#include "lockstep/checkpoint/file.h"

namespace lockstep::test {
namespace {
BOOST_AUTO_TEST_SUITE(interoperability)

namespace lc = checkpoint;

struct Result {
  int status;
  std::string output;
};

Result shell(const std::string& command) {
  FILE* pipe = ::popen((command + " 2>&1").c_str(), "r");
  std::string output;
  for (int c = 0; (c = std::fgetc(pipe)) != EOF;) output += static_cast<char>(c);
  return {::pclose(pipe), output};
}

/// "" where there is none, and says so.
std::string python_with_h5py() {
  for (const char* python : {"python3", "/usr/bin/python3"}) {
    if (shell(std::string(python) + " -c 'import h5py'").status == 0) return python;
  }
  BOOST_TEST_MESSAGE("skipped: no h5py");
  return "";
}

/// Writes each tensor's bytes to FOLDER/NAME, and a line "NAME DTYPE EXTENT ..." each to FOLDER/list.
void write_plainly(const std::string& folder, const std::vector<lc::NamedTensor>& tensors) {
  std::filesystem::create_directory(folder);
  std::string list;
  for (const lc::NamedTensor& tensor : tensors) {
    list += tensor.name + " " + std::string(to_string(tensor.value.dtype()));
    for (const std::int64_t extent : tensor.value.shape()) list += " " + std::to_string(extent);
    list += "\n";
    write_bytes(folder + "/" + tensor.name,
                std::string(static_cast<const char*>(tensor.value.raw()), tensor.value.bytes()));
  }
  write_bytes(folder + "/list", list);
}

/// Arguments: a checkpoint, and a folder from write_plainly.
constexpr const char* compare_every_bit = R"(
import sys, h5py, numpy as np
state = {k: v[()] for k, v in h5py.File(sys.argv[1])["model"].items()}
lines = [line.split() for line in open(sys.argv[2] + "/list")]
assert sorted(state) == sorted(line[0] for line in lines), sorted(state)
values = 0
for name, dtype, *shape in lines:
    found, raw = np.asarray(state[name]), open(sys.argv[2] + "/" + name, "rb").read()
    if dtype == "bfloat16":  # NumPy has no such type: h5py gives the numbers as float32
        wanted = (np.frombuffer(raw, "<u2").astype(np.uint32) << 16).view(np.float32)
        assert found.dtype == np.float32, (name, found.dtype)
    else:
        wanted = np.frombuffer(raw, np.dtype(dtype))
        assert found.dtype == np.dtype(dtype), (name, found.dtype)
    assert found.shape == tuple(map(int, shape)), (name, found.shape)
    assert found.tobytes() == wanted.tobytes(), name
    values += found.size
print(len(lines), values)
)";

struct OneFile {
  std::unique_ptr<comm::HostGroup> self = comm::make_self_communicator();
  TemporaryFolder folder;
  std::string path = folder.file("a.h5");
  lc::StateDict state_dict;

  OneFile() {
    Tensor weight = Tensor::zeros({2, 3}), batches = Tensor::zeros({}, DType::int64);
    for (int i = 0; i < 6; ++i) weight.data<float>()[i] = static_cast<float>(i) + 0.5f;
    *batches.data<std::int64_t>() = 12;
    state_dict.sections.push_back({"model",
                                   {{"layer1.0.bn1.weight", weight},
                                    {"layer1.0.bn1.num_batches_tracked", batches},
                                    {"empty", Tensor::zeros({0, 2})}},
                                   {}});
    state_dict.sections.push_back({"ema/0.999",
                                   {{"layer1.0.bn1.weight", weight}},
                                   {{"rate", 0.999, {}}, {"updates", std::int64_t{8}, {}}}});
    state_dict.config = "[train]\nsteps = 5\n";
    state_dict.position = {5, 0, 320, 4, 1};
    lc::save_file(path, state_dict, *self);
  }
};

BOOST_FIXTURE_TEST_CASE(h5dump_and_h5ls_show_names_types_and_numbers, OneFile) {
  if (shell("command -v h5dump").status != 0) {
    BOOST_TEST_MESSAGE("skipped: no h5dump");
    return;
  }
  const Result header = shell("h5dump -H " + path);
  BOOST_TEST(header.status == 0);
  for (const char* text : {"DATASET \"layer1.0.bn1.weight\"", "H5T_IEEE_F32LE",
                           "SIMPLE { ( 2, 3 ) / ( 2, 3 ) }", "H5T_STD_I64LE", "GROUP \"0.999\"",
                           "ATTRIBUTE \"format_version\"", "DATASET \"manifest\"", "DATASET \"config\""}) {
    BOOST_TEST_CONTEXT(text) { BOOST_TEST(header.output.find(text) != std::string::npos); }
  }
  BOOST_TEST(shell("h5dump -d /model/layer1.0.bn1.weight " + path).output.find("3.5, 4.5, 5.5") !=
             std::string::npos);
  const Result list = shell("h5ls " + path + "/model");
  BOOST_TEST(list.output.find("layer1.0.bn1.num_batches_tracked Dataset {SCALAR}") != std::string::npos);
  BOOST_TEST(list.output.find("layer1.0.bn1.weight      Dataset {2, 3}") != std::string::npos);
  const Result properties = shell("h5dump -H -p " + path);
  BOOST_TEST(shell("h5dump -B " + path).output.find("SUPERBLOCK_VERSION 3") != std::string::npos);
  BOOST_TEST(properties.output.find("H5D_ALLOC_TIME_EARLY") != std::string::npos);
  BOOST_TEST(properties.output.find("CHUNKED") == std::string::npos);
}

BOOST_FIXTURE_TEST_CASE(h5py_reads_every_value_under_its_own_name, OneFile) {
  const std::string python = python_with_h5py();
  if (python.empty()) return;
  write_bytes(folder.file("read.py"), R"(
import sys, h5py, numpy
f = h5py.File(sys.argv[1])
state = {k: v[()] for k, v in f["model"].items()}
assert sorted(state) == ["empty", "layer1.0.bn1.num_batches_tracked", "layer1.0.bn1.weight"], sorted(state)
w = state["layer1.0.bn1.weight"]
assert w.dtype == numpy.float32 and (w == numpy.arange(6).reshape(2, 3) + 0.5).all()
assert state["layer1.0.bn1.num_batches_tracked"] == 12 and state["empty"].shape == (0, 2)
assert f.attrs["format"] in (b"lockstep", "lockstep") and f.attrs["step"] == 5 and f.attrs["samples"] == 320
assert f["ema/0.999"].attrs["updates"] == 8 and f["ema/0.999"].attrs["rate"] == 0.999
assert f["config"][()] == b"[train]\nsteps = 5\n", f["config"][()]
rows = f["manifest"][()].decode().splitlines()
assert len(rows) == 4 and rows[0].endswith(" 24 float32 [2,3] /model/layer1.0.bn1.weight"), rows
print("all right")
)");
  const Result result = shell(python + " " + folder.file("read.py") + " " + path);
  BOOST_TEST(result.output == "all right\n");
}

BOOST_AUTO_TEST_CASE(h5py_loads_every_bit_of_every_type) {
  const std::string python = python_with_h5py();
  if (python.empty()) return;
  const TemporaryFolder folder;
  const auto self = comm::make_self_communicator();
  lc::StateDict state_dict = awkward_state_dict();
  for (const DType dtype : {DType::float64, DType::float16, DType::int64, DType::int32, DType::uint8})
    state_dict.sections[0].tensors.push_back({std::string(to_string(dtype)), Tensor::zeros({7, 31}, dtype)});
  for (const lc::NamedTensor& tensor : state_dict.sections[0].tensors) fill_with_any_bits(tensor, 11);
  lc::save_file(folder.file("a.h5"), state_dict, *self, {.allow_non_finite = true});
  write_plainly(folder.file("plain"), state_dict.sections[0].tensors);
  write_bytes(folder.file("compare.py"), compare_every_bit);
  const Result result = shell(python + " " + folder.file("compare.py") + " " + folder.file("a.h5") + " " +
                              folder.file("plain"));
  std::int64_t values = 0;
  for (const lc::NamedTensor& tensor : state_dict.sections[0].tensors) values += tensor.value.numel();
  BOOST_TEST(result.output == "13 " + std::to_string(values) + "\n");
}

BOOST_AUTO_TEST_CASE(h5py_loads_every_bfloat16_there_is_as_the_number_it_is) {
  const std::string python = python_with_h5py();
  if (python.empty()) return;
  const TemporaryFolder folder;
  // All but those that are not numbers, of which there are many and no two need be the same to NumPy.
  std::vector<float> numbers;
  for (std::uint32_t bits = 0; bits < 65536; ++bits) {
    const float number = std::bit_cast<float>(bits << 16);
    if (!std::isnan(number)) numbers.push_back(number);
  }
  lc::Weights weights;
  weights.tensors = {{"every", Tensor::empty({static_cast<std::int64_t>(numbers.size())})},
                     {"layer.weight", Tensor::empty({33, 65})},
                     {"layer.count", Tensor::zeros({}, DType::int64)}};
  std::copy(numbers.begin(), numbers.end(), weights.tensors[0].value.data<float>());
  for (int i = 0; i < 33 * 65; ++i)
    weights.tensors[1].value.data<float>()[i] = std::sin(static_cast<float>(i)) * 1e3f;
  lc::cast_floats(weights, DType::bfloat16);
  lc::write_weights(folder.file("b.h5"), weights);
  write_plainly(folder.file("plain"), weights.tensors);
  write_bytes(folder.file("compare.py"), compare_every_bit);
  const Result result = shell(python + " " + folder.file("compare.py") + " " + folder.file("b.h5") + " " +
                              folder.file("plain"));
  BOOST_TEST(result.output == "3 67428\n");
  if (shell("command -v h5dump").status == 0) {
    const std::string dump =
        shell("h5dump -d /model/layer.weight -s 0,0 -c 1,3 " + folder.file("b.h5")).output;
    BOOST_TEST(dump.find("0, 840, 908") != std::string::npos, dump);
  }
}

BOOST_AUTO_TEST_SUITE_END()
}  // namespace
}  // namespace lockstep::test
