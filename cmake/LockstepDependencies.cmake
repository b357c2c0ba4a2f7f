# Every outside library, found once; the same file serves the build and the installed package.
find_package(Threads REQUIRED)
find_package(OpenMP REQUIRED COMPONENTS CXX)
find_package(MPI REQUIRED COMPONENTS C)
# oneDNN by header and library: Debian's CMake package of it asks for the OpenCL headers, which nothing here needs.
find_path(DNNL_INCLUDE_DIR dnnl.h REQUIRED)
find_library(DNNL_LIBRARY dnnl REQUIRED)
if(NOT TARGET lockstep::dnnl)
  add_library(lockstep::dnnl UNKNOWN IMPORTED)
  set_target_properties(lockstep::dnnl PROPERTIES IMPORTED_LOCATION ${DNNL_LIBRARY}
                        INTERFACE_INCLUDE_DIRECTORIES ${DNNL_INCLUDE_DIR})
endif()
# Products on other processors than x86-64 are OpenBLAS': there oneDNN has plain loops, unless it is built with a library of Arm.
set(LOCKSTEP_PRODUCTS onednn)
if(NOT CMAKE_SYSTEM_PROCESSOR STREQUAL "x86_64")
  set(LOCKSTEP_PRODUCTS openblas)
endif()
find_package(fmt REQUIRED)
find_package(spdlog REQUIRED)
find_package(nlohmann_json REQUIRED)
find_package(ZLIB REQUIRED)
find_package(PNG REQUIRED)
find_package(JPEG REQUIRED)  # libjpeg-turbo: data/jpeg_file.cpp decodes parts of pictures
find_package(Boost 1.74 REQUIRED CONFIG COMPONENTS program_options)
find_package(PkgConfig REQUIRED)
pkg_check_modules(hwloc REQUIRED IMPORTED_TARGET hwloc>=2.1)
if(LOCKSTEP_PRODUCTS STREQUAL "openblas")
  pkg_check_modules(openblas REQUIRED IMPORTED_TARGET openblas)
endif()
pkg_check_modules(xxhash REQUIRED IMPORTED_TARGET libxxhash)
pkg_check_modules(pcre2 REQUIRED IMPORTED_TARGET libpcre2-8)
pkg_check_modules(utf8proc REQUIRED IMPORTED_TARGET libutf8proc)
set_target_properties(PkgConfig::utf8proc PROPERTIES INTERFACE_COMPILE_OPTIONS "")  # options of its own build
# Any build of HDF5: one rank writes a file. `hdf5` is what a module or prefix has, the others are Debian's names.
pkg_search_module(hdf5 REQUIRED IMPORTED_TARGET hdf5 hdf5-serial hdf5-openmpi)
