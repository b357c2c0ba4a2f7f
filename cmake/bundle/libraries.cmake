# What programs need at run time, and how it finds itself in a bundle (make.cmake includes this file).

# These come from the machine that runs: glibc, which belongs to the kernel and the loader there, and CUDA with its driver.
set(glibc "^(ld-linux|lib(c|m|mvec|dl|pthread|rt|resolv|util|anl|nsl|nss_[a-z]+|BrokenLocale|thread_db)\\.so)")
set(cuda "^lib(cuda|cudart|cublas|cudnn|nccl|nvrtc|nvJitLink|nvidia|cupti|nvToolsExt)[-_a-zA-Z0-9]*\\.so")

# plugins_of(VARIABLE LIBRARIES...): what these libraries load at run time, from a folder beside themselves (links resolved). hwloc's
# plugins and UCX's for AMD's GPUs are left out: nothing here uses them, and they need much (libxml2, ICU; LLVM).
function(plugins_of variable)
  set(found "")
  foreach(library ${ARGN})
    if(library MATCHES "/libpmix\\.so")
      set(below pmix)
    elseif(library MATCHES "/libucs\\.so")
      set(below ucx)
    elseif(library MATCHES "/libibverbs\\.so")
      set(below libibverbs)
    else()
      continue()
    endif()
    file(REAL_PATH ${library} real)
    get_filename_component(folder ${real} DIRECTORY)
    file(GLOB files ${folder}/${below}/*.so ${folder}/${below}/*.so.[0-9])
    list(FILTER files EXCLUDE REGEX "_rocm\\.so")
    list(APPEND found ${files})
  endforeach()
  set(${variable} ${found} PARENT_SCOPE)
endfunction()

# plugin_folder(VARIABLE PLUGIN): where one of plugins_of() belongs. libibverbs asks for its drivers by name: among the libraries.
function(plugin_folder variable plugin)
  string(REGEX REPLACE "^.*/([^/]+)/[^/]+$" "lib/\\1" folder ${plugin})
  string(REPLACE lib/libibverbs lib folder ${folder})
  file(MAKE_DIRECTORY ${root}/${folder})
  set(${variable} ${folder} PARENT_SCOPE)
endfunction()

# needs(VARIABLE PROGRAMS file... PLUGINS file...): every library these files need, and those libraries in turn: full paths.
function(needs variable)
  cmake_parse_arguments(OF "" "" "PROGRAMS;PLUGINS" ${ARGN})
  set(CMAKE_OBJDUMP ${OBJDUMP})
  file(GET_RUNTIME_DEPENDENCIES EXECUTABLES ${OF_PROGRAMS} MODULES ${OF_PLUGINS} RESOLVED_DEPENDENCIES_VAR resolved
       UNRESOLVED_DEPENDENCIES_VAR missing CONFLICTING_DEPENDENCIES_PREFIX conflict PRE_EXCLUDE_REGEXES "${glibc}" "${cuda}")
  if(missing)
    list(JOIN missing ", " missing)
    message(FATAL_ERROR "The bundle needs libraries that this machine lacks: ${missing}. Install them, or put their folder into "
                        "LD_LIBRARY_PATH; ldd on the programs and on Open MPI's plugins names who needs them")
  endif()
  foreach(library ${conflict_FILENAMES})  # found in two folders; mostly /lib is a link to /usr/lib
    list(GET conflict_${library} 0 first)
    foreach(path ${conflict_${library}})
      file(REAL_PATH ${path} real)
      file(REAL_PATH ${first} real_first)
      if(NOT real STREQUAL real_first)
        message(FATAL_ERROR "The programs would load two different libraries ${library}: ${conflict_${library}}. Configure with "
                            "one of them only on CMAKE_PREFIX_PATH")
      endif()
    endforeach()
    list(APPEND resolved ${first})
  endforeach()
  set(${variable} ${resolved} PARENT_SCOPE)
endfunction()

# bring(FILE FOLDER): a copy of a library, under the name that programs ask for.
function(bring file folder)
  get_filename_component(as ${file} NAME)
  file(COPY_FILE ${file} ${root}/${folder}/${as})
  file(CHMOD ${root}/${folder}/${as} PERMISSIONS OWNER_READ OWNER_WRITE GROUP_READ WORLD_READ)
endfunction()

# bring_program(FILE FOLDER): a copy without symbols.
function(bring_program file folder)
  get_filename_component(as ${file} NAME)
  file(COPY_FILE ${file} ${root}/${folder}/${as})
  run(stripped ${STRIP} ${root}/${folder}/${as})
endfunction()
