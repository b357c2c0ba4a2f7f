// Private to the library: the style and the script of a page. CMake makes their source of src/report/assets/.
#pragma once

namespace lockstep::report {

extern const char* const page_style;
extern const char* const page_script;

}  // namespace lockstep::report
