#!/usr/bin/env bash
# try_ipex.sh PYTHON: makes build/env_ipex, with Intel Extension for PyTorch and the last torch that it
# has a release for, builds this project's libraries for that torch, and runs the tests of all
# providers' layers there.  The host is not needed, and has no version for that torch.
set -euo pipefail
cd "$(dirname "$0")/.."
python=${1:-python3.11}
environment=build/env_ipex
release=2.8.0

"$python" -m venv --clear "$environment"
pip() { "$environment/bin/python" -m pip --disable-pip-version-check --no-input install -q "$@"; }
# The index has a CUDA build, whose CUDA libraries are gigabytes.
pip --no-deps "torch==$release" "intel-extension-for-pytorch==$release"
pip -r requirements/ipex.txt
PYTHONPATH=. "$python" -m tools.cuda_stubs "$environment"

packages=$("$environment/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
cmake -S . -B build/ipex -G Ninja "-DTORCH_ROOT=$packages/torch" > build/ipex.log
cmake --build build/ipex --target cpu_backend_ops >> build/ipex.log
cp -r src/cpu_backend "$packages/"
cmake --install build/ipex --prefix "$packages/cpu_backend" >> build/ipex.log
"$environment/bin/python" -m pytest -q -p no:cacheprovider tests/providers/test_layers.py
