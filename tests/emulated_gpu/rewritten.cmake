# .cu files once more, as C++ for the CPU.
find_package(Python3 REQUIRED COMPONENTS Interpreter)
find_package(Boost 1.74 REQUIRED CONFIG COMPONENTS context)

set(rewritten_folder ${CMAKE_CURRENT_BINARY_DIR}/rewritten)

# Each load and store of a kernel becomes a call (races.h): kernels take one and a half times as long at least, checked or not.
option(LOCKSTEP_EMULATED_RACES "Compile the emulated GPU's kernels so that races between blocks can be checked for" OFF)
set(calls_for_accesses "")
if(LOCKSTEP_EMULATED_RACES AND NOT LOCKSTEP_SANITIZE)
  set(calls_for_accesses -fsanitize=thread)
endif()

# rewrite_launches(FILE RESULT): sets RESULT to the file that the build makes of it.
function(rewrite_launches file result)
  set(script ${CMAKE_CURRENT_SOURCE_DIR}/rewrite_launches.py)
  string(REGEX REPLACE "[.]cu$" ".cpp" made ${rewritten_folder}/${file})
  get_filename_component(folder ${made} DIRECTORY)
  file(MAKE_DIRECTORY ${folder})
  add_custom_command(OUTPUT ${made} COMMAND Python3::Interpreter ${script} ${PROJECT_SOURCE_DIR}/${file} ${made}
                     DEPENDS ${script} ${PROJECT_SOURCE_DIR}/${file} VERBATIM)
  # CUDA's C++ warns where it is compiled as such. Here, what C++ leaves undefined ends the program: a misaligned pack, an
  # overflow, a null pointer.
  set_source_files_properties(${made} PROPERTIES COMPILE_OPTIONS
    "-w;-include;${CMAKE_CURRENT_SOURCE_DIR}/kernels.h;-fsanitize=undefined;-fsanitize-undefined-trap-on-error;${calls_for_accesses}"
    INCLUDE_DIRECTORIES "${rewritten_folder}/src;${CMAKE_CURRENT_SOURCE_DIR}/include;${PROJECT_SOURCE_DIR}/tests;${CUDAToolkit_INCLUDE_DIRS}")
  set(${result} ${made} PARENT_SCOPE)
endfunction()

# rewritten_kernels(TARGET MODULE): the objects of a module's kernels.
function(rewritten_kernels target module)
  get_target_property(files lockstep_${module} SOURCES)
  list(FILTER files INCLUDE REGEX "[.]cu$")
  list(TRANSFORM files PREPEND src/${module}/)
  file(GLOB headers RELATIVE ${PROJECT_SOURCE_DIR} CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/${module}/*/*.cuh)
  set(sources "")
  foreach(file ${files} ${headers})
    rewrite_launches(${file} made)
    list(APPEND sources ${made})
  endforeach()
  add_library(${target} OBJECT ${sources})
  target_include_directories(${target} PRIVATE ${PROJECT_SOURCE_DIR}/src)
  target_link_libraries(${target} PRIVATE lockstep_${module})
endfunction()
