#!/usr/bin/env bash
# try_host.sh PYTHON TORCH VLLM: runs a choice of the tests beside another version of the host and of
# torch, with the wheel in dist/, in an environment of its own: build/env_host_VLLM.  That stays, and is
# made anew only when something else belongs into it.
set -euo pipefail
cd "$(dirname "$0")/.."
python=$1 torch=$2 vllm=$3
environment=build/env_host_$vllm
requirements=(requirements/{"host_${vllm%.*}",test,ray}.txt)
pip() { "$environment/bin/python" -m pip --disable-pip-version-check --no-input install -q "$@"; }

contents=$("$python" --version && echo "torch $torch, vllm $vllm" && cat requirements/host.txt "${requirements[@]}")
if [ "$contents" != "$(cat "$environment/contents" 2> /dev/null)" ]; then
  "$python" -m venv --clear "$environment"
  # The index has a CUDA build, whose CUDA libraries are gigabytes.
  pip --no-deps "torch==$torch" "vllm==$vllm"
  PYTHONPATH=. "$python" -m tools.cuda_stubs "$environment" > "$environment/stubs.log"
  # pip's only words would be the list of what vLLM asks for and a CPU does not need.
  pip "${requirements[@]/#/-r}" 2> "$environment/pip.log" || { cat "$environment/pip.log" >&2; exit 1; }
  echo "$contents" > "$environment/contents"
fi
pip --no-deps --force-reinstall dist/*.whl

export PATH=$PWD/$environment/bin:$PATH HF_HUB_OFFLINE=1
# pip may have taken others along with the requirements, and CUDA's packages with torch.
python -c 'from importlib.metadata import version as v; print("torch", v("torch"), "vllm", v("vllm"))' \
  | grep -Fx "torch $torch vllm $vllm"
if compgen -G "$environment/lib/python3*/site-packages/nvidia*"; then
  echo "error: CUDA's packages were installed: tools/cuda_stubs.py leaves too much in what torch asks for." >&2
  exit 1
fi
python -m cpu_backend.info | grep "^built for torch  *${torch%.*}\."
python examples/demo.py
# Each file holds one thing that the host does: the seam itself, requests, ranks, weights, replicas.
exec python -m pytest -q -p no:cacheprovider -n 2 --no-loadscope-reorder -m "not slow" \
  tests/plugin/test_{host_seam,activation}.py tests/zoo tests/e2e/test_{server,tokens}.py \
  "tests/e2e/test_parallel.py::test_two_tensor_parallel_ranks_give_the_tokens_of_one" \
  "tests/e2e/test_speculation.py::test_greedy_tokens_are_those_without_it[ngram]" \
  "tests/e2e/test_quantized.py::test_checkpoint_keeps_its_perplexity" \
  tests/features/test_structured_outputs.py tests/ray_serve/test_endpoint.py
