#!/usr/bin/env bash
# Two environments on the same work, A B A B, so that a noisy machine is noisy for both:
#   benchmarks/compare.sh PYTHON_A PYTHON_B MODEL [options of bench_engine.py]
# The environment of B runs without platform plugins (VLLM_PLUGINS empty), so B may be the host's
# own CPU build in an environment that can see this package.
set -euo pipefail
a=$1 b=$2 model=$3
shift 3
here=$(cd "$(dirname "$0")" && pwd)
threads=$(nproc)
for round in 1 2; do
  echo "A$round $("$a" "$here/bench_engine.py" --model "$model" "$@" 2> /dev/null | grep '^{')"
  echo "B$round $(VLLM_PLUGINS='' VLLM_TARGET_DEVICE=cpu VLLM_CPU_NUM_OF_RESERVED_CPU=0 \
    VLLM_CPU_OMP_THREADS_BIND="0-$((threads - 1))" \
    "$b" "$here/bench_engine.py" --model "$model" "$@" 2> /dev/null | grep '^{')"
done
