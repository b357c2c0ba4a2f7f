# lockstep_test_module(NAME SOURCES file... USES module... [RANKS alone|n...] [SLOW alone|n...] [GOLDEN subject alone|n...]
#                      [LIBRARIES target...] [ALLOCATION_SOURCES file...] [TIMEOUT seconds])
#
# The tests of a module: one Boost.Test program, test.NAME. Each source file is one suite, which says at how many ranks its cases run,
# and which of them only the full suite runs (tests/support/ranks.h). CTest starts the program once for each of these:
#   NAME, NAME.npN                          RANKS: alone (what there is without RANKS), under mpirun on N ranks
#   NAME.slow, NAME.slow.npN                SLOW: the slow cases
#   golden.SUBJECT, golden.SUBJECT.npN      GOLDEN: the cases that compare with PyTorch's numbers
# Each case is run by one of them at each rank count, and the program itself refuses a list that does not fit its cases. Label quick, the
# quick suite: what is not slow, alone and on 1 and 3 ranks, and all that is golden. Target quick_tests: its programs.
# ALLOCATION_SOURCES count allocations. They replace malloc, as sanitizers do: sanitizer builds leave them out.
if(NOT MPIRUN)
  message(FATAL_ERROR "The tests need the mpirun of ${MPI_C_COMPILER}: -DMPIRUN=, or -DLOCKSTEP_TESTS=OFF")
endif()
set(LOCKSTEP_MPIRUN ${MPIRUN} CACHE STRING "How tests start ranks; '-n N' and the program follow")

set(LOCKSTEP_TEST_TIME_FACTOR 1 CACHE STRING "How many times longer than usual a test may take, as on an emulated processor")
set(LOCKSTEP_TEST_ENVIRONMENT "LOCKSTEP_SOURCE_DIR=${PROJECT_SOURCE_DIR}" "LOCKSTEP_TEST_TIME_FACTOR=${LOCKSTEP_TEST_TIME_FACTOR}")
string(REPLACE " " ";" settings "${mpi_settings}")  # more ranks than cores, as root, unbound
if(LOCKSTEP_SANITIZE)
  # die_after_fork: damaged checkpoints are read in forked processes, which start threads.
  list(APPEND LOCKSTEP_TEST_ENVIRONMENT "LSAN_OPTIONS=suppressions=${PROJECT_SOURCE_DIR}/tests/support/lsan.supp"
       "TSAN_OPTIONS=die_after_fork=0:suppressions=${PROJECT_SOURCE_DIR}/tests/support/tsan.supp" "UBSAN_OPTIONS=print_stacktrace=1")
  # Open MPI unloads its plugins before leaks are looked for, so that their leaks have no name to suppress: programs under
  # MPI run without leak detection, all others with it.
  set(LOCKSTEP_MPI_TEST_ENVIRONMENT ${LOCKSTEP_TEST_ENVIRONMENT} ${settings} "ASAN_OPTIONS=detect_leaks=0")
else()
  set(LOCKSTEP_MPI_TEST_ENVIRONMENT ${LOCKSTEP_TEST_ENVIRONMENT} ${settings})
endif()

# Half of what compiling a test takes is reading these headers: with gcc it is done once. By a program, since tests are programs (-fPIE),
# and with the definitions of every library that tests link: gcc passes by a header that was read with others. Tests that are compiled
# otherwise (OpenMP, say) have SKIP_PRECOMPILE_HEADERS. Clang ends at a header that does not fit, and reads its own.
if(CMAKE_CXX_COMPILER_ID STREQUAL GNU)
  add_executable(lockstep_test_headers ${PROJECT_SOURCE_DIR}/tests/support/headers.cpp)
  target_precompile_headers(lockstep_test_headers PRIVATE <boost/test/unit_test.hpp> <fmt/format.h>)
  target_compile_definitions(lockstep_test_headers PRIVATE $<TARGET_PROPERTY:lockstep_train,INTERFACE_COMPILE_DEFINITIONS>)
  target_link_libraries(lockstep_test_headers PRIVATE lockstep_options Boost::unit_test_framework fmt::fmt)
  set_property(TARGET lockstep_test_headers PROPERTY LOCKSTEP_NOT_IN_BUNDLE ON)
endif()

add_custom_target(quick_tests)
set(LOCKSTEP_TEST_UNITY ${CMAKE_UNITY_BUILD})  # of programs of tests; libraries for tests compile their sources alone

