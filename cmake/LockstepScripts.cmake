# lockstep_script(NAME SCRIPT [ARGUMENTS word...] [QUICK] [WAITS] [CAMPAIGN] [TIMEOUT seconds] [LABELS label...]
#                 [ENVIRONMENT NAME=VALUE...])
#
# A test that is a script, SCRIPT.sh beside the caller's CMakeLists.txt: it drives the program ($LOCKSTEP) as a user would, starts ranks
# by $LOCKSTEP_MPIRUN, and says by exit code 77 that it cannot run here. Its labels are what its name begins with and LABELS.
# QUICK: of the quick suite, too. WAITS: mostly waits, so that another test may run beside it; it starts first. CAMPAIGN: only
# `ctest -C campaign` runs it, as tests/campaign.sh does.
include_guard()

function(lockstep_script name script)
  cmake_parse_arguments(SCRIPT "QUICK;WAITS;CAMPAIGN" "TIMEOUT" "ARGUMENTS;LABELS;ENVIRONMENT" ${ARGN})
  string(REGEX MATCH "^[a-z_]+" labels ${name})
  list(APPEND labels ${SCRIPT_LABELS})
  if(SCRIPT_QUICK)
    list(APPEND labels quick)
  endif()
  set(configurations "")
  if(SCRIPT_CAMPAIGN)
    set(configurations CONFIGURATIONS campaign)
    set(SCRIPT_TIMEOUT 36000)
  elseif(NOT SCRIPT_TIMEOUT)
    set(SCRIPT_TIMEOUT 300)
  endif()
  math(EXPR SCRIPT_TIMEOUT "${SCRIPT_TIMEOUT} * ${LOCKSTEP_TEST_TIME_FACTOR}")
  set(scheduling PROCESSORS 2)
  if(SCRIPT_WAITS)
    set(scheduling PROCESSORS 1 COST 1000)
  endif()
  list(JOIN LOCKSTEP_MPIRUN " " mpirun)
  add_test(NAME ${name} COMMAND bash ${CMAKE_CURRENT_SOURCE_DIR}/${script}.sh ${SCRIPT_ARGUMENTS} ${configurations})
  set_tests_properties(${name} PROPERTIES TIMEOUT ${SCRIPT_TIMEOUT} LABELS "${labels}" SKIP_RETURN_CODE 77 ${scheduling} ENVIRONMENT
    "LOCKSTEP=$<TARGET_FILE:lockstep_program>;${LOCKSTEP_MPI_TEST_ENVIRONMENT};LOCKSTEP_MPIRUN=${mpirun};${SCRIPT_ENVIRONMENT}")
endfunction()
