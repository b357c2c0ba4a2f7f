# The target docs: the site of docs/, by mkdocs with mkdocs-material. It is there where mkdocs is.
find_program(MKDOCS mkdocs)
mark_as_advanced(MKDOCS)
set(site ${PROJECT_BINARY_DIR}/site)

if(MKDOCS)
  add_custom_target(docs COMMAND ${MKDOCS} build --strict --quiet -f ${PROJECT_SOURCE_DIR}/mkdocs.yml -d ${site}
                    COMMENT "Writing the site: ${site}/index.html" VERBATIM)
endif()

# The target api: the reference of the public headers, by Doxygen, as a part of the site.
find_program(DOXYGEN doxygen)
mark_as_advanced(DOXYGEN)
if(DOXYGEN)
  set(LOCKSTEP_API_OUTPUT ${site})
  configure_file(${PROJECT_SOURCE_DIR}/cmake/api/Doxyfile.in ${PROJECT_BINARY_DIR}/Doxyfile @ONLY)
  add_custom_target(api COMMAND ${CMAKE_COMMAND} -E make_directory ${site} COMMAND ${DOXYGEN} ${PROJECT_BINARY_DIR}/Doxyfile
                    COMMENT "Writing the API reference: ${site}/api-reference/index.html" VERBATIM)
endif()
