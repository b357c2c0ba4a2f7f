# The tests in a bundle, and the documents (make.cmake includes this file).
file(MAKE_DIRECTORY ${root}/tests/bin)
foreach(program ${programs})
  get_filename_component(as ${program} NAME)
  if(NOT as STREQUAL "lockstep")
    file(CREATE_LINK ../../libexec/launch ${root}/tests/bin/${as} SYMBOLIC)
  endif()
endforeach()
file(COPY ${SOURCE}/share ${SOURCE}/docs DESTINATION ${root})
file(COPY ${SOURCE}/tests DESTINATION ${root} PATTERN "*.cpp" EXCLUDE PATTERN "*.h" EXCLUDE PATTERN "CMakeLists.txt" EXCLUDE
     PATTERN "*.cmake" EXCLUDE PATTERN "__pycache__" EXCLUDE PATTERN fuzz EXCLUDE PATTERN package EXCLUDE PATTERN "tests/run.sh" EXCLUDE
     PATTERN "tests/campaign.sh" EXCLUDE)

run(tests ${CTEST} --test-dir ${BUILD} --show-only=json-v1)
file(WRITE ${OUTPUT}/ctest.json "${tests}")
execute_process(COMMAND ${PYTHON} ${SOURCE}/cmake/bundle/test_list.py ${SOURCE} ${BUILD} ${PROGRAMS} ${MPIRUN}
                INPUT_FILE ${OUTPUT}/ctest.json OUTPUT_FILE ${root}/tests/list.json COMMAND_ERROR_IS_FATAL ANY)
