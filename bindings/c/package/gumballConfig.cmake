# find_package(gumball CONFIG) gives gumball::gumball, the shared library, and gumball::gumball_static.
get_filename_component(_gumball_prefix "${CMAKE_CURRENT_LIST_DIR}/../../.." ABSOLUTE)

if(NOT TARGET gumball::gumball)
    add_library(gumball::gumball SHARED IMPORTED)
    set_target_properties(gumball::gumball PROPERTIES
        IMPORTED_LOCATION "${_gumball_prefix}/lib/libgumball.so"
        IMPORTED_NO_SONAME TRUE
        INTERFACE_INCLUDE_DIRECTORIES "${_gumball_prefix}/include")

    add_library(gumball::gumball_static STATIC IMPORTED)
    set_target_properties(gumball::gumball_static PROPERTIES
        IMPORTED_LOCATION "${_gumball_prefix}/lib/libgumball.a"
        INTERFACE_INCLUDE_DIRECTORIES "${_gumball_prefix}/include"
        INTERFACE_LINK_LIBRARIES "gcc_s;util;rt;pthread;m;dl")
endif()

unset(_gumball_prefix)
