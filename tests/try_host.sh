#!/usr/bin/env bash
# try_host.sh TORCH VLLM [few|more]: does what a user of these versions does, in a new environment,
# build/env_host_VLLM: installs them and the wheel in dist/, and asks the demo question.  Then runs a
# choice of the tests there, if one is named.  The environment stays, for more of them by hand.
#
# From pip on, there are the commands of this machine less its compilers and those of .venv.
set -euo pipefail
cd "$(dirname "$0")/.."
torch=$1 vllm=$2 choice=${3:-}
python=${PYTHON:-python3.11}
environment=$PWD/build/env_host_$vllm
commands=$PWD/build/commands
with_compilers=$PATH
pip() { # its words only where it fails: most are of GPU packages, which a CPU does not need
  python -m pip --disable-pip-version-check --no-input install -q "$@" 2> "$environment/pip.log" \
    || { cat "$environment/pip.log" >&2; exit 1; }
}

rm -rf "$commands" && mkdir -p "$commands"
IFS=: read -ra folders <<< "$PATH"
for folder in "${folders[@]}"; do
  [ "$folder" = "$PWD/.venv/bin" ] && continue
  ln -s "$folder"/* "$commands" 2> /dev/null || true # the first of a name is the one that is kept
done
(cd "$commands" && rm -f -- cc c++ c89* c99* cpp* *gcc* *g++* *clang* ld ld.* as *-ld *-as cmake ninja nvcc)
"$python" -m venv --clear "$environment"
PATH=$environment/bin:$commands
unset CC CXX
if command -v c++ gcc clang; then
  echo "error: these compilers are left: add their names to those that $0 removes." >&2
  exit 1
fi

# The usual index has a CUDA build, whose CUDA libraries are gigabytes; a CPU build lacks nothing.
pip --no-deps ${TORCH_PIP_ARGS:-} "torch==$torch"
pip --no-deps "vllm==$vllm"
PATH=$with_compilers PYTHONPATH=. "$python" -m tools.cuda_stubs "$environment"
list=requirements/host_${vllm%.*}.txt
[ -e "$list" ] || list=requirements/host.txt
pip -r "$list" gguf==0.19.0 # which reads the demo model's package
pip dist/*_"$(uname -m)".whl
# What pip takes along with a package might be another torch, and CUDA's libraries with it.
said=$(python -c 'from importlib.metadata import version as v; print("torch", v("torch"), "vllm", v("vllm"))')
if [[ ! "$said" =~ ^"torch $torch"(\+cpu)?" vllm $vllm"$ ]]; then
  echo "error: $said were installed in place of torch $torch and vllm $vllm: $list asks for others." >&2
  exit 1
fi
if compgen -G "$environment/lib/python3*/site-packages/nvidia*"; then
  echo "error: CUDA's packages were installed: tools/cuda_stubs.py leaves too much in what torch asks for." >&2
  exit 1
fi
info=$(python -m cpu_backend.info)
grep -E "^(version|instruction set|built for torch) " <<< "$info"
if ! grep -q "^built for torch  *${torch%.*}\." <<< "$info"; then
  echo "error: what was loaded is not built for torch ${torch%.*}: name it in WHEEL_TORCH." >&2
  exit 1
fi
# A host that the plugin leaves alone is one that knows no CPU; this says what differs in it.
python -m cpu_backend.host > "$environment/host" || { grep "^The installed vLLM" "$environment/host" >&2; exit 1; }
python examples/demo.py

# Each file holds one thing that the host does: the seam itself, requests, ranks, weights, replicas.
quantized=tests/e2e/test_quantized.py::test_checkpoint_keeps_its_perplexity
case $choice in
  few) tests=("$quantized"{"[w8a8]","[awq]"}) ;;
  more) tests=("$quantized" tests/features/test_structured_outputs.py tests/ray_serve/test_endpoint.py) ;;
  *) exit ;;
esac
pip -r requirements/test.txt $([ "$choice" = few ] || echo "-r requirements/ray.txt")
HF_HUB_OFFLINE=1 OMP_WAIT_POLICY=passive exec python -m pytest -q -p no:cacheprovider -n 2 --no-loadscope-reorder -m "not slow" \
  tests/plugin/test_{host_seam,activation,settings}.py tests/zoo tests/e2e/test_{server,tokens}.py \
  "tests/e2e/test_parallel.py::test_two_tensor_parallel_ranks_give_the_tokens_of_one" \
  "tests/e2e/test_speculation.py::test_greedy_tokens_are_those_without_it[ngram]" \
  "tests/e2e/test_speculation_states.py::test_states_of_refused_drafts_are_taken_back[Qwen3-Next]" "${tests[@]}"
