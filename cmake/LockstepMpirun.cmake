# Which MPI the compiler wrapper belongs to: LOCKSTEP_HAS_OPEN_MPI, its name for pkg-config in LOCKSTEP_MPI_PC, and its mpirun in MPIRUN, if
# there is one. Another MPI's mpirun would start N worlds of one rank. Where srun starts all jobs there may be none.
get_filename_component(mpi_programs "${MPI_C_COMPILER}" DIRECTORY)
string(REGEX MATCH "mpicc(\\.[a-z]+)$" wrapper "${MPI_C_COMPILER}")  # mpicc.mpich: Debian's, of several
find_program(MPIRUN NAMES mpirun${CMAKE_MATCH_1} mpirun mpiexec HINTS ${mpi_programs})
include(CheckSymbolExists)
set(CMAKE_REQUIRED_LIBRARIES MPI::MPI_C)
check_symbol_exists(OPEN_MPI mpi.h LOCKSTEP_HAS_OPEN_MPI)
unset(CMAKE_REQUIRED_LIBRARIES)
set(LOCKSTEP_MPI_PC mpich)
if(LOCKSTEP_HAS_OPEN_MPI)
  set(LOCKSTEP_MPI_PC ompi-c)
endif()
if(MPIRUN)
  execute_process(COMMAND ${MPIRUN} --version OUTPUT_VARIABLE version ERROR_VARIABLE version)
  string(FIND "${version}" "Open MPI" found)
  if((LOCKSTEP_HAS_OPEN_MPI AND found EQUAL -1) OR (NOT LOCKSTEP_HAS_OPEN_MPI AND found GREATER -1))
    message(WARNING "${MPIRUN} is not used, as the compiler wrapper ${MPI_C_COMPILER} belongs to another MPI. Without its mpirun there are no "
                    "tests, no wheel and no bundle; -DMPIRUN= and -DMPI_C_COMPILER=, update-alternatives or modules choose both")
    set(MPIRUN "")
  endif()
endif()
# mpi_settings: the variables of jobs/mpi.sh, since each launcher has other flags.
execute_process(COMMAND bash -c "source jobs/mpi.sh && printf %s \"\${mpi_settings[*]}\"" WORKING_DIRECTORY ${PROJECT_SOURCE_DIR}
                OUTPUT_VARIABLE mpi_settings COMMAND_ERROR_IS_FATAL ANY)
