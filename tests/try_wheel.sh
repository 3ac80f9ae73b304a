#!/usr/bin/env bash
# try_wheel.sh TORCH VLLM: installs the wheel in dist/ beside them into a new environment, as a user
# does, and asks the demo question there with the commands of this machine less its compilers.
set -euo pipefail
cd "$(dirname "$0")/.."
environment=$PWD/build/env_wheel_$1
commands=$PWD/build/commands
pip() { "$environment/bin/python" -m pip install -q --disable-pip-version-check "$@"; }

rm -rf "$commands" && mkdir -p "$commands"
IFS=: read -ra folders <<< "$PATH"
for folder in "${folders[@]}"; do
  ln -s "$folder"/* "$commands" 2> /dev/null || true # the first of a name is the one that is kept
done
(cd "$commands" && rm -f -- cc c++ c89* c99* cpp* *gcc* *g++* *clang* ld ld.* as *-ld *-as cmake ninja nvcc)

"${PYTHON:-python3.11}" -m venv --clear "$environment"
pip --no-deps ${TORCH_PIP_ARGS:-} "torch==$1"
PYTHONPATH=. "${PYTHON:-python3.11}" -m tools.cuda_stubs "$environment" # a CPU build lacks nothing
pip --no-deps "vllm==$2"
list=requirements/host_${2%.*}.txt
[ -e "$list" ] || list=requirements/host.txt
pip -r "$list" gguf==0.19.0 # which reads the demo model's package
pip dist/*.whl
PATH=$environment/bin:$commands
unset CC CXX
if command -v c++ gcc clang; then exit 1; fi
python -m cpu_backend.info | grep -E "^(version|instruction set|built for torch) "
python examples/demo.py
