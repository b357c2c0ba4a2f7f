# Packages for Debian: `cmake --build build/package --target deb`, or `cpack -G DEB` in a build folder whose program and library are
# built. They are written to packages/ of the build folder:
#   lockstep_VERSION_ARCH.deb          the program, its manual and completion, job scripts, examples, documents
#   liblockstep-dev_VERSION_ARCH.deb   headers and the library, for programs of one's own
#   liblockstep0.1_VERSION_ARCH.deb    only with BUILD_SHARED_LIBS: the library that both use
# packaging/debian/finish.cmake adds what Debian asks of every package. They are for Open MPI, Debian's default.
if(NOT LOCKSTEP_HAS_OPEN_MPI)
  lockstep_refused_target(deb "Packages for Debian ask for Debian's default MPI, Open MPI, and this build has another one")
  return()
endif()
set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME ${PROJECT_NAME})
set(CPACK_PACKAGE_VERSION ${PROJECT_VERSION})
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY ${PROJECT_DESCRIPTION})
set(CPACK_PACKAGE_DESCRIPTION "Lockstep trains neural networks on the CPUs or GPUs of a cluster, with MPI
and NCCL. The bits of the result do not depend on the number of ranks, and a
run that is killed or preempted resumes to the same bits.")
set(CPACK_PACKAGE_VENDOR "The Lockstep authors")
set(CPACK_RESOURCE_FILE_LICENSE ${PROJECT_SOURCE_DIR}/LICENSE)
set(CPACK_PACKAGE_CONTACT "The Lockstep authors <lockstep@example.org>")  # cpack -D CPACK_PACKAGE_CONTACT="NAME <MAIL>": who packages it
set(CPACK_PACKAGE_DIRECTORY ${PROJECT_BINARY_DIR}/packages)
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_INSTALL_DEFAULT_DIRECTORY_PERMISSIONS OWNER_READ OWNER_WRITE OWNER_EXECUTE GROUP_READ GROUP_EXECUTE WORLD_READ WORLD_EXECUTE)

set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_COMPONENTS_ALL program development)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_COMPRESSION_TYPE xz)
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)
set(CPACK_PRE_BUILD_SCRIPTS ${PROJECT_SOURCE_DIR}/packaging/debian/finish.cmake)

set(CPACK_DEBIAN_PROGRAM_PACKAGE_NAME lockstep)
set(CPACK_COMPONENT_PROGRAM_DESCRIPTION "${CPACK_PACKAGE_DESCRIPTION}")
set(CPACK_DEBIAN_PROGRAM_PACKAGE_SECTION science)
set(CPACK_DEBIAN_PROGRAM_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PROGRAM_PACKAGE_DEPENDS openmpi-bin)  # mpirun
set(CPACK_DEBIAN_PROGRAM_PACKAGE_RECOMMENDS "hdf5-tools, python3-h5py")
set(CPACK_DEBIAN_PROGRAM_PACKAGE_SUGGESTS "slurm-client, liblockstep-dev")

# What jobs/setup.sh installs to build Lockstep is what programs that link liblockstep.a need, but for the tools.
file(READ jobs/setup.sh setup)
string(REGEX MATCH "\nbuild_packages=\\(([^)]*)\\)" setup "${setup}")
string(REGEX REPLACE "[ \n]+" ";" development_packages "${CMAKE_MATCH_1}")
list(FILTER development_packages INCLUDE REGEX "^(.*-dev|pkg-config)$")
list(REMOVE_ITEM development_packages libeigen3-dev)  # headers of which none of ours knows
list(TRANSFORM development_packages REPLACE "^pkg-config$" pkgconf)  # which the older name stands for
if(LOCKSTEP_PRODUCTS STREQUAL openblas)
  list(APPEND development_packages libopenblas-openmp-dev)
endif()
if(BUILD_SHARED_LIBS)
  set(library_package liblockstep${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR})
  set(needs_library "${library_package} (= ${PROJECT_VERSION})")
  set(development_packages ${needs_library} libfmt-dev nlohmann-json3-dev)
  list(APPEND CPACK_COMPONENTS_ALL development-runtime)
  string(APPEND CPACK_DEBIAN_PROGRAM_PACKAGE_DEPENDS ", ${needs_library}")
  set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS_PRIVATE_DIRS ${PROJECT_BINARY_DIR}/development)  # where dpkg-shlibdeps finds liblockstep.so
  set(CPACK_DEBIAN_DEVELOPMENT-RUNTIME_PACKAGE_NAME ${library_package})
  set(CPACK_COMPONENT_DEVELOPMENT-RUNTIME_DESCRIPTION "${CPACK_PACKAGE_DESCRIPTION}
This package has the library that the program and programs of your own load.")
  set(CPACK_DEBIAN_DEVELOPMENT-RUNTIME_PACKAGE_SECTION libs)
  set(CPACK_DEBIAN_DEVELOPMENT-RUNTIME_PACKAGE_SHLIBDEPS ON)
  set(CPACK_DEBIAN_DEVELOPMENT-RUNTIME_PACKAGE_GENERATE_SHLIBS ON)
endif()
list(JOIN development_packages ", " CPACK_DEBIAN_DEVELOPMENT_PACKAGE_DEPENDS)
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_NAME liblockstep-dev)
set(CPACK_COMPONENT_DEVELOPMENT_DESCRIPTION "${CPACK_PACKAGE_DESCRIPTION}
This package has what programs of your own are built with.")
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_SECTION libdevel)

include(CPack)
add_custom_target(deb ${CMAKE_CPACK_COMMAND} -G DEB WORKING_DIRECTORY ${PROJECT_BINARY_DIR} USES_TERMINAL VERBATIM)
add_dependencies(deb lockstep_program lockstep)
