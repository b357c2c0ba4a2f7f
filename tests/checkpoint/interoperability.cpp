// Other programs read the files: HDF5's own tools, and h5py where it is installed.
#include <stdlib.h>

#include <boost/test/unit_test.hpp>
#include <cstdio>

#include "checkpoint/sample.h"
#include "lockstep/checkpoint/save.h"

namespace ls = lockstep;
namespace lc = lockstep::checkpoint;

namespace {

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

struct OneFile {
  std::unique_ptr<ls::comm::Communicator> self = ls::comm::make_self_communicator();
  ls::test::TemporaryFolder folder;
  std::string path = folder.file("a.h5");
  lc::Contents contents;

  OneFile() {
    ls::Tensor weight = ls::Tensor::zeros({2, 3}), batches = ls::Tensor::zeros({}, ls::DType::int64);
    for (int i = 0; i < 6; ++i) weight.data<float>()[i] = static_cast<float>(i) + 0.5f;
    *batches.data<std::int64_t>() = 12;
    contents.sections.push_back({"model",
                                 {{"layer1.0.bn1.weight", weight},
                                  {"layer1.0.bn1.num_batches_tracked", batches},
                                  {"empty", ls::Tensor::zeros({0, 2})}},
                                 {}});
    contents.sections.push_back({"ema/0.999",
                                 {{"layer1.0.bn1.weight", weight}},
                                 {{"rate", 0.999, {}}, {"updates", std::int64_t{8}, {}}}});
    contents.config = "[train]\nsteps = 5\n";
    contents.position = {5, 0, 320, 4, 1};
    lc::save_file(path, contents, *self);
  }
};

}  // namespace

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
  if (shell("python3 -c 'import h5py'").status != 0 &&
      shell("/usr/bin/python3 -c 'import h5py'").status != 0) {
    BOOST_TEST_MESSAGE("skipped: no h5py");
    return;
  }
  const std::string python = shell("python3 -c 'import h5py'").status == 0 ? "python3" : "/usr/bin/python3";
  ls::test::write_bytes(folder.file("read.py"), R"(
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
