# Tests of x86 instruction sets that the build machine may lack, on CPUs that Bochs emulates.

# A target runs on the first CPU that has it, so that an instruction of a later one is caught.
# half and plan are compiled for the baseline only, the same on every x86: the native run has them,
# and collectives, which need threads.
list(REMOVE_ITEM areas dispatch barrier half plan collectives)
function(emulate_target target cpu)
  cmake_parse_arguments(PARSE_ARGV 2 only "" "" "AREAS")
  if(NOT only_AREAS)
    set(only_AREAS ${areas})
  endif()
  foreach(area IN LISTS only_AREAS)
    add_test(NAME kernels.${area}.${target} COMMAND kernel_tests ${area}/)
    set_tests_properties(kernels.${area}.${target} PROPERTIES
      ENVIRONMENT "CPU_BACKEND_ISA=${target};BOCHS_CPU=${cpu}")
  endforeach()
endfunction()
emulate_target(avx2_vnni arrow_lake AREAS quant)
emulate_target(avx512 corei7_skylake_x)
# The rest of these is that of avx512.
emulate_target(avx512_vnni corei7_icelake_u AREAS vec quant)
emulate_target(avx512_bf16 sapphire_rapids AREAS vec gemm attention)
emulate_target(amx sapphire_rapids AREAS gemm)

# The target that the library takes by itself on a CPU, perhaps WITHOUT one of its features, or
# under a system that saves only the register sets of the mask XCR0.
function(expect_target expected cpu)
  cmake_parse_arguments(PARSE_ARGV 2 only "" "WITHOUT;XCR0" "")
  string(JOIN . name kernels.dispatch ${cpu} ${only_WITHOUT} ${only_XCR0})
  add_test(NAME ${name} COMMAND kernel_tests dispatch/)
  set(environment CPU_BACKEND_EXPECTED_ISA=${expected} BOCHS_CPU=${cpu})
  if(only_WITHOUT)
    list(APPEND environment BOCHS_WITHOUT=${only_WITHOUT})
  elseif(only_XCR0)
    list(APPEND environment BOCHS_XCR0=${only_XCR0})
  endif()
  set_tests_properties(${name} PROPERTIES ENVIRONMENT "${environment}")
endfunction()
expect_target(scalar core2_penryn_t9600)
expect_target(scalar corei7_ivy_bridge_3770k)
expect_target(scalar broadwell_ult WITHOUT avx_fma)
expect_target(scalar broadwell_ult WITHOUT avx_f16c)
expect_target(avx2 broadwell_ult)
expect_target(avx2 corei7_skylake_x WITHOUT avx512bw)
expect_target(avx2 corei7_skylake_x WITHOUT avx512dq)
expect_target(avx2_vnni arrow_lake)
expect_target(avx512 corei7_skylake_x)
expect_target(avx512 corei7_icelake_u WITHOUT avx512vnni)
expect_target(avx512_vnni corei7_icelake_u)
expect_target(avx512_vnni sapphire_rapids WITHOUT avx512bf16)
expect_target(amx sapphire_rapids)
expect_target(avx512_bf16 sapphire_rapids WITHOUT amx_bf16)
expect_target(avx512_bf16 sapphire_rapids XCR0 0xe7)  # tiles are not saved
expect_target(avx2 corei7_skylake_x XCR0 0x7)    # AVX-512's registers are not saved
expect_target(avx2_vnni sapphire_rapids XCR0 0x7)
expect_target(scalar corei7_skylake_x XCR0 0x3)  # nor AVX's
