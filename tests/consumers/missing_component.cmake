# cmake -Dproject=.. -Dbuild=.. -Dprefix=.. -Dgenerator=.. -Dcompiler=.. -Dcomponent=.. -P missing_component.cmake
# Asking for a component that is not installed must fail and say which one.
file(REMOVE_RECURSE ${build})
execute_process(
  COMMAND ${CMAKE_COMMAND} -S ${project} -B ${build} -G ${generator} -DCMAKE_CXX_COMPILER=${compiler}
    -DCMAKE_PREFIX_PATH=${prefix} -Dexpect_below=${prefix} -Dcomponents=${component}
  RESULT_VARIABLE result OUTPUT_VARIABLE output ERROR_VARIABLE output)
string(REGEX REPLACE "[ \n]+" " " output "${output}")  # CMake breaks the lines of its messages
message("${output}")
if(result EQUAL 0)
  message(FATAL_ERROR "configuring succeeded")
elseif(NOT output MATCHES "this installation of pn has no component '${component}', but core cpu")
  message(FATAL_ERROR "the message does not name the component and those that there are")
endif()
