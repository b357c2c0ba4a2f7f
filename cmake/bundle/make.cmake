# Makes a bundle and leaves its contents beside it, in the folder OUTPUT (LockstepBundle.cmake runs it there). FORM:
#   xz, gz   an archive, OUTPUT/lockstep-VERSION-PROCESSOR.tar.FORM (archive.py)
#   whl      a wheel, which has its libraries in the folder lib/lockstep of the environment (wheel.py), and no tests
#
#   bin/        links to libexec/launch, which starts the program of the same name: lockstep, mpirun, mpiexec, orted or
#               PRRTE's prterun and prted, ompi_info
#   libexec/    the programs themselves; libexec/openmpi: Open MPI's
#   lib/        every library they need but those of glibc and CUDA; lib/openmpi, lib/pmix, lib/ucx: plugins
#   etc/        Open MPI's settings
#   licenses/   what the Debian packages of these libraries say of their copyright, and the texts of the licences that they name
#   jobs/ tests/ share/ docs/ README.md ...  as in the source folder; tests/bin: links to the test programs, tests/list.json: how to run them
#   CONTENTS    what it was made on, what it needs, and where each library comes from
cmake_minimum_required(VERSION 3.25)
include(${CMAKE_CURRENT_LIST_DIR}/libraries.cmake)

# PROGRAMS: a file that names them, a path a line; all of the build, unless told.
if(NOT PROGRAMS)
  set(PROGRAMS ${BUILD}/bundle-programs.txt)
endif()
set(root ${OUTPUT}/lockstep-${VERSION}-${PROCESSOR})
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

file(REMOVE_RECURSE ${root})
file(MAKE_DIRECTORY ${root}/bin ${root}/libexec/openmpi ${root}/lib/openmpi ${root}/etc/openmpi ${root}/licenses)

# --- Open MPI: its tools, and where it keeps plugins, texts and settings ------------------------------------------------------
get_filename_component(mpi_bin ${MPIRUN} DIRECTORY)
set(tool_names mpirun ompi_info orted)
if(EXISTS ${mpi_bin}/prted)  # Open MPI 5 leaves the starting of ranks to PRRTE
  set(tool_names mpirun ompi_info prterun prted)
