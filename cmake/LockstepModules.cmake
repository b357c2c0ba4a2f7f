# lockstep_module(NAME SOURCES file... USES module... LIBRARIES target...): one static library a module.
# Sources are in src/NAME, public headers in include/lockstep/NAME; private headers are next to the sources and
# included as "NAME/file.h".

set(LOCKSTEP_WARNINGS -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wno-sign-conversion -Wnon-virtual-dtor
    -Woverloaded-virtual -Wimplicit-fallthrough)
# Clang does not know `#pragma GCC ivdep`: it looks at run time whether the arrays of a loop overlap, and vectorises as well.
list(APPEND LOCKSTEP_WARNINGS $<$<CXX_COMPILER_ID:Clang>:-Wno-unknown-pragmas>)
set_property(GLOBAL PROPERTY LOCKSTEP_MODULES "")

add_library(lockstep_options INTERFACE)
target_compile_features(lockstep_options INTERFACE cxx_std_20)
# No -ffast-math anywhere: bits are a promise. These two only let loops vectorise: nobody reads errno or traps.
target_compile_options(lockstep_options INTERFACE "$<$<COMPILE_LANGUAGE:CXX>:${LOCKSTEP_WARNINGS};-fno-math-errno;-fno-trapping-math>"
                       "$<$<AND:$<COMPILE_LANGUAGE:CXX>,$<BOOL:${LOCKSTEP_WERROR}>>:-Werror>")
if(LOCKSTEP_ARCH)
  target_compile_options(lockstep_options INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-march=${LOCKSTEP_ARCH}>)
endif()
# nvcc hands warnings to the host compiler; constexpr functions (random.h) serve on the device, too. Small kernels for several GPUs are
# compressed as well, to a fifth: every program has them all.
target_compile_options(lockstep_options INTERFACE
  "$<$<COMPILE_LANGUAGE:CUDA>:--expt-relaxed-constexpr;-Xfatbin=-compress-all;-Xcompiler=-Wall,-Wextra,-Wshadow,-Wconversion,-Wno-sign-conversion>"
  "$<$<AND:$<COMPILE_LANGUAGE:CUDA>,$<BOOL:${LOCKSTEP_WERROR}>>:-Werror=all-warnings>")
if(LOCKSTEP_SANITIZE)
  target_compile_options(lockstep_options INTERFACE
                         "$<$<COMPILE_LANGUAGE:CXX>:-fsanitize=${LOCKSTEP_SANITIZE};-fno-omit-frame-pointer>")
  target_link_options(lockstep_options INTERFACE -fsanitize=${LOCKSTEP_SANITIZE})
endif()

# Programs look for libraries in ../lib of their own folder: nothing is there, except in a bundle (LockstepBundle.cmake). As DT_RPATH,
# which, unlike DT_RUNPATH, also serves what those libraries need.
set(CMAKE_BUILD_RPATH "$ORIGIN/../lib")
target_link_options(lockstep_options INTERFACE LINKER:--disable-new-dtags)

function(lockstep_module name)
  cmake_parse_arguments(MODULE "" "" "SOURCES;USES;LIBRARIES" ${ARGN})
  add_library(lockstep_${name} STATIC ${MODULE_SOURCES})
  set(device_sources ${MODULE_SOURCES})
  list(FILTER device_sources INCLUDE REGEX "[.]cu$")
  if(device_sources)  # from CMake 3.31 on a unity build would group these, too
    set_source_files_properties(${device_sources} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
  endif()
  target_include_directories(lockstep_${name} PUBLIC ${PROJECT_SOURCE_DIR}/include
                             PRIVATE ${PROJECT_SOURCE_DIR}/src ${PROJECT_BINARY_DIR}/generated)
  list(TRANSFORM MODULE_USES PREPEND lockstep_)
  target_link_libraries(lockstep_${name} PUBLIC ${MODULE_USES} ${MODULE_LIBRARIES} PRIVATE lockstep_options)
  set_property(GLOBAL APPEND PROPERTY LOCKSTEP_MODULES ${name})
endfunction()
