# The installed product: liblockstep.a (all modules below the command line), headers, the program, its data and manual, and
# the CMake and pkg-config files that let another program find it.
include(CMakePackageConfigHelpers)

get_property(modules GLOBAL PROPERTY LOCKSTEP_MODULES)
add_library(lockstep STATIC)
add_library(Lockstep::lockstep ALIAS lockstep)
foreach(module ${modules})
  target_sources(lockstep PRIVATE $<TARGET_OBJECTS:lockstep_${module}>)
  get_target_property(libraries lockstep_${module} LINK_LIBRARIES)
  list(FILTER libraries EXCLUDE REGEX "^lockstep_")
  target_link_libraries(lockstep PUBLIC ${libraries})
endforeach()
set_target_properties(lockstep PROPERTIES LINKER_LANGUAGE CXX)
target_compile_features(lockstep INTERFACE cxx_std_20)
target_include_directories(lockstep INTERFACE $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include>
                           $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/Lockstep)
install(TARGETS lockstep EXPORT LockstepTargets ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(TARGETS lockstep_program RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
install(DIRECTORY include/lockstep DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(EXPORT LockstepTargets NAMESPACE Lockstep:: DESTINATION ${package_dir})
configure_package_config_file(cmake/LockstepConfig.cmake.in ${PROJECT_BINARY_DIR}/LockstepConfig.cmake
                              INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/LockstepConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/LockstepConfig.cmake ${PROJECT_BINARY_DIR}/LockstepConfigVersion.cmake
              cmake/LockstepDependencies.cmake DESTINATION ${package_dir})
# Relative to the file itself, so that `cmake --install --prefix` may put it anywhere.
file(RELATIVE_PATH LOCKSTEP_PREFIX_FROM_PC /${CMAKE_INSTALL_LIBDIR}/pkgconfig /)
set(LOCKSTEP_PC_CUDA "")
if(LOCKSTEP_HAS_CUDA)
  set(LOCKSTEP_PC_CUDA " -L${CUDAToolkit_LIBRARY_DIR} -lcudart_static -ldl -lrt -lpthread")
endif()
configure_file(cmake/lockstep.pc.in ${PROJECT_BINARY_DIR}/lockstep.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/lockstep.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
install(FILES ${PROJECT_BINARY_DIR}/share/man/lockstep.1 DESTINATION ${CMAKE_INSTALL_MANDIR}/man1)
install(FILES ${PROJECT_BINARY_DIR}/share/man/lockstep.ini.5 DESTINATION ${CMAKE_INSTALL_MANDIR}/man5)
install(FILES share/completion/lockstep DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions OPTIONAL)
install(DIRECTORY share/data share/example DESTINATION ${CMAKE_INSTALL_DATADIR}/lockstep)
install(DIRECTORY jobs DESTINATION ${CMAKE_INSTALL_DATADIR}/lockstep USE_SOURCE_PERMISSIONS
        PATTERN setup.sh EXCLUDE PATTERN quickstart.sh EXCLUDE)
