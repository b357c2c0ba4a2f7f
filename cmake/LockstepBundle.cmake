# `cmake --preset package && cmake --build build/package --target bundle` makes one archive of the programs, the tests and every library
# they need. It runs from any folder of another Linux (INSTALL: "On a machine without root or packages"). cmake/bundle/make.cmake says
# what is in it.
find_package(Python3 QUIET COMPONENTS Interpreter)
find_program(MPIRUN NAMES mpirun mpiexec REQUIRED)

set(gpus "")
if(LOCKSTEP_HAS_CUDA)
  list(JOIN CMAKE_CUDA_ARCHITECTURES " " gpus)
endif()
# Wants OUTPUT, COMPRESSION and the script besides: a test gives its own.
set(LOCKSTEP_BUNDLE_COMMAND ${CMAKE_COMMAND} -DSOURCE=${PROJECT_SOURCE_DIR} -DBUILD=${PROJECT_BINARY_DIR} -DVERSION=${PROJECT_VERSION}
    -DPROCESSOR=${CMAKE_SYSTEM_PROCESSOR} -DARCH=${LOCKSTEP_ARCH} -DMPIRUN=${MPIRUN} -DSTRIP=${CMAKE_STRIP} -DOBJDUMP=${CMAKE_OBJDUMP}
    -DREADELF=${CMAKE_READELF} -DCTEST=${CMAKE_CTEST_COMMAND} -DPYTHON=${Python3_EXECUTABLE} "-DGPUS=${gpus}")
set(LOCKSTEP_BUNDLE_SCRIPT ${PROJECT_SOURCE_DIR}/cmake/bundle/make.cmake)

# lockstep_programs(VARIABLE FOLDER): the programs and plugins that this folder and those below it build, but for targets with
# the property LOCKSTEP_NOT_IN_BUNDLE.
function(lockstep_programs variable folder)
  get_property(targets DIRECTORY ${folder} PROPERTY BUILDSYSTEM_TARGETS)
  get_property(folders DIRECTORY ${folder} PROPERTY SUBDIRECTORIES)
  set(found "")
  foreach(target ${targets})
    get_target_property(type ${target} TYPE)
    get_target_property(stays ${target} LOCKSTEP_NOT_IN_BUNDLE)
    if(type MATCHES "^(EXECUTABLE|MODULE_LIBRARY)$" AND NOT stays)
      list(APPEND found ${target})
    endif()
  endforeach()
  foreach(below ${folders})
    lockstep_programs(more ${below})
    list(APPEND found ${more})
  endforeach()
  set(${variable} ${found} PARENT_SCOPE)
endfunction()

# lockstep_bundle(): the target, of all programs that were added so far.
function(lockstep_bundle)
  lockstep_programs(programs ${PROJECT_SOURCE_DIR})
  set(files "")
  foreach(program ${programs})
    string(APPEND files "$<TARGET_FILE:${program}>\n")
  endforeach()
  file(GENERATE OUTPUT ${PROJECT_BINARY_DIR}/programs.txt CONTENT "${files}")
  if(LOCKSTEP_HAS_CUDA AND LOCKSTEP_CUDA_ARCHITECTURES STREQUAL "")
    add_custom_target(bundle VERBATIM COMMAND ${CMAKE_COMMAND} -E echo "The bundle is for other computers, and this build has code for the \
GPUs of this one only: cmake --preset package && cmake --build build/package --target bundle"
                      COMMAND ${CMAKE_COMMAND} -E false)
    return()
  endif()
  set(output ${PROJECT_BINARY_DIR}/bundle)
  add_custom_target(bundle ${CMAKE_COMMAND} -E make_directory ${output}
                    COMMAND ${CMAKE_COMMAND} -E chdir ${output} ${LOCKSTEP_BUNDLE_COMMAND} -DOUTPUT=${output} -DCOMPRESSION=xz
                            -P ${LOCKSTEP_BUNDLE_SCRIPT}
                    USES_TERMINAL VERBATIM)
  add_dependencies(bundle ${programs})
endfunction()
