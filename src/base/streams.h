// Safe use of the standard streams, which may be closed, full, or a pipe without a reader.
#pragma once

#include <string>
#include <string_view>

namespace lockstep {

/// Call once, before anything is opened. Opens /dev/null in place of closed standard descriptors, so that no
/// file gets their numbers. Ignores SIGPIPE and SIGXFSZ, so that such writes return errors.
void protect_standard_streams();

/// For a process whose launcher copies standard error, a pipe, to the terminal of this name: it counts as
/// standard error's terminal from then on. Other pipes, files and names have no effect.
void find_terminal_behind(const std::string& name);
/// Whether standard error is a terminal that can redraw a line (TERM is not dumb).
bool standard_error_redraws();
/// Columns of that terminal; 80 if unknown.
int standard_error_columns();
/// Draws `line`, which must be shorter than the terminal is wide, over the last one. The next text on
/// standard error erases it. Any thread.
void draw_line(std::string_view line) noexcept;
/// Keeps the drawn line, if any: later text begins below it. Any thread.
void keep_drawn_line() noexcept;

/// Writes to standard error, in place of a drawn line. If it is full (a stopped terminal, a full pipe), waits
/// up to `wait_s`, and drops the rest. False if anything was dropped. Any thread.
bool write_standard_error(std::string_view text, double wait_s = 0) noexcept;

/// Why text was dropped the first time; empty: none was dropped.
std::string standard_error_trouble();

}  // namespace lockstep
