# Finds ONNX Runtime's custom-operator headers, which its Python wheel does not carry. Sources, in this order:
# ONNXRUNTIME_INCLUDE_DIR (variable or environment); the system's libonnxruntime-dev; that Debian package, fetched.
# Sets `result` to the folder that holds onnxruntime_cxx_api.h, or to "" when the operators are to be left out.
function(dspark_find_onnxruntime_headers result)
  set(${result} "" PARENT_SCOPE)
  if(DSPARK_ONNXRUNTIME_OPS STREQUAL "OFF")
    message(STATUS "ONNX Runtime operators: left out (DSPARK_ONNXRUNTIME_OPS=OFF); bundles use the standard dialect")
    return()
  endif()
  if(NOT DSPARK_ONNXRUNTIME_OPS MATCHES "^(AUTO|ON)$")
    message(FATAL_ERROR "DSPARK_ONNXRUNTIME_OPS is '${DSPARK_ONNXRUNTIME_OPS}', needs AUTO, ON or OFF")
  endif()

  set(fetched ${CMAKE_BINARY_DIR}/onnxruntime_headers)
  set(names onnxruntime_cxx_api.h)
  set(suffixes "" onnxruntime onnxruntime/core/session core/session)
  if(NOT ONNXRUNTIME_INCLUDE_DIR)
    set(ONNXRUNTIME_INCLUDE_DIR "$ENV{ONNXRUNTIME_INCLUDE_DIR}")
  endif()
  if(ONNXRUNTIME_INCLUDE_DIR)
    # A folder that was asked for is used or refused, never silently replaced by another.
    find_path(found_headers NAMES ${names} PATHS ${ONNXRUNTIME_INCLUDE_DIR} PATH_SUFFIXES ${suffixes} NO_DEFAULT_PATH NO_CACHE)
    if(NOT found_headers)
      message(FATAL_ERROR "ONNXRUNTIME_INCLUDE_DIR is '${ONNXRUNTIME_INCLUDE_DIR}', which holds no onnxruntime_cxx_api.h")
    endif()
  else()
    find_path(found_headers NAMES ${names} PATH_SUFFIXES ${suffixes} NO_CACHE)
    if(NOT found_headers)
      if(NOT EXISTS ${fetched}/usr/include/onnxruntime/onnxruntime_cxx_api.h)
        message(STATUS "ONNX Runtime operators: fetching the headers (Debian package libonnxruntime-dev)")
        execute_process(
          COMMAND sh ${CMAKE_CURRENT_FUNCTION_LIST_DIR}/fetch_onnxruntime_headers.sh ${fetched}
          RESULT_VARIABLE status OUTPUT_VARIABLE log ERROR_VARIABLE log TIMEOUT 120)
        if(NOT status EQUAL 0)
          message(STATUS "ONNX Runtime operators: fetching the headers failed (${status}): ${log}")
        endif()
      endif()
      find_path(found_headers NAMES ${names} PATHS ${fetched}/usr/include/onnxruntime NO_DEFAULT_PATH NO_CACHE)
    endif()
  endif()

  if(found_headers)
    message(STATUS "ONNX Runtime operators: built with the headers in ${found_headers}")
    set(${result} ${found_headers} PARENT_SCOPE)
  elseif(DSPARK_ONNXRUNTIME_OPS STREQUAL "ON")
    message(FATAL_ERROR "ONNX Runtime's headers were not found and could not be fetched; install libonnxruntime-dev or "
                        "set ONNXRUNTIME_INCLUDE_DIR, or allow a build without them (DSPARK_ONNXRUNTIME_OPS=AUTO)")
  else()
    message(STATUS "ONNX Runtime operators: left out, since its headers were not found and could not be fetched; "
                   "bundles use the slower standard dialect. Install libonnxruntime-dev or set ONNXRUNTIME_INCLUDE_DIR")
  endif()
endfunction()
