// Checkpoints that other programs have changed by the rules of HDF5, every checksum right: what the file then
// says is checked by the reading alone, and nothing that it refers to is opened.
#include <hdf5.h>
#include <sys/stat.h>

#include <boost/test/unit_test.hpp>

#include "checkpoint/confined.h"
#include "checkpoint/damage.h"
#include "checkpoint/layout.h"

namespace lockstep::test {
namespace {
BOOST_AUTO_TEST_SUITE(damage_structure)

namespace lc = checkpoint;
using Outcome = SmallRun::Outcome;

hid_t ok(hid_t id) {
  if (id < 0) throw std::logic_error("the file could not be changed");
  return id;
}

hid_t scalar() { return ok(H5Screate(H5S_SCALAR)); }
hid_t simple(std::vector<hsize_t> extents) {
  return ok(H5Screate_simple(static_cast<int>(extents.size()), extents.data(), nullptr));
}

hid_t text_type(std::size_t bytes) {
  const hid_t type = ok(H5Tcopy(H5T_C_S1));
  ok(H5Tset_size(type, bytes));
  return type;
}

/// Exchanges an attribute of an object.
void set_attribute(hid_t file, const char* object, const char* name, hid_t type, hid_t space,
                   const void* value) {
  if (H5Aexists_by_name(file, object, name, H5P_DEFAULT) > 0)
    ok(H5Adelete_by_name(file, object, name, H5P_DEFAULT));
  const hid_t attribute =
      ok(H5Acreate_by_name(file, object, name, type, space, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT));
  if (value != nullptr) ok(H5Awrite(attribute, type, value));
  ok(H5Aclose(attribute));
}

void set_integer(hid_t file, const char* object, const char* name, std::int64_t value) {
  set_attribute(file, object, name, H5T_STD_I64LE, scalar(), &value);
}

/// Exchanges a dataset; `properties` are those of its creation.
hid_t set_dataset(hid_t file, const char* name, hid_t type, hid_t space, hid_t properties = H5P_DEFAULT) {
  if (H5Lexists(file, name, H5P_DEFAULT) > 0) ok(H5Ldelete(file, name, H5P_DEFAULT));
  return ok(H5Dcreate2(file, name, type, space, H5P_DEFAULT, properties, H5P_DEFAULT));
}

void set_text(hid_t file, const char* name, const std::string& text) {
  const hid_t type = text_type(text.size() + 1), dataset = set_dataset(file, name, type, scalar());
  ok(H5Dwrite(dataset, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, text.c_str()));
  ok(H5Dclose(dataset));
}

hid_t creation() { return ok(H5Pcreate(H5P_DATASET_CREATE)); }

hid_t chunked(std::vector<hsize_t> chunk, bool compressed) {
  const hid_t properties = creation();
  ok(H5Pset_chunk(properties, static_cast<int>(chunk.size()), chunk.data()));
  if (compressed) ok(H5Pset_deflate(properties, 9));
  return properties;
}

struct Altered : SmallRun {
  std::string pipe = folder.file("pipe"), other = folder.file("other.h5");

  Altered() {
    BOOST_REQUIRE(::mkfifo(pipe.c_str(), 0600) == 0);
    write_bytes(other, bytes);
  }

  /// Changes the whole file with `change` and reads it in every way.
  void expect(Outcome outcome, const char* name, const std::function<void(hid_t)>& change) {
    BOOST_TEST_CONTEXT(name) {
      const Confined result = run_confined(1, [&](int) {
        write_bytes(path, bytes);
        const hid_t access = ok(H5Pcreate(H5P_FILE_ACCESS));
        ok(H5Pset_fclose_degree(access, H5F_CLOSE_STRONG));
        const hid_t file = ok(H5Fopen(path.c_str(), H5F_ACC_RDWR, access));
        change(file);
        ok(H5Fclose(file));
        if (read_in_every_way() != outcome) throw std::logic_error("not what was expected");
      });
      BOOST_TEST(result.problem() == "");
    }
  }
  void refused(const char* name, const std::function<void(hid_t)>& change) {
    expect(Outcome::refused, name, change);
  }
  void harmless(const char* name, const std::function<void(hid_t)>& change) {
    expect(Outcome::right, name, change);
  }

