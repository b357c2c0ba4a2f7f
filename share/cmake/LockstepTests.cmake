# lockstep_test(NAME [SOURCES file...] ROOMS room... [RANKS n...] [LIBRARIES target...] [LABELS label...]
#               [TIMEOUT seconds])
#
# One Boost.Test program per call, NAME.cpp by default. Without RANKS it runs alone; with RANKS it is registered once per
# rank count it must pass at, as NAME.npN, under mpirun (N = 1 too). Its cases see the world through tests/support/world.h.
# Programs that count allocations (LIBRARIES lockstep_test_allocations) replace malloc, as sanitizers do: sanitizer
# builds leave them out.
find_program(MPIRUN NAMES mpirun mpiexec REQUIRED)
set(LOCKSTEP_MPIRUN ${MPIRUN} --oversubscribe --allow-run-as-root --bind-to none --mca mpi_yield_when_idle 1
    --mca rmaps_base_oversubscribe 1 CACHE STRING "How tests start ranks; '-n N' and the program follow")

set(LOCKSTEP_TEST_ENVIRONMENT "LOCKSTEP_SOURCE_DIR=${PROJECT_SOURCE_DIR}")
if(LOCKSTEP_SANITIZE)
  list(APPEND LOCKSTEP_TEST_ENVIRONMENT "LSAN_OPTIONS=suppressions=${PROJECT_SOURCE_DIR}/tests/support/lsan.supp"
       "TSAN_OPTIONS=suppressions=${PROJECT_SOURCE_DIR}/tests/support/tsan.supp" "UBSAN_OPTIONS=print_stacktrace=1")
  # Open MPI unloads its plugins before leaks are looked for, so that their leaks have no name to suppress: programs under
  # MPI run without leak detection, all others with it.
  set(LOCKSTEP_MPI_TEST_ENVIRONMENT ${LOCKSTEP_TEST_ENVIRONMENT} "ASAN_OPTIONS=detect_leaks=0")
else()
  set(LOCKSTEP_MPI_TEST_ENVIRONMENT ${LOCKSTEP_TEST_ENVIRONMENT})
endif()

function(lockstep_test name)
  cmake_parse_arguments(TEST "" "TIMEOUT" "SOURCES;ROOMS;RANKS;LABELS;LIBRARIES" ${ARGN})
  if(LOCKSTEP_SANITIZE AND "lockstep_test_allocations" IN_LIST TEST_LIBRARIES)
    return()
  endif()
  if(NOT TEST_SOURCES)
    string(REGEX REPLACE "^[a-z0-9]+\\." "" file ${name})
    set(TEST_SOURCES ${file}.cpp)
  endif()
  if(NOT TEST_TIMEOUT)
    set(TEST_TIMEOUT 120)
  endif()
  add_executable(test.${name} ${TEST_SOURCES})
  list(TRANSFORM TEST_ROOMS PREPEND lockstep_)
  target_link_libraries(test.${name} PRIVATE ${TEST_ROOMS} ${TEST_LIBRARIES} lockstep_options
                        Boost::unit_test_framework)
  target_include_directories(test.${name} PRIVATE ${PROJECT_SOURCE_DIR}/tests ${PROJECT_SOURCE_DIR}/src)
  if(TEST_RANKS)
    target_link_libraries(test.${name} PRIVATE lockstep_test_mpi_main)
    foreach(ranks ${TEST_RANKS})
      add_test(NAME ${name}.np${ranks} COMMAND ${LOCKSTEP_MPIRUN} -n ${ranks} $<TARGET_FILE:test.${name}>)
      set_tests_properties(${name}.np${ranks} PROPERTIES TIMEOUT ${TEST_TIMEOUT} LABELS "${TEST_LABELS}"
                           PROCESSORS 2 ENVIRONMENT "${LOCKSTEP_MPI_TEST_ENVIRONMENT}")
    endforeach()
  else()
    target_link_libraries(test.${name} PRIVATE lockstep_test_main)
    add_test(NAME ${name} COMMAND test.${name})
    set_tests_properties(${name} PROPERTIES TIMEOUT ${TEST_TIMEOUT} LABELS "${TEST_LABELS}"
                         ENVIRONMENT "${LOCKSTEP_TEST_ENVIRONMENT}")
  endif()
endfunction()