# lockstep_test_sources(PROGRAM BATCH SOURCES...): adds suites to a program; BATCH of them compile as one.
function(lockstep_test_sources program batch)
  target_sources(${program} PRIVATE ${ARGN})
  target_include_directories(${program} PRIVATE ${PROJECT_SOURCE_DIR}/tests ${PROJECT_SOURCE_DIR}/src
                             ${PROJECT_BINARY_DIR}/generated)
  set_target_properties(${program} PROPERTIES UNITY_BUILD ${LOCKSTEP_TEST_UNITY} UNITY_BUILD_BATCH_SIZE ${batch})
  if(TARGET lockstep_test_headers)
    target_compile_definitions(${program} PRIVATE $<TARGET_PROPERTY:lockstep_test_headers,COMPILE_DEFINITIONS>)
    target_precompile_headers(${program} REUSE_FROM lockstep_test_headers)
  endif()
endfunction()

# Starts test.MODULE as NAME (alone) or NAME.npN, with a filter of Boost.Test.
function(lockstep_test_entry module name count filter labels timeout entries)
  if(count STREQUAL alone)
    add_test(NAME ${name} COMMAND test.${module} ${filter})
    set(environment ${LOCKSTEP_TEST_ENVIRONMENT})
  else()
    string(APPEND name .np${count})
    add_test(NAME ${name} COMMAND ${LOCKSTEP_MPIRUN} -n ${count} $<TARGET_FILE:test.${module}> ${filter})
    set(environment ${LOCKSTEP_MPI_TEST_ENVIRONMENT})
    if(count GREATER 1)
      set_tests_properties(${name} PROPERTIES PROCESSORS 2)
    endif()
  endif()
  math(EXPR timeout "${timeout} * ${LOCKSTEP_TEST_TIME_FACTOR}")
  set_tests_properties(${name} PROPERTIES TIMEOUT ${timeout} LABELS "${labels}"
                       ENVIRONMENT "${environment};LOCKSTEP_TEST_ENTRIES=${entries}")
endfunction()

function(lockstep_test_module name)
  cmake_parse_arguments(TEST "" "TIMEOUT" "SOURCES;ALLOCATION_SOURCES;USES;RANKS;SLOW;GOLDEN;LIBRARIES" ${ARGN})
  if(NOT TEST_RANKS)
    set(TEST_RANKS alone)
  endif()
  if(NOT TEST_TIMEOUT)
    set(TEST_TIMEOUT 300)
  endif()
  if(TEST_ALLOCATION_SOURCES AND NOT LOCKSTEP_SANITIZE)
    list(APPEND TEST_SOURCES ${TEST_ALLOCATION_SOURCES})
    list(APPEND TEST_LIBRARIES lockstep_test_allocations)
  endif()
  set(golden ${TEST_GOLDEN})
  list(POP_FRONT golden subject)
  set(counts ${TEST_RANKS} ${TEST_SLOW} ${golden})
  if(counts MATCHES "[0-9]")
    set(main lockstep_test_mpi_main)
  else()
    set(main lockstep_test_main)
  endif()

  add_executable(test.${name})
  lockstep_test_sources(test.${name} 8 ${TEST_SOURCES})
  list(TRANSFORM TEST_USES PREPEND lockstep_)
  target_link_libraries(test.${name} PRIVATE ${main} ${TEST_LIBRARIES} ${TEST_USES} lockstep_options Boost::unit_test_framework)
  add_dependencies(quick_tests test.${name})

  set(entries ${TEST_RANKS})
  list(TRANSFORM TEST_SLOW PREPEND slow. OUTPUT_VARIABLE more)
  list(APPEND entries ${more})
  list(TRANSFORM golden PREPEND golden. OUTPUT_VARIABLE more)
  list(APPEND entries ${more})
  list(TRANSFORM entries REPLACE "([0-9]+)$" "np\\1")
  list(JOIN entries " " entries)
  set(filter "")
  if(TEST_SLOW)
    list(APPEND filter --run_test=!@slow)
  endif()
  if(golden)
    list(APPEND filter --run_test=!@golden)
  endif()
  foreach(count ${TEST_RANKS})
    set(labels "")
    if(count MATCHES "^(alone|1|3)$")
      set(labels quick)
    endif()
    lockstep_test_entry(${name} ${name} ${count} "${filter}" "${labels}" ${TEST_TIMEOUT} "${entries}")
  endforeach()
  foreach(count ${TEST_SLOW})
    lockstep_test_entry(${name} ${name}.slow ${count} --run_test=@slow slow ${TEST_TIMEOUT} "${entries}")
  endforeach()
  foreach(count ${golden})
    lockstep_test_entry(${name} golden.${subject} ${count} --run_test=@golden "golden;quick" ${TEST_TIMEOUT} "${entries}")
  endforeach()
endfunction()

# Sources of a module's tests that have OpenMP loops of their own: compiled apart, since the others, and their headers, have no OpenMP.
function(lockstep_test_sources_with_openmp)
  set_source_files_properties(${ARGN} PROPERTIES COMPILE_OPTIONS "${OpenMP_CXX_FLAGS}" SKIP_PRECOMPILE_HEADERS ON
                              SKIP_UNITY_BUILD_INCLUSION ON)
endfunction()
