# MPIRUN: the mpirun of the MPI that the compiler wrapper belongs to. Another MPI's would start N worlds of one rank.
get_filename_component(mpi_programs "${MPI_C_COMPILER}" DIRECTORY)
find_program(MPIRUN NAMES mpirun mpiexec HINTS ${mpi_programs} REQUIRED)
include(CheckSymbolExists)
set(CMAKE_REQUIRED_LIBRARIES MPI::MPI_C)
check_symbol_exists(OPEN_MPI mpi.h LOCKSTEP_HAS_OPEN_MPI)
unset(CMAKE_REQUIRED_LIBRARIES)
execute_process(COMMAND ${MPIRUN} --version OUTPUT_VARIABLE version ERROR_VARIABLE version)
string(FIND "${version}" "Open MPI" found)
if((LOCKSTEP_HAS_OPEN_MPI AND found EQUAL -1) OR (NOT LOCKSTEP_HAS_OPEN_MPI AND found GREATER -1))
  message(FATAL_ERROR "${MPIRUN} and the compiler wrapper ${MPI_C_COMPILER} belong to different MPIs: choose both by -DMPIRUN= and "
                      "-DMPI_C_COMPILER=, or with update-alternatives or modules")
endif()
