# cmake -DNM=<nm> -DTARGET=<name> -DOBJECTS=<a.o;b.o> -P check_symbols.cmake
#
# The linker keeps one copy of a weak symbol, whichever object brings it.  Were one shared between
# targets, AVX-512 code could end up in the path of a CPU without it.  So every weak symbol of a
# target's object must live in the namespace cpu_backend::<target>.
string(LENGTH "${TARGET}" length)
set(inside "^_Z(GVZ|GV|TV|Z)*NK?11cpu_backend${length}${TARGET}")
set(seen 0)
foreach(object IN LISTS OBJECTS)
  # -p keeps the order of the symbol table, so both listings have the same lines.
  execute_process(COMMAND ${NM} -p ${object} OUTPUT_VARIABLE mangled COMMAND_ERROR_IS_FATAL ANY)
  execute_process(COMMAND ${NM} -p -C ${object} OUTPUT_VARIABLE plain COMMAND_ERROR_IS_FATAL ANY)
  # Brackets and semicolons would confuse CMake's lists.
  string(REGEX REPLACE "[][;]" "_" plain "${plain}")
  string(REPLACE "\n" ";" mangled "${mangled}")
  string(REPLACE "\n" ";" plain "${plain}")
  foreach(line name IN ZIP_LISTS mangled plain)
    if(NOT line MATCHES "^[0-9a-f]+ ([A-Za-z]) ([^ ]+)")
      continue()
    endif()
    math(EXPR seen "${seen} + 1")
    set(kind "${CMAKE_MATCH_1}")
    set(symbol "${CMAKE_MATCH_2}")
    if(kind MATCHES "[WwVvu]" AND NOT symbol MATCHES "${inside}" AND
       NOT symbol MATCHES "^DW\\.ref\\.")  # the C++ runtime's own indirection
      message(SEND_ERROR "${object}: weak symbol outside cpu_backend::${TARGET}: ${name}")
    endif()
  endforeach()
endforeach()
if(seen EQUAL 0)
  message(FATAL_ERROR "no symbols found in ${OBJECTS}: nothing was checked")
endif()
