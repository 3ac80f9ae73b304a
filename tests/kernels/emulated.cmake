# Tests of the instruction sets of dispatch/targets.def on emulated CPUs: Bochs's, or qemu's, which
# takes its CPU from QEMU_CPU.
set(bochs ${CPU_BACKEND_KERNEL_TESTS_IN_BOCHS})

# add_emulated_test(name area cpu [variable=value]...)
function(add_emulated_test name area cpu)
  set(environment ${ARGN})
  if(cpu)
    list(APPEND environment BOCHS_CPU=${cpu} QEMU_CPU=${cpu})
  endif()
  add_test(NAME ${name} COMMAND kernel_tests ${area}/)
  set_tests_properties(${name} PROPERTIES ENVIRONMENT "${environment}")
endfunction()

# These are compiled for the baseline only, and some need threads: the same on every CPU, so that
# for x86 the native run has them.
set(baseline_areas barrier half plan collectives system)
list(REMOVE_ITEM areas dispatch ${baseline_areas})
if(NOT bochs)
  foreach(area IN LISTS baseline_areas)
    add_emulated_test(kernels.${area} ${area} "")
  endforeach()
endif()

# A target runs on the first CPU that had it, so that an instruction of a later one is caught.
foreach(target IN LISTS targets)
  if(bochs AND target STREQUAL "scalar")
    continue()  # as well
  endif()
  foreach(area IN LISTS areas)
    if("${${target}_areas}" STREQUAL "" OR area IN_LIST ${target}_areas)
      add_emulated_test(kernels.${area}.${target} ${area} "${${target}_cpu}" CPU_BACKEND_ISA=${target})
    endif()
  endforeach()
endforeach()

# The target that the library takes by itself on a CPU, perhaps under a system that saves only the
# register sets of the mask BOCHS_XCR0.
function(expect_target expected cpu)
  string(JOIN . name kernels.dispatch ${cpu} ${ARGN})
  add_emulated_test(${name} dispatch ${cpu} CPU_BACKEND_EXPECTED_ISA=${expected} ${ARGN})
endfunction()
foreach(target IN LISTS targets)
  if(${target}_cpu)
    # Two targets may name one CPU, which then takes the later.
    set(best_of_${${target}_cpu} ${target})
    list(APPEND cpus ${${target}_cpu})
  endif()
endforeach()
list(REMOVE_DUPLICATES cpus)
foreach(cpu IN LISTS cpus)
  expect_target(${best_of_${cpu}} ${cpu})
endforeach()
if(CMAKE_SYSTEM_PROCESSOR STREQUAL "s390x")
  expect_target(scalar max,vxeh=off)  # a z13: vectors, none of fp32
endif()
if(bochs)
  # Without any single feature of a target the CPU takes the target's base.  Bochs refuses to take
  # away those on which others depend, and does not know avx512vl.
  set(in_bochs fma avx_fma f16c avx_f16c avx512bw avx512bw avx512dq avx512dq
    avx512_vnni avx512vnni avx512_bf16 avx512bf16 avx_vnni avx_vnni amx_bf16 amx_bf16
    amx_int8 amx_int8)
  foreach(target IN LISTS targets)
    foreach(feature IN LISTS ${target}_features)
      list(FIND in_bochs ${feature} at)
      if(at GREATER_EQUAL 0)
        math(EXPR at "${at} + 1")
        list(GET in_bochs ${at} name)
        expect_target(${${target}_base} ${${target}_cpu} BOCHS_WITHOUT=${name})
      endif()
    endforeach()
  endforeach()
  expect_target(scalar core2_penryn_t9600)
  expect_target(scalar corei7_ivy_bridge_3770k)
  expect_target(avx512_bf16 sapphire_rapids BOCHS_XCR0=0xe7)  # tiles are not saved
  expect_target(avx2 corei7_skylake_x BOCHS_XCR0=0x7)         # AVX-512's registers are not saved
  expect_target(avx2_vnni sapphire_rapids BOCHS_XCR0=0x7)
  expect_target(scalar corei7_skylake_x BOCHS_XCR0=0x3)       # nor AVX's
endif()