  /// The same with the root digest made right for what the file then says.
  void refused_although_sealed(const char* name, const std::function<void(hid_t, lc::FileIndex&)>& change) {
    refused(name, [&](hid_t file) {
      write_bytes(other, bytes);
      lc::FileIndex index = lc::read_index(other);
      change(file, index);
      const std::string digest = fmt::format("{:016x}", lc::root_digest(index));
      set_attribute(file, "/", "digest", text_type(17), scalar(), digest.c_str());
    });
  }
};

BOOST_FIXTURE_TEST_CASE(attributes_that_resume_uses_are_refused_when_changed_retyped_or_gone, Altered) {
  struct Used {
    const char *object, *name;
  };
  for (const Used& used : {Used{"/", "step"}, Used{"/", "epoch"}, Used{"/", "samples"}, Used{"/", "shards"},
                           Used{"/", "seed"}, Used{"/", "format_version"}, Used{"/ema/0.5", "updates"}}) {
    BOOST_TEST_CONTEXT(used.name) {
      const auto set = [&](const char* what, hid_t type, hid_t space, const void* value) {
        refused(what, [&](hid_t file) { set_attribute(file, used.object, used.name, type, space, value); });
      };
      const std::int64_t other_value = 6, negative = -1, largest = std::numeric_limits<std::int64_t>::max();
      const std::uint64_t beyond = std::uint64_t{1} << 63;
      const double number = 5;
      const char* const text = "5";
      const std::vector<std::int64_t> many(1000, 5);
      const bool is_version = std::string_view(used.name) == "format_version";
      expect(is_version ? Outcome::newer : Outcome::refused, "another value", [&](hid_t file) {
        set_attribute(file, used.object, used.name, H5T_STD_I64LE, scalar(), &other_value);
      });
      set("a negative value", H5T_STD_I64LE, scalar(), &negative);
      set("the largest value", H5T_STD_I64LE, scalar(), &largest);
      set("beyond 63 bits", H5T_STD_U64LE, scalar(), &beyond);
      set("a float", H5T_IEEE_F64LE, scalar(), &number);
      set("a text", text_type(2), scalar(), text);
      set("many values", H5T_STD_I64LE, simple({1000}), many.data());
      set("no value", H5T_STD_I64LE, ok(H5Screate(H5S_NULL)), nullptr);
      set("a text of variable length", text_type(H5T_VARIABLE), scalar(), &text);
      const hsize_t four = 4;
      const std::int64_t array[4] = {5, 5, 5, 5};
      set("an array", ok(H5Tarray_create2(H5T_STD_I64LE, 1, &four)), scalar(), array);
      const hid_t compound = ok(H5Tcreate(H5T_COMPOUND, 8));
      ok(H5Tinsert(compound, "value", 0, H5T_STD_I64LE));
      set("a compound", compound, scalar(), array);
      set("a reference", H5T_STD_REF_OBJ, scalar(), array);
      refused("gone", [&](hid_t file) { ok(H5Adelete_by_name(file, used.object, used.name, H5P_DEFAULT)); });
    }
  }
  for (const char* name : {"format", "digest", "created", "world_size"}) {
    refused(name, [&](hid_t file) { ok(H5Adelete_by_name(file, "/", name, H5P_DEFAULT)); });
    refused(name, [&](hid_t file) {
      const char* const text = "lockstep";
      set_attribute(file, "/", name, text_type(H5T_VARIABLE), scalar(), &text);
    });
  }
  refused("a name of two lines", [](hid_t file) { set_integer(file, "/model", "two\nlines", 1); });
  refused("a text of 60,000 bytes", [](hid_t file) {
    set_attribute(file, "/model", "long", text_type(60'000), scalar(), std::string(60'000, 'x').data());
  });
}

BOOST_FIXTURE_TEST_CASE(what_is_information_only_may_change, Altered) {
  harmless("world_size", [](hid_t file) { set_integer(file, "/", "world_size", -7); });
  harmless("an attribute of the root", [](hid_t file) { set_integer(file, "/", "mine", 1); });
  harmless("an attribute of a tensor", [](hid_t file) { set_integer(file, "/model/a.bias", "mine", 1); });
  harmless("a note in provenance as h5py writes it", [](hid_t file) {
    const char* const text = "note";
    set_attribute(file, "/provenance", "note", text_type(H5T_VARIABLE), scalar(), &text);
  });
  harmless("no provenance", [](hid_t file) { ok(H5Ldelete(file, "provenance", H5P_DEFAULT)); });
  harmless("an array beside the groups",
           [](hid_t file) { set_dataset(file, "mine", H5T_IEEE_F32LE, simple({3})); });
}

BOOST_FIXTURE_TEST_CASE(links_are_never_followed_out_of_the_file_nor_in_circles, Altered) {
  for (const char* name : {"model/a.weight", "model", "config", "manifest", "ema", "optimizer/exp_avg"}) {
    BOOST_TEST_CONTEXT(name) {
      const auto instead = [&](const char* what, const std::function<void(hid_t)>& link) {
        refused(what, [&](hid_t file) {
          ok(H5Ldelete(file, name, H5P_DEFAULT));
          link(file);
        });
      };
      const auto external = [&](const char* what, const std::string& target) {
        instead(what, [&](hid_t file) {
          ok(H5Lcreate_external(target.c_str(), name, file, name, H5P_DEFAULT, H5P_DEFAULT));
        });
      };
      instead("nothing", [](hid_t) {});
      external("the same of another checkpoint", other);
      external("a file of the system", "/etc/passwd");
      external("a named pipe", pipe);
      external("a folder", folder.path().string());
      external("the file itself", path);
      instead("a soft link to itself", [&](hid_t file) {
        ok(H5Lcreate_soft((std::string("/") + name).c_str(), file, name, H5P_DEFAULT, H5P_DEFAULT));
      });
      instead("a soft link through an external one", [&](hid_t file) {
        ok(H5Lcreate_external(pipe.c_str(), "/", file, "out", H5P_DEFAULT, H5P_DEFAULT));
        ok(H5Lcreate_soft((std::string("/out/") + name).c_str(), file, name, H5P_DEFAULT, H5P_DEFAULT));
      });
      instead("a named type", [&](hid_t file) {
        ok(H5Tcommit2(file, name, ok(H5Tcopy(H5T_IEEE_F32LE)), H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT));
      });
    }
  }
  harmless("provenance elsewhere", [&](hid_t file) {
    ok(H5Ldelete(file, "provenance", H5P_DEFAULT));
    ok(H5Lcreate_external(pipe.c_str(), "/", file, "provenance", H5P_DEFAULT, H5P_DEFAULT));
  });
  harmless("a link out of the file beside the groups", [&](hid_t file) {
    ok(H5Lcreate_external(pipe.c_str(), "/", file, "mine", H5P_DEFAULT, H5P_DEFAULT));
  });
  refused("a circle of soft links", [](hid_t file) {
    ok(H5Lcreate_soft("/model/two", file, "model/one", H5P_DEFAULT, H5P_DEFAULT));
    ok(H5Lcreate_soft("/model/one", file, "model/two", H5P_DEFAULT, H5P_DEFAULT));
  });
  refused("a group within itself, sixty times", [](hid_t file) {
    for (int i = 0; i < 60; ++i) {
      const std::string name = "model/again" + std::to_string(i);
      ok(H5Lcreate_hard(file, "model", file, name.c_str(), H5P_DEFAULT, H5P_DEFAULT));
    }
  });
  refused("the root within itself, sixty times", [](hid_t file) {
    for (int i = 0; i < 60; ++i)
      ok(H5Lcreate_hard(file, "/", file, ("again" + std::to_string(i)).c_str(), H5P_DEFAULT, H5P_DEFAULT));
  });
  refused("a thousand groups one in the other", [](hid_t file) {
    std::string name = "model";
    for (int i = 0; i < 1000; ++i)
      ok(H5Gclose(ok(H5Gcreate2(file, (name += "/g").c_str(), H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT))));
  });
}

BOOST_FIXTURE_TEST_CASE(tensors_moved_renamed_doubled_or_added_are_refused, Altered) {
  refused("renamed", [](hid_t file) {
    ok(H5Lmove(file, "model/a.bias", file, "model/a.bia", H5P_DEFAULT, H5P_DEFAULT));
  });
  refused("a name of two lines", [](hid_t file) {
    ok(H5Lmove(file, "model/a.bias", file, "model/a\nbias", H5P_DEFAULT, H5P_DEFAULT));
  });
  refused("two exchanged", [](hid_t file) {
    ok(H5Lmove(file, "model/a.weight", file, "w", H5P_DEFAULT, H5P_DEFAULT));
    ok(H5Lmove(file, "ema/0.5/a.weight", file, "model/a.weight", H5P_DEFAULT, H5P_DEFAULT));
    ok(H5Lmove(file, "w", file, "ema/0.5/a.weight", H5P_DEFAULT, H5P_DEFAULT));
  });
  refused("one under two names", [](hid_t file) {
    ok(H5Ldelete(file, "ema/0.5/a.weight", H5P_DEFAULT));
    ok(H5Lcreate_hard(file, "model/a.weight", file, "ema/0.5/a.weight", H5P_DEFAULT, H5P_DEFAULT));
  });
  refused("an empty group more, with an attribute", [](hid_t file) {
    ok(H5Gclose(ok(H5Gcreate2(file, "hook", H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT))));
    set_integer(file, "hook", "steps", 1);
  });
  refused("a tensor more",
          [](hid_t file) { set_dataset(file, "optimizer/exp_avg/more", H5T_IEEE_F32LE, simple({3})); });
  refused("a section renamed",
          [](hid_t file) { ok(H5Lmove(file, "ema/0.5", file, "ema/0.6", H5P_DEFAULT, H5P_DEFAULT)); });
}

BOOST_FIXTURE_TEST_CASE(tensors_stored_or_shaped_otherwise_are_refused, Altered) {
  const auto instead = [&](const char* what, hid_t type, std::vector<hsize_t> shape, const auto& properties) {
    refused(what,
            [&](hid_t file) { set_dataset(file, "model/a.weight", type, simple(shape), properties()); });
  };
  const auto early = [] {
    const hid_t properties = creation();
    ok(H5Pset_alloc_time(properties, H5D_ALLOC_TIME_EARLY));
    return properties;
  };
  refused("other values", [&](hid_t file) {
    const hid_t dataset = set_dataset(file, "model/a.weight", H5T_IEEE_F32LE, simple({40, 9}), early());
    const std::vector<float> values(360, 1.5f);
    ok(H5Dwrite(dataset, H5T_IEEE_F32LE, H5S_ALL, H5S_ALL, H5P_DEFAULT, values.data()));
  });
  instead("never written", H5T_IEEE_F32LE, {40, 9}, creation);
  instead("another shape of the same size", H5T_IEEE_F32LE, {9, 40}, early);
  instead("another number of dimensions", H5T_IEEE_F32LE, {360}, early);
  instead("thirty-two dimensions", H5T_IEEE_F32LE, std::vector<hsize_t>(32, 1), early);
  instead("no elements", H5T_IEEE_F32LE, {0, 9}, early);
  instead("four exabytes", H5T_IEEE_F32LE, {hsize_t{1} << 30, hsize_t{1} << 30}, creation);
  instead("big endian", H5T_IEEE_F32BE, {40, 9}, early);
  instead("double", H5T_IEEE_F64LE, {40, 9}, early);
  instead("integers", H5T_STD_I32LE, {40, 9}, early);
  instead("texts", text_type(4), {40, 9}, early);
  instead("texts of variable length", text_type(H5T_VARIABLE), {40, 9}, early);
  instead("references", H5T_STD_REF_OBJ, {40, 9}, early);
  instead("chunks", H5T_IEEE_F32LE, {40, 9}, [] { return chunked({40, 9}, false); });
  instead("compressed chunks", H5T_IEEE_F32LE, {40, 9}, [] { return chunked({40, 9}, true); });
  instead("exabytes of chunks", H5T_IEEE_F32LE, {hsize_t{1} << 30, hsize_t{1} << 30}, [] {
    return chunked({1 << 14, 1 << 14}, true);
  });
  instead("within the header", H5T_IEEE_F32LE, {40, 9}, [] {
    const hid_t properties = creation();
    ok(H5Pset_layout(properties, H5D_COMPACT));
    return properties;
  });
  for (const std::string& target : {other, std::string("/etc/passwd"), pipe}) {
    instead("in another file", H5T_IEEE_F32LE, {40, 9}, [&] {
      const hid_t properties = creation();
      ok(H5Pset_external(properties, target.c_str(), 0, 40 * 9 * 4));
      return properties;
    });
  }
  refused("without a dataspace",
          [](hid_t file) { set_dataset(file, "model/a.weight", H5T_IEEE_F32LE, ok(H5Screate(H5S_NULL))); });
  for (const std::string& target : {other, std::string("/etc/passwd"), pipe, std::string(".")}) {
    refused("made of another file", [&](hid_t file) {
      const hsize_t extents[] = {40, 9}, most[] = {H5S_UNLIMITED, 9}, start[] = {0, 0}, one[] = {1, 1},
                    block[] = {H5S_UNLIMITED, 9};
      const hid_t virtual_space = ok(H5Screate_simple(2, extents, most)),
                  source_space = ok(H5Screate_simple(2, extents, most)), properties = creation();
      ok(H5Sselect_hyperslab(virtual_space, H5S_SELECT_SET, start, nullptr, one, block));
      ok(H5Sselect_hyperslab(source_space, H5S_SELECT_SET, start, nullptr, one, block));
      ok(H5Pset_virtual(properties, virtual_space, target.c_str(), "/ema/0.5/a.weight", source_space));
      set_dataset(file, "model/a.weight", H5T_IEEE_F32LE, virtual_space, properties);
    });
  }
}

BOOST_FIXTURE_TEST_CASE(configuration_and_manifest_that_are_no_plain_text_are_refused, Altered) {
  for (const char* name : {"config", "manifest"}) {
    BOOST_TEST_CONTEXT(name) {
      refused("empty", [&](hid_t file) { set_text(file, name, ""); });
      refused("another", [&](hid_t file) { set_text(file, name, "[train]\nsteps = 11\n"); });
      refused("numbers", [&](hid_t file) { set_dataset(file, name, H5T_STD_U8LE, simple({64})); });
      refused("never written",
              [&](hid_t file) { set_dataset(file, name, text_type(std::size_t{1} << 31), scalar()); });
      refused("of variable length", [&](hid_t file) {
        const hid_t type = text_type(H5T_VARIABLE), dataset = set_dataset(file, name, type, scalar());
        const char* const text = "[train]\nsteps = 10\n";
        ok(H5Dwrite(dataset, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, &text));
      });
      refused("half a gigabyte in a few bytes", [&](hid_t file) {
        const std::size_t claimed = std::size_t{1} << 29;
        const hid_t dataset = set_dataset(file, name, text_type(claimed), simple({1}), chunked({1}, true));
        const std::string chunk = "not what it claims to be";
        ok(H5Dwrite_chunk(dataset, H5P_DEFAULT, 0, std::vector<hsize_t>{0}.data(), chunk.size(),
                          chunk.data()));
      });
    }
  }
}

BOOST_FIXTURE_TEST_CASE(manifests_and_positions_that_lie_under_a_right_digest_are_refused, Altered) {
  const auto manifest = [&](const char* what,
                            const std::function<void(std::vector<lc::TensorEntry>&)>& change) {
    refused_although_sealed(what, [&](hid_t file, lc::FileIndex& index) {
      change(index.tensors);
      set_text(file, "manifest", lc::manifest_text(index.tensors));
    });
  };
  using Tensors = std::vector<lc::TensorEntry>;
  manifest("a name twice", [](Tensors& tensors) { tensors.push_back(tensors[0]); });
  manifest("a name less", [](Tensors& tensors) { tensors.pop_back(); });
  manifest("none at all", [](Tensors& tensors) { tensors.clear(); });
  manifest("a name that is not there", [](Tensors& tensors) { tensors[0].name += "x"; });
  manifest("a name of the configuration", [](Tensors& tensors) { tensors[0].group = "config"; });
  manifest("a hundred thousand names", [](Tensors& tensors) { tensors.resize(100'000, tensors[0]); });
  manifest("a name of a megabyte", [](Tensors& tensors) { tensors[0].name.assign(1 << 20, 'n'); });
  manifest("another dtype of the same size", [](Tensors& tensors) { tensors[0].dtype = DType::int32; });
  manifest("more bytes", [](Tensors& tensors) { tensors[0].bytes += 4; });
  manifest("all bytes there are", [](Tensors& tensors) { tensors[0].bytes = ~std::uint64_t{0}; });
  manifest("another shape of the same size", [](Tensors& tensors) { tensors[0].shape = Shape{9, 40}; });
  manifest("an absurd shape", [](Tensors& tensors) {
    tensors[0].shape = Shape{std::int64_t{1} << 30, std::int64_t{1} << 29};
  });
  manifest("another digest", [](Tensors& tensors) { tensors[0].digest ^= 1; });
  manifest("two digests exchanged",
           [](Tensors& tensors) { std::swap(tensors[0].digest, tensors[1].digest); });

  using Limits = std::numeric_limits<std::int64_t>;
  for (const std::int64_t value : {std::int64_t{-1}, Limits::min(), Limits::max()}) {
    refused_although_sealed("step", [&](hid_t file, lc::FileIndex& index) {
      index.position.step = value;
      set_integer(file, "/", "step", value);
    });
    refused_although_sealed("samples", [&](hid_t file, lc::FileIndex& index) {
      index.position.samples = value;
      set_integer(file, "/", "samples", value);
    });
  }
}

BOOST_FIXTURE_TEST_CASE(lines_that_are_no_tensor_are_refused_by_number, SmallRun) {
  const std::string digest = "0123456789abcdef";
  const std::string good = digest + " 8 float32 [2] /model/a\n";
  BOOST_TEST(lc::parse_manifest(good, "m").size() == 1u);
  for (const std::string& bad : std::initializer_list<std::string>{
           digest + " 8 float32 [2] /model/a", std::string("\n"), digest + " 8 float32 [2] model/a\n",
           digest + " 8 float32 [2] /a\n", digest + " 8 float32 [2] /model/\n",
           digest + " 8 float33 [2] /m/a\n", digest + " 8 float32 [-2] /m/a\n",
           digest + " 8 float32 [2,] /m/a\n", digest + " 8 float32 2 /m/a\n",
           digest + " 8 float32 [9223372036854775808] /m/a\n",
           digest + " 8 float32 [9223372036854775807,9223372036854775807] /m/a\n",
           digest + " -8 float32 [2] /m/a\n", digest + " 18446744073709551616 float32 [2] /m/a\n",
           digest + " 8 float32 [1,1,1,1,1,1,1] /m/a\n", "0123456789abcdeg 8 float32 [2] /m/a\n",
           "123 8 float32 [2] /m/a\n", digest + " 8 float32 [,] /m/a\n", digest + "  8 float32 [2] /m/a\n",
           digest + " 8 float32 [ 2] /m/a\n"}) {
    BOOST_TEST_CONTEXT(bad) {
      BOOST_CHECK_EXCEPTION(lc::parse_manifest(good + bad, "m"), DataError,
                            mentions("m: /manifest: line 2 is malformed"));
    }
  }
}

BOOST_AUTO_TEST_SUITE_END()
}  // namespace
}  // namespace lockstep::test
