// A table of what is known of memory, page by page.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <unordered_map>
#include <utility>

namespace lockstep::emulated_gpu {

template <class Page, std::size_t page_bytes>
class Pages {
 public:
  /// That which holds the byte; made where there is none.
  Page& of(std::uintptr_t byte) {
    const std::uintptr_t number = byte / page_bytes;
    auto& [recent, page] = recent_[number % recent_.size()];
    if (!page || recent != number) {
      std::unique_ptr<Page>& found = pages_[number];
      if (!found) found = std::make_unique<Page>();
      recent = number;
      page = found.get();
    }
    return *page;
  }
  std::size_t size() const { return pages_.size(); }
  void clear() {
    pages_.clear();
    recent_ = {};
  }

 private:
  std::unordered_map<std::uintptr_t, std::unique_ptr<Page>> pages_;
  std::array<std::pair<std::uintptr_t, Page*>, 64> recent_{};  ///< by the end of their number
};

}  // namespace lockstep::emulated_gpu
