#!/usr/bin/env bash
# Installs the package with `pip install -e` into an environment of its own, which borrows torch and
# the host from .venv, and runs the tests of what installing decides.
set -euo pipefail
cd "$(dirname "$0")/.."
environment=build/env_editable

site() { "$1/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))'; }

.venv/bin/python -m venv --clear --without-pip "$environment"
site .venv > "$(site "$environment")/host.pth" # behind what is installed in it
"$environment/bin/python" -m pip install -q --disable-pip-version-check --no-deps \
  --ignore-installed -e .
"$environment/bin/python" -m pytest -q -m "not slow" tests/plugin/test_current_folder.py
