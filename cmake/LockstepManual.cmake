# cmake -DPROGRAM=lockstep -DTEMPLATE=lockstep.1.in -DOUTPUT=lockstep.1 -P LockstepManual.cmake: puts the help of every verb into the
# manual page.
foreach(variable OMPI_COMM_WORLD_SIZE PMIX_RANK PMI_RANK)  # a build inside a job step is no rank
  unset(ENV{${variable}})
endforeach()

# help(VARIABLE word...): what the program prints.
function(help variable)
  execute_process(COMMAND ${PROGRAM} ${ARGN} --help OUTPUT_VARIABLE text COMMAND_ERROR_IS_FATAL ANY)
  set(${variable} "${text}" PARENT_SCOPE)
endfunction()

# listed(VARIABLE TEXT): the names in lines such as "  train      train a model".
function(listed variable text)
  string(REGEX MATCHALL "\n  [a-z]+ " names "${text}")
  list(TRANSFORM names STRIP)
  set(${variable} ${names} PARENT_SCOPE)
endfunction()

# section(WORD...): appends a verb's help to `pages`.
macro(section)
  help(text ${ARGN})
  string(REPLACE "\\" "\\e" text "${text}")
  string(REPLACE "-" "\\-" text "${text}")
  string(REGEX REPLACE "\n([.'])" "\n\\\\&\\1" text "${text}")
  string(REPLACE ";" " " name "${ARGN}")
  string(APPEND pages ".SS ${name}\n.nf\n${text}.fi\n")
endmacro()

set(pages "")
help(program_help)
listed(verbs "${program_help}")
foreach(verb ${verbs})
  if(verb STREQUAL "bench")
    help(bench_help bench)
    listed(subjects "${bench_help}")
    foreach(subject ${subjects})
      section(bench ${subject})
    endforeach()
  else()
    section(${verb})
  endif()
endforeach()
string(STRIP "${pages}" VERBS)
configure_file(${TEMPLATE} ${OUTPUT} @ONLY)
