#!/usr/bin/env bash
# try_aarch64.sh TORCH VLLM: what the owner of an ARM server would do, on an emulated one.  Installs
# the wheel that `make wheel MACHINE=aarch64` has left in dist/ beside torch and the host for ARM into
# build/aarch64, asks the demo model a question, in one process and over HTTP, and runs tests of the
# ops there for as long as AARCH64_SECONDS (600).
# Every part prints its seconds.  Needs .venv, whose versions of the host's packages it takes.
set -euo pipefail
cd "$(dirname "$0")/.."
root=$PWD/build/aarch64/root
python=$PWD/.venv/bin/python
arm() { PYTHONPATH=. HF_HUB_OFFLINE=1 "$root/usr/bin/python" "$@"; }
part() { printf -- '--- %s: %d s\n' "$1" "$SECONDS"; SECONDS=0; }

"$python" -m tools.aarch64 "$root" "$1" "$2" dist/*_aarch64.whl
part "system, torch, host and the wheel"
arm -m cpu_backend.info | grep -E "^(version|instruction set|built for torch) "
part "what it says of this CPU"
if [ -n "${AARCH64_ZOO:-}" ]; then
  read -ra models <<< "$AARCH64_ZOO"
  ZOO_PYTHON=$root/usr/bin/python HF_HUB_OFFLINE=1 "$python" -m tests.zoo "${models[@]}"
  part "small models"
  exit
fi
arm -m tests.ask "$("$python" -m cpu_backend.demo_model)"
part "question"
# Loaded with rounded weights, and from a GGUF file; the server is emulated, who asks it is not.
ask_server() { "$python" -m tests.ask_server "$root/usr/bin/python" "$@"; }
ask_server "$("$python" -m cpu_backend.demo_model)" --quantization cpu_int8
part "server, cpu_int8"
mkdir -p build/aarch64/gguf
ask_server "$("$python" -c 'from pathlib import Path; from cpu_backend.demo_model import fetch
folder = Path("build/aarch64/gguf"); print(fetch.fetch_gguf(folder, folder / "LICENSE"))')"
part "server, GGUF file"
# Beginning with what every model needs; the first that fails ends the run, and so does the time.
names=(norm linear attention kv_cache rope activation elementwise sample quant_linear gguf_layer experts
  latent_attention step_recording)
files=("${names[@]/#/tests/ops/test_}")
status=0
PYTHONPATH=. timeout "${AARCH64_SECONDS:-600}" "$root/usr/bin/python" -m pytest -x -p no:cacheprovider \
  -m "not slow" "${files[@]/%/.py}" || status=$?
if [ $status = 124 ]; then
  echo "the time is over: what is not listed above was not run"
elif [ $status != 0 ]; then
  exit $status
fi
part "op tests"