endif()
list(TRANSFORM tool_names PREPEND ${mpi_bin}/ OUTPUT_VARIABLE tools)
foreach(tool ${tools})
  if(NOT EXISTS ${tool})
    message(FATAL_ERROR "The bundle takes Open MPI 4 or 5 along, and ${tool} does not exist: configure with the mpirun of an Open MPI "
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
foreach(tool ${tool_names})
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
foreach(program lockstep mpiexec ${tool_names})
  file(CREATE_LINK ../libexec/launch ${root}/bin/${program} SYMBOLIC)
endforeach()
file(CREATE_LINK mpirun ${root}/libexec/openmpi/mpiexec SYMBOLIC)

# --- what is read -------------------------------------------------------------------------------------------------------------
file(GLOB settings ${mpi_sysconfdir}/*.conf ${mpi_sysconfdir}/*hostfile)
foreach(file ${settings})
  get_filename_component(as ${file} NAME)
  file(COPY_FILE ${file} ${root}/etc/openmpi/${as})  # links, too, become files
endforeach()
file(COPY ${mpi_pkgdatadir}/ DESTINATION ${root}/share/openmpi PATTERN "*-wrapper-data.txt" EXCLUDE)
get_filename_component(prte ${mpi_pkgdatadir}/../prte ABSOLUTE)
if(EXISTS ${prte})
  file(COPY ${prte} DESTINATION ${root}/share)
endif()
file(COPY ${SOURCE}/README.md ${SOURCE}/INSTALL ${SOURCE}/LICENSE DESTINATION ${root})
file(COPY ${SOURCE}/jobs DESTINATION ${root} PATTERN setup.sh EXCLUDE PATTERN quickstart.sh EXCLUDE)
if(FORM STREQUAL whl)
  file(COPY ${SOURCE}/share/data ${SOURCE}/share/completion DESTINATION ${root}/share)
  file(COPY ${BUILD}/share/man/lockstep.1 DESTINATION ${root}/share/man/man1)
  file(COPY ${BUILD}/share/man/lockstep.ini.5 DESTINATION ${root}/share/man/man5)
else()
  include(${CMAKE_CURRENT_LIST_DIR}/tests.cmake)
endif()

# --- licences -----------------------------------------------------------------------------------------------------------------
set(licences "")
find_program(DPKG_QUERY dpkg-query)
if(DPKG_QUERY)
  foreach(file ${libraries} ${mpi_plugins} ${more} ${tools})
    file(REAL_PATH ${file} real)
    string(REGEX REPLACE "^/usr" "" real ${real})
    list(APPEND owned ${real} /usr${real})  # the package may have it in /lib, which is a link to /usr/lib
  endforeach()
  execute_process(COMMAND ${DPKG_QUERY} --search ${owned} OUTPUT_VARIABLE owners ERROR_QUIET)
  string(REGEX MATCHALL "[^:\n]+(:[a-z0-9]+)?: " owners "${owners}")
  list(TRANSFORM owners REPLACE "[:,].*" "")
  list(REMOVE_DUPLICATES owners)
  foreach(package ${owners})
    file(COPY_FILE /usr/share/doc/${package}/copyright ${root}/licenses/${package})
    file(STRINGS ${root}/licenses/${package} named REGEX "/usr/share/common-licenses/")
    string(REGEX MATCHALL "common-licenses/[A-Za-z]+[-0-9.]*[0-9]" named "${named}")
    foreach(licence ${named})
      get_filename_component(as ${licence} NAME)
      file(COPY_FILE /usr/share/${licence} ${root}/licenses/${as}.txt)
    endforeach()
  endforeach()
endif()

# The oldest glibc that has all that these files ask for. DT_RELR is a way to write them down that glibc 2.36 was the first to read.
file(GLOB_RECURSE files ${root}/lib/* ${root}/libexec/*)
list(REMOVE_ITEM files ${root}/libexec/launch)
run(headers ${OBJDUMP} --private-headers ${files})
string(REPLACE "GLIBC_ABI_DT_RELR" "GLIBC_2.36" headers "${headers}")
string(REGEX MATCHALL "GLIBC_2\\.[0-9]+" versions "${headers}")
list(SORT versions COMPARE NATURAL)
list(POP_BACK versions glibc)
string(REPLACE "GLIBC_" "" glibc ${glibc})
cmake_host_system_information(RESULT system QUERY DISTRIB_PRETTY_NAME)
set(contents "Lockstep ${VERSION} for Linux, made on ${system}. It needs glibc ${glibc} or newer, a ${PROCESSOR} processor")
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
if(FORM STREQUAL whl)
  string(REPLACE "." "_" tag manylinux_${glibc}_${PROCESSOR})
  set(archive ${OUTPUT}/lockstep-${VERSION}-py3-none-${tag}.whl)
  run(packed ${PYTHON} ${CMAKE_CURRENT_LIST_DIR}/wheel.py ${root} ${archive} ${SUMMARY})
else()
  set(archive ${root}.tar.${FORM})
  run(packed ${PYTHON} ${CMAKE_CURRENT_LIST_DIR}/archive.py ${root} ${archive})
endif()
file(SIZE ${archive} bytes)
math(EXPR mebibytes "(${bytes} + 1048575) / 1048576")
message(NOTICE "The bundle: ${archive}, ${mebibytes} MiB")
if(bytes GREATER 62914560 AND NOT FORM STREQUAL gz)
  message(FATAL_ERROR "${archive} has ${mebibytes} MiB; at most 60 are asked for: look for what is new in ${root}")
endif()
