// Storage that is full or read-only, for real: a small file system in memory, where this process may mount
// one.
#include <sys/mount.h>

#include <boost/test/unit_test.hpp>

#include "checkpoint/sample.h"
#include "lockstep/base/error.h"
#include "lockstep/checkpoint/inspect.h"
#include "lockstep/checkpoint/store.h"
#include "support/world.h"

namespace lockstep::test {
namespace {
BOOST_AUTO_TEST_SUITE(full_storage, *ranks(1, 2))

namespace lc = checkpoint;

/// A file system of 8 MiB under the shared folder.
class SmallDisk {
 public:
  SmallDisk(comm::HostGroup& world, std::string path) : world_(world), path_(std::move(path)) {
    if (world.rank() == 0) {
      std::filesystem::create_directory(path_);
      mounted_ = ::mount("tmpfs", path_.c_str(), "tmpfs", 0, "size=8m") == 0;
    }
    world.broadcast(&mounted_, sizeof mounted_, 0);
    if (!mounted_) BOOST_TEST_MESSAGE("skipped: this process may not mount a file system");
  }
  ~SmallDisk() {
    world_.barrier();
    if (!read_only_.empty()) ::umount(read_only_.c_str());
    if (mounted_ && world_.rank() == 0) ::umount2(path_.c_str(), MNT_DETACH);
  }
  bool mounted() const { return mounted_; }
  /// A directory in it, by a mount of its own: the lock file next to it stays open for writing.
  void make_read_only(const std::string& directory) {
    if (world_.rank() == 0) {
      read_only_ = directory;
      const char* path = read_only_.c_str();
      BOOST_REQUIRE(::mount(path, path, nullptr, MS_BIND, nullptr) == 0);
      BOOST_REQUIRE(::mount(nullptr, path, nullptr, MS_REMOUNT | MS_BIND | MS_RDONLY, nullptr) == 0);
    }
    world_.barrier();
  }

 private:
  comm::HostGroup& world_;
  std::string path_, read_only_;
  bool mounted_ = false;
};

BOOST_AUTO_TEST_CASE(full_or_read_only_storage_is_a_data_error_and_leaves_earlier_checkpoints) {
  comm::HostGroup& world = test::world();
  SharedFolder folder(world);
  SmallDisk disk(world, folder.file("disk"));
  if (!disk.mounted()) {
    BOOST_TEST(true);
    return;
  }
  lc::StateDict state_dict = awkward_state_dict();  // 7 MiB
  lc::Store store(folder.file("disk/run"), world);
  const std::string saved = store.save_state_dict(1, state_dict);
  BOOST_CHECK_EXCEPTION(store.save_state_dict(2, state_dict), DataError,
                        mentions(".step-000000002.h5.", ".tmp", "No space left on device"));
  world.barrier();
  BOOST_TEST(names_in(store.directory()) == (std::vector<std::string>{"latest", "step-000000001.h5"}),
             boost::test_tools::per_element());
  disk.make_read_only(store.directory());
  BOOST_CHECK_EXCEPTION(store.save_state_dict(2, state_dict), DataError, mentions("Read-only file system"));
  BOOST_TEST(lc::verify(saved, world).whole());
}

BOOST_AUTO_TEST_SUITE_END()
}  // namespace
}  // namespace lockstep::test
