# What runs on another Linux without being installed there, or built: programs, and every library they need but glibc and CUDA. Of
# `cmake --preset package && cmake --build build/package --target TARGET`:
#   wheel    what `pip install` takes: the program, its launcher, job scripts and data for a first training
#   bundle   one archive that has the tests, too, of a build that has them
# INSTALL says how they are used, cmake/bundle/make.cmake what is in them.
find_package(Python3 QUIET COMPONENTS Interpreter)

set(gpus "")
if(LOCKSTEP_HAS_CUDA)
  list(JOIN CMAKE_CUDA_ARCHITECTURES " " gpus)
endif()
# Wants OUTPUT, FORM and the script besides: a test gives its own.
set(LOCKSTEP_BUNDLE_COMMAND ${CMAKE_COMMAND} -DSOURCE=${PROJECT_SOURCE_DIR} -DBUILD=${PROJECT_BINARY_DIR} -DVERSION=${PROJECT_VERSION}
    -DPROCESSOR=${CMAKE_SYSTEM_PROCESSOR} -DARCH=${LOCKSTEP_ARCH} -DMPIRUN=${MPIRUN} -DSTRIP=${CMAKE_STRIP} -DOBJDUMP=${CMAKE_OBJDUMP}
    -DREADELF=${CMAKE_READELF} -DCTEST=${CMAKE_CTEST_COMMAND} -DPYTHON=${Python3_EXECUTABLE} "-DGPUS=${gpus}"
    "-DSUMMARY=${PROJECT_DESCRIPTION}")
set(LOCKSTEP_BUNDLE_SCRIPT ${PROJECT_SOURCE_DIR}/cmake/bundle/make.cmake)

# lockstep_refused_target(TARGET REASON): a target that says why this build does not make it.
function(lockstep_refused_target target reason)
  add_custom_target(${target} VERBATIM COMMAND ${CMAKE_COMMAND} -E echo "${reason}" COMMAND ${CMAKE_COMMAND} -E false)
endfunction()

# lockstep_portable(TARGET FORM PROGRAMS...): the target, which makes a bundle of this form (make.cmake) of these programs' targets, in the
# folder TARGET of the build.
function(lockstep_portable target form)
  list(TRANSFORM ARGN REPLACE "(.+)" "$<TARGET_FILE:\\1>\n" OUTPUT_VARIABLE files)
  string(CONCAT files ${files})
  file(GENERATE OUTPUT ${PROJECT_BINARY_DIR}/${target}-programs.txt CONTENT "${files}")
  if(LOCKSTEP_HAS_CUDA AND LOCKSTEP_CUDA_ARCHITECTURES STREQUAL "")
    lockstep_refused_target(${target} "The ${target} is for other computers, and this build has code for the GPUs of this one only: \
cmake --preset package && cmake --build build/package --target ${target}")
    return()
  elseif(NOT (LOCKSTEP_HAS_OPEN_MPI AND MPIRUN))
    lockstep_refused_target(${target} "The ${target} has Open MPI and its mpirun in it, and this build has not")
    return()
  endif()
  set(output ${PROJECT_BINARY_DIR}/${target})
  add_custom_target(${target} ${CMAKE_COMMAND} -E make_directory ${output}
                    COMMAND ${CMAKE_COMMAND} -E chdir ${output} ${LOCKSTEP_BUNDLE_COMMAND} -DOUTPUT=${output} -DFORM=${form}
                            -DPROGRAMS=${PROJECT_BINARY_DIR}/${target}-programs.txt -P ${LOCKSTEP_BUNDLE_SCRIPT}
                    USES_TERMINAL VERBATIM)
  add_dependencies(${target} ${ARGN})
endfunction()

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
  lockstep_portable(bundle xz ${programs})
endfunction()
