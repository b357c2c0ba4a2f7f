# The target docs: the site of docs/, by mkdocs with mkdocs-material. It is there where mkdocs is.
find_program(MKDOCS mkdocs)
mark_as_advanced(MKDOCS)
set(site ${PROJECT_BINARY_DIR}/site)

if(MKDOCS)
  add_custom_target(docs COMMAND ${MKDOCS} build --strict --quiet -f ${PROJECT_SOURCE_DIR}/mkdocs.yml -d ${site}
                    COMMENT "Writing the site: ${site}/index.html" VERBATIM)
endif()
