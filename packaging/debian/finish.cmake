# Run by CPack before it packs (CPACK_PRE_BUILD_SCRIPTS): gives every package its copyright and changelog, and compresses its manual
# pages, as Debian's policy asks (12.1, 12.5, 12.7). Their date is SOURCE_DATE_EPOCH where that is set.
find_program(GZIP gzip REQUIRED)

# compress(FILE...): each becomes FILE.gz, of the same bytes every time.
function(compress)
  if(ARGN)
    execute_process(COMMAND ${GZIP} -9 -n -f ${ARGN} COMMAND_ERROR_IS_FATAL ANY)
  endif()
endfunction()

string(TIMESTAMP date "%a, %d %b %Y %H:%M:%S +0000" UTC)
foreach(component ${CPACK_COMPONENTS_ALL})
  string(TOUPPER ${component} upper)
  set(name ${CPACK_DEBIAN_${upper}_PACKAGE_NAME})
  set(root ${CPACK_TEMPORARY_DIRECTORY}/${component}${CPACK_PACKAGING_INSTALL_PREFIX}/share)
  set(documents ${root}/doc/${name})
  file(WRITE ${documents}/changelog "${name} (${CPACK_PACKAGE_VERSION}) stable; urgency=medium\n\n"
       "  * Lockstep ${CPACK_PACKAGE_VERSION}, packaged from its source by CPack.\n\n -- ${CPACK_PACKAGE_CONTACT}  ${date}\n")
  compress(${documents}/changelog)
  file(COPY_FILE ${CPACK_RESOURCE_FILE_LICENSE} ${documents}/copyright)
  file(REMOVE ${documents}/LICENSE)
  set(overrides ${CMAKE_CURRENT_LIST_DIR}/${name}.lintian-overrides)
  if(EXISTS ${overrides})
    file(MAKE_DIRECTORY ${root}/lintian/overrides)
    file(COPY_FILE ${overrides} ${root}/lintian/overrides/${name})
    file(CHMOD ${root}/lintian/overrides/${name} PERMISSIONS OWNER_READ OWNER_WRITE GROUP_READ WORLD_READ)
  endif()
  file(GLOB pages ${root}/man/man*/*.[1-9])
  compress(${pages})
endforeach()
