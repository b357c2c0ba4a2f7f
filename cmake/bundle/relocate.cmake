# Everything in the folder ROOT looks for its libraries there: programs beside themselves, then where CUDA was when they were built;
# libraries and plugins where the program does. Apart from make.cmake, as CMake prints a line for each file.
cmake_minimum_required(VERSION 3.25)

file(GLOB_RECURSE libraries ${ROOT}/lib/*)
file(GLOB modules ${ROOT}/libexec/*.so)
foreach(library ${libraries} ${modules})
  file(RPATH_REMOVE FILE ${library})
endforeach()

file(GLOB programs LIST_DIRECTORIES false ${ROOT}/libexec/*)
list(REMOVE_ITEM programs ${modules})
foreach(program ${programs})
  file(READ_ELF ${program} RPATH folders)
  if(NOT folders)
    message(FATAL_ERROR "${program} has no DT_RPATH: it was not linked with --disable-new-dtags (cmake/LockstepModules.cmake)")
  endif()
  list(FILTER folders INCLUDE REGEX "cuda|nvidia|nccl|cudnn")
  list(PREPEND folders "$ORIGIN/../lib")
  list(JOIN folders ":" folders)
  file(RPATH_SET FILE ${program} NEW_RPATH "${folders}")
endforeach()
