# The installed product: the library (all modules below the command line), headers, the program, its data and manual, and
# the CMake and pkg-config files that let another program find it.
include(CMakePackageConfigHelpers)

# lockstep_library(TARGET STATIC|SHARED COMPONENT [EXCLUDE_FROM_ALL]): liblockstep.a or liblockstep.so of all modules, and its
# installation. COMPONENT has all that programs are built with, COMPONENT-runtime the file that they load. EXCLUDE_FROM_ALL: installed
# only where the component is asked for.
function(lockstep_library target type component)
  set(excluded ${ARGN})
  set(made ${PROJECT_BINARY_DIR}/${component})
  add_library(${target} ${type})
  # A program that links liblockstep.a links all that the library uses. With liblockstep.so it links what the public headers use.
  set(header_libraries fmt::fmt nlohmann_json::nlohmann_json)
  get_property(modules GLOBAL PROPERTY LOCKSTEP_MODULES)
  foreach(module ${modules})
    target_sources(${target} PRIVATE $<TARGET_OBJECTS:lockstep_${module}>)
    get_target_property(libraries lockstep_${module} LINK_LIBRARIES)
    list(FILTER libraries EXCLUDE REGEX "^lockstep_")
    foreach(library ${libraries})
      if(type STREQUAL SHARED AND NOT library IN_LIST header_libraries)
        target_link_libraries(${target} PRIVATE $<BUILD_INTERFACE:${library}>)
      else()
        target_link_libraries(${target} PUBLIC ${library})
      endif()
    endforeach()
  endforeach()
  # Until version 1.0 a minor version may change the binary interface.
  set_target_properties(${target} PROPERTIES LINKER_LANGUAGE CXX OUTPUT_NAME lockstep EXPORT_NAME lockstep VERSION ${PROJECT_VERSION}
                        SOVERSION ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR} ARCHIVE_OUTPUT_DIRECTORY ${made}
                        LIBRARY_OUTPUT_DIRECTORY ${made})
  target_compile_features(${target} INTERFACE cxx_std_20)
  target_include_directories(${target} INTERFACE $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include>
                             $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
  if(type STREQUAL SHARED)
    set(exports ${PROJECT_SOURCE_DIR}/cmake/lockstep.map)
    target_link_options(${target} PRIVATE LINKER:--version-script=${exports})
    set_target_properties(${target} PROPERTIES LINK_DEPENDS ${exports})
    if(LOCKSTEP_SANITIZE)
      target_link_options(${target} PRIVATE -fsanitize=${LOCKSTEP_SANITIZE})
    else()
      target_link_options(${target} PRIVATE LINKER:--no-undefined)
    endif()
  endif()

  set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/Lockstep)
  install(TARGETS ${target} EXPORT ${target}-export ${excluded}
          ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT ${component}
          LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT ${component}-runtime NAMELINK_COMPONENT ${component})
  install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/lockstep DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} COMPONENT ${component} ${excluded})
  install(EXPORT ${target}-export FILE LockstepTargets.cmake NAMESPACE Lockstep:: DESTINATION ${package_dir} COMPONENT ${component}
          ${excluded})
  set(LOCKSTEP_LIBRARY_TYPE ${type})
  configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/LockstepConfig.cmake.in ${made}/LockstepConfig.cmake
                                INSTALL_DESTINATION ${package_dir})
  write_basic_package_version_file(${made}/LockstepConfigVersion.cmake COMPATIBILITY SameMinorVersion)
  # Relative to the file itself, so that `cmake --install --prefix` may put it anywhere.
  file(RELATIVE_PATH LOCKSTEP_PREFIX_FROM_PC /${CMAKE_INSTALL_LIBDIR}/pkgconfig /)
  set(LOCKSTEP_PC_REQUIRES "fmt nlohmann_json")
  set(LOCKSTEP_PC_LIBS "")
  set(LOCKSTEP_PC_VARIABLES "")
  set(dependencies "")
  if(type STREQUAL STATIC)
    set(dependencies ${PROJECT_SOURCE_DIR}/cmake/LockstepDependencies.cmake)
    string(APPEND LOCKSTEP_PC_REQUIRES " spdlog ${LOCKSTEP_MPI_PC} ${hdf5_MODULE_NAME} hwloc libxxhash zlib libpng libjpeg libpcre2-8 libutf8proc")
    set(LOCKSTEP_PC_LIBS " -ldnnl -lboost_program_options -fopenmp")
    if(LOCKSTEP_PRODUCTS STREQUAL "openblas")
      string(APPEND LOCKSTEP_PC_REQUIRES " openblas")
    endif()
    if(LOCKSTEP_HAS_CUDA)
      # A variable: where the toolkit is elsewhere, pkg-config --define-variable=cuda_libdir=DIR finds it.
      set(LOCKSTEP_PC_VARIABLES "cuda_libdir=${CUDAToolkit_LIBRARY_DIR}\n")
      string(APPEND LOCKSTEP_PC_LIBS " -L\${cuda_libdir} -lcudart_static -ldl -lrt -lpthread")
    endif()
  endif()
  configure_file(${PROJECT_SOURCE_DIR}/cmake/lockstep.pc.in ${made}/lockstep.pc @ONLY)
  install(FILES ${made}/LockstepConfig.cmake ${made}/LockstepConfigVersion.cmake ${dependencies}
          DESTINATION ${package_dir} COMPONENT ${component} ${excluded})
  install(FILES ${made}/lockstep.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig COMPONENT ${component} ${excluded})
endfunction()

set(type STATIC)
if(BUILD_SHARED_LIBS)
  set(type SHARED)
endif()
lockstep_library(lockstep ${type} development)
add_library(Lockstep::lockstep ALIAS lockstep)

# The program finds liblockstep.so from its own folder, unless the loader looks where the library is.
if(BUILD_SHARED_LIBS AND NOT CMAKE_INSTALL_FULL_LIBDIR IN_LIST CMAKE_CXX_IMPLICIT_LINK_DIRECTORIES)
  file(RELATIVE_PATH to_library ${CMAKE_INSTALL_FULL_BINDIR} ${CMAKE_INSTALL_FULL_LIBDIR})
  set_target_properties(lockstep_program PROPERTIES INSTALL_RPATH $ORIGIN/${to_library})
endif()
set(CMAKE_INSTALL_DEFAULT_COMPONENT_NAME program)
install(TARGETS lockstep_program RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
install(FILES ${PROJECT_BINARY_DIR}/share/man/lockstep.1 DESTINATION ${CMAKE_INSTALL_MANDIR}/man1)
install(FILES ${PROJECT_BINARY_DIR}/share/man/lockstep.ini.5 DESTINATION ${CMAKE_INSTALL_MANDIR}/man5)
install(FILES share/completion/lockstep DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions)
install(DIRECTORY share/data share/example DESTINATION ${CMAKE_INSTALL_DATADIR}/lockstep)
install(DIRECTORY jobs DESTINATION ${CMAKE_INSTALL_DATADIR}/lockstep USE_SOURCE_PERMISSIONS
        PATTERN setup.sh EXCLUDE PATTERN quickstart.sh EXCLUDE)
install(FILES README.md INSTALL CHANGELOG.md LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR})
install(DIRECTORY docs DESTINATION ${CMAKE_INSTALL_DOCDIR})
