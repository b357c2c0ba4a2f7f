# Fails if README.md does not hold share/example/digits.cpp as it is.
cmake_minimum_required(VERSION 3.25)
file(READ ${SOURCE_DIR}/README.md readme)
file(READ ${SOURCE_DIR}/share/example/digits.cpp example)
string(FIND "${readme}" "${example}" place)
if(place EQUAL -1)
  message(FATAL_ERROR "the example program in README.md is not share/example/digits.cpp: copy it again")
endif()
