# Makes OUTPUT/lockstep-VERSION-PROCESSOR.tar.COMPRESSION (xz or gz, see archive.py), and leaves its contents beside it. Run by the
# target `bundle` (LockstepBundle.cmake), in the folder OUTPUT.
#
#   bin/        links to libexec/launch, which starts the program of the same name: lockstep, mpirun, mpiexec, orted, ompi_info
#   libexec/    the programs themselves; libexec/openmpi: Open MPI's
#   lib/        every library they need but those of glibc and CUDA; lib/openmpi, lib/pmix, lib/ucx: plugins
#   etc/        Open MPI's settings
#   jobs/ tests/ share/ docs/ README.md ...  as in the source folder; tests/bin: links to the test programs, tests/list.json: how to run them
#   CONTENTS    what it was made on, what it needs, and where each library comes from
cmake_minimum_required(VERSION 3.25)
include(${CMAKE_CURRENT_LIST_DIR}/libraries.cmake)

# PROGRAMS: a file that names them, a path a line; all of the build, unless told.
set(name lockstep-${VERSION}-${PROCESSOR})
if(NOT PROGRAMS)
  set(PROGRAMS ${BUILD}/programs.txt)
endif()
set(root ${OUTPUT}/${name})
set(archive ${root}.tar.${COMPRESSION})
foreach(tool MPIRUN STRIP OBJDUMP READELF CTEST PYTHON)
  if(NOT EXISTS "${${tool}}")
    string(TOLOWER ${tool} program)
    message(FATAL_ERROR "The bundle needs ${program}, which was not found when ${BUILD} was configured: install it (Debian: "
                        "openmpi-bin, binutils, cmake, python3) and run cmake ${BUILD} again")
  endif()
endforeach()

# run(VARIABLE COMMAND...): its standard output; ends with the command's own words where it fails.
function(run variable)
  execute_process(COMMAND ${ARGN} OUTPUT_VARIABLE output ERROR_VARIABLE error RESULT_VARIABLE code
                  OUTPUT_STRIP_TRAILING_WHITESPACE)
  if(NOT code EQUAL 0)
    list(JOIN ARGN " " command)
    message(FATAL_ERROR "The bundle cannot be made: ${command}: ${code}: ${error}")
  endif()
  set(${variable} "${output}" PARENT_SCOPE)
endfunction()

file(REMOVE_RECURSE ${root} ${archive})
file(MAKE_DIRECTORY ${root}/bin ${root}/libexec/openmpi ${root}/lib/openmpi ${root}/tests/bin ${root}/etc/openmpi)

# --- Open MPI: its tools, and where it keeps plugins, texts and settings ------------------------------------------------------
get_filename_component(mpi_bin ${MPIRUN} DIRECTORY)
set(tools ${MPIRUN} ${mpi_bin}/orted ${mpi_bin}/ompi_info)
foreach(tool ${tools})
  if(NOT EXISTS ${tool})
    message(FATAL_ERROR "The bundle takes Open MPI 4 along, and ${tool} does not exist: configure with the mpirun of an Open MPI 4 "
                        "first on PATH (Debian: openmpi-bin)")
  endif()
endforeach()
run(paths ${mpi_bin}/ompi_info --parsable --path all)
foreach(path pkglibdir pkgdatadir sysconfdir)
  if(NOT paths MATCHES "path:${path}:([^\n]+)")
    message(FATAL_ERROR "${mpi_bin}/ompi_info --path all does not say its ${path}: ${paths}")
  endif()
  set(mpi_${path} ${CMAKE_MATCH_1})
endforeach()

# --- programs, plugins, libraries ---------------------------------------------------------------------------------------------
file(STRINGS ${PROGRAMS} programs)
foreach(program ${programs})
  if(NOT EXISTS ${program})
    message(FATAL_ERROR "The bundle needs ${program}, which is not built yet: cmake --build ${BUILD}")
  endif()
endforeach()
set(modules ${programs})
list(FILTER programs EXCLUDE REGEX "\\.so$")
list(FILTER modules INCLUDE REGEX "\\.so$")
file(GLOB mpi_plugins ${mpi_pkglibdir}/mca_*.so)
needs(libraries PROGRAMS ${programs} ${tools} PLUGINS ${modules} ${mpi_plugins})
plugins_of(more ${libraries})
needs(more_libraries PLUGINS ${more})
list(APPEND libraries ${more_libraries})
list(REMOVE_DUPLICATES libraries)

foreach(library ${libraries})
  bring(${library} lib)
endforeach()
foreach(plugin ${mpi_plugins})
  bring(${plugin} lib/openmpi)
endforeach()
foreach(plugin ${more})
  plugin_folder(folder ${plugin})
  bring(${plugin} ${folder})
endforeach()
foreach(program ${programs})
  bring_program(${program} libexec)
endforeach()
foreach(module ${modules})
  bring(${module} libexec)
endforeach()
foreach(tool mpirun orted ompi_info)
  file(COPY_FILE ${mpi_bin}/${tool} ${root}/libexec/openmpi/${tool})
