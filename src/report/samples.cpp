// Samples that a run has made, as a strip over time.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <iterator>

#include "base/files.h"
#include "lockstep/base/error.h"
#include "report/page.h"

namespace lockstep::report {
namespace {

namespace fs = std::filesystem;

std::string base64(std::string_view bytes) {
  constexpr std::string_view letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string text;
  text.reserve((bytes.size() + 2) / 3 * 4);
  for (std::size_t b = 0; b < bytes.size(); b += 3) {
    const std::size_t count = std::min<std::size_t>(3, bytes.size() - b);
    std::uint32_t group = 0;
    for (std::size_t i = 0; i < 3; ++i)
      group = group << 8 | (i < count ? static_cast<unsigned char>(bytes[b + i]) : 0U);
    for (std::size_t i = 0; i < 4; ++i) text += i <= count ? letters[group >> (18 - 6 * i) & 63] : '=';
  }
  return text;
}

}  // namespace

std::string samples_html(const RunLog& run, std::size_t most_bytes) {
  std::vector<fs::path> files;
  std::error_code gone;
  for (fs::directory_iterator entry(run.path + "/samples", gone), end; !gone && entry != end;
       entry.increment(gone)) {
    const std::string kind = entry->path().extension();
    if ((kind == ".png" || kind == ".txt") && entry->path().filename().string()[0] != '.')
      files.push_back(entry->path());
  }
  std::ranges::sort(files);  // steps in names have leading zeros
  constexpr std::size_t most_files = 40;
  const std::size_t all = files.size(), few = std::min(all, most_files);
  std::string html;
  std::size_t shown = 0;
  for (std::size_t i = 0; i < few; ++i) {
    const fs::path& file = files[few == 1 ? 0 : i * (all - 1) / (few - 1)];
    const std::string name = escape_html(file.stem().string());
    try {
      const std::string bytes =
          read_text(file, most_bytes / few * 3 / 4 * (i + 1) -
                              std::min(most_bytes / few * 3 / 4 * i, html.size() * 3 / 4));
      html += "<figure>";
      if (file.extension() == ".png")
        html += fmt::format(R"(<img alt="{}" src="data:image/png;base64,{}">)", name, base64(bytes));
      else
        html += "<pre>" + escape_html(bytes.substr(0, 4000)) + "</pre>";
      html += "<figcaption><span>" + name + "</span></figcaption></figure>\n";
      ++shown;
    } catch (const Error&) {  // too large, or removed since: it is counted as not shown
    }
  }
  if (shown == 0) return "";
  const std::string note =
      shown < all ? fmt::format("<p class=\"note\">{} of {} samples.</p>", shown, all) : "";
  return "<div class=\"strip\">" + html + "</div>" + note;
}

}  // namespace lockstep::report
