// Private to the library: a page, one HTML file that needs no network: title, facts and footer as HTML, and a
// document (document.h) as JSON, which the page's script draws.
#pragma once

#include <cstddef>
#include <string>

#include "report/document.h"

namespace lockstep::report {

inline constexpr std::size_t max_page_bytes = 2'000'000;

/// The text of the page. `document` has a title, a lead, facts, sections and a footer; the page omits null
/// sections.
std::string to_html(json document);

/// UsageError if `out` exists and is not a page written by lockstep, or cannot be written. Call it before the
/// work.
void check_page(const std::string& out);
/// Writes the page; replaces an older page of this name. Errors of check_page().
void write_page(const std::string& out, const json& document);

}  // namespace lockstep::report