endforeach()

execute_process(COMMAND ${CMAKE_COMMAND} -DROOT=${root} -P ${CMAKE_CURRENT_LIST_DIR}/relocate.cmake OUTPUT_QUIET COMMAND_ERROR_IS_FATAL ANY)

# --- how they start -----------------------------------------------------------------------------------------------------------
run(headers ${READELF} --program-headers --wide ${root}/libexec/lockstep)
if(NOT headers MATCHES "program interpreter: ([^]\n]+)")
  message(FATAL_ERROR "${root}/libexec/lockstep names no loader: a static program?")
endif()
set(loader ${CMAKE_MATCH_1})
configure_file(${SOURCE}/cmake/bundle/launch.in ${root}/libexec/launch @ONLY FILE_PERMISSIONS
               OWNER_READ OWNER_WRITE OWNER_EXECUTE GROUP_READ GROUP_EXECUTE WORLD_READ WORLD_EXECUTE)
foreach(program lockstep mpirun mpiexec orted ompi_info)
  file(CREATE_LINK ../libexec/launch ${root}/bin/${program} SYMBOLIC)
endforeach()
file(CREATE_LINK mpirun ${root}/libexec/openmpi/mpiexec SYMBOLIC)
foreach(program ${programs})
  get_filename_component(as ${program} NAME)
  if(NOT as STREQUAL "lockstep")
    file(CREATE_LINK ../../libexec/launch ${root}/tests/bin/${as} SYMBOLIC)
  endif()
endforeach()

# --- what is read -------------------------------------------------------------------------------------------------------------
file(GLOB settings ${mpi_sysconfdir}/*.conf ${mpi_sysconfdir}/*hostfile)
foreach(file ${settings})
  get_filename_component(as ${file} NAME)
  file(COPY_FILE ${file} ${root}/etc/openmpi/${as})  # links, too, become files
endforeach()
file(COPY ${mpi_pkgdatadir}/ DESTINATION ${root}/share/openmpi PATTERN "*-wrapper-data.txt" EXCLUDE)
file(COPY ${SOURCE}/README.md ${SOURCE}/INSTALL ${SOURCE}/LICENSE DESTINATION ${root})
file(COPY ${SOURCE}/share ${SOURCE}/docs DESTINATION ${root})
file(COPY ${SOURCE}/jobs DESTINATION ${root} PATTERN setup.sh EXCLUDE PATTERN quickstart.sh EXCLUDE)
file(COPY ${SOURCE}/tests DESTINATION ${root} PATTERN "*.cpp" EXCLUDE PATTERN "*.h" EXCLUDE PATTERN "CMakeLists.txt" EXCLUDE
     PATTERN "*.cmake" EXCLUDE PATTERN "__pycache__" EXCLUDE PATTERN fuzz EXCLUDE PATTERN package EXCLUDE PATTERN "tests/run.sh" EXCLUDE
     PATTERN "tests/campaign.sh" EXCLUDE)

run(tests ${CTEST} --test-dir ${BUILD} --show-only=json-v1)
file(WRITE ${OUTPUT}/ctest.json "${tests}")
execute_process(COMMAND ${PYTHON} ${SOURCE}/cmake/bundle/test_list.py ${SOURCE} ${BUILD} ${PROGRAMS} ${MPIRUN}
                INPUT_FILE ${OUTPUT}/ctest.json OUTPUT_FILE ${root}/tests/list.json COMMAND_ERROR_IS_FATAL ANY)

run(glibc getconf GNU_LIBC_VERSION)
cmake_host_system_information(RESULT system QUERY DISTRIB_PRETTY_NAME)
set(contents "Lockstep ${VERSION} for Linux, made on ${system}. It needs ${glibc} or newer, a ${PROCESSOR} processor")
if(ARCH)
  string(APPEND contents " of the kind ${ARCH}")
endif()
string(APPEND contents ",\nand for tests/gpu.sh Python 3.")
if(GPUS)
  string(APPEND contents " It has code for GPUs ${GPUS}.")
endif()
string(APPEND contents " The chapter \"On a machine without root or packages\" of INSTALL says more.\n\n"
       "Libraries, and the files they are copies of:\n")
list(SORT libraries)
foreach(library ${libraries})
  get_filename_component(as ${library} NAME)
  file(REAL_PATH ${library} real)
  string(APPEND contents "lib/${as}  ${real}\n")
endforeach()
file(WRITE ${root}/CONTENTS "${contents}")

# --- the archive --------------------------------------------------------------------------------------------------------------
run(packed ${PYTHON} ${SOURCE}/cmake/bundle/archive.py ${root} ${archive})
file(SIZE ${archive} bytes)
math(EXPR mebibytes "(${bytes} + 1048575) / 1048576")
message(NOTICE "The bundle: ${archive}, ${mebibytes} MiB")
if(bytes GREATER 62914560 AND COMPRESSION STREQUAL "xz")
  message(FATAL_ERROR "${archive} has ${mebibytes} MiB; at most 60 are asked for: look for what is new in ${root}")
endif()
