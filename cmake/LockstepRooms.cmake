# lockstep_room(NAME SOURCES file... USES room... LIBRARIES target...): one static library a room.
# Sources lie in src/NAME. Public headers: include/lockstep/NAME; private ones stay beside the sources and are
# included as "NAME/file.h".

set(LOCKSTEP_WARNINGS -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wno-sign-conversion -Wnon-virtual-dtor
    -Woverloaded-virtual -Wimplicit-fallthrough)
# Clang does not know `#pragma GCC ivdep`: it looks at run time whether the arrays of a loop overlap, and vectorises as well.
list(APPEND LOCKSTEP_WARNINGS $<$<CXX_COMPILER_ID:Clang>:-Wno-unknown-pragmas>)
set_property(GLOBAL PROPERTY LOCKSTEP_ROOMS "")

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

function(lockstep_room name)
  cmake_parse_arguments(ROOM "" "" "SOURCES;USES;LIBRARIES" ${ARGN})
  add_library(lockstep_${name} STATIC ${ROOM_SOURCES})
  set(device_sources ${ROOM_SOURCES})
  list(FILTER device_sources INCLUDE REGEX "[.]cu$")
  if(device_sources)  # from CMake 3.31 on a unity build would group these, too
    set_source_files_properties(${device_sources} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
  endif()
  target_include_directories(lockstep_${name} PUBLIC ${PROJECT_SOURCE_DIR}/include
                             PRIVATE ${PROJECT_SOURCE_DIR}/src ${PROJECT_BINARY_DIR}/generated)
  list(TRANSFORM ROOM_USES PREPEND lockstep_)
  target_link_libraries(lockstep_${name} PUBLIC ${ROOM_USES} ${ROOM_LIBRARIES} PRIVATE lockstep_options)
  set_property(GLOBAL APPEND PROPERTY LOCKSTEP_ROOMS ${name})
endfunction()
