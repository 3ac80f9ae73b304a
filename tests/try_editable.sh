#!/usr/bin/env bash
# Installs the package with `pip install -e` into an environment of its own, which borrows torch and
# the host from .venv, and runs the tests of what installing decides: in the clone, where the sources
# lie, and a server whose processes begin anew where an older clone lies.
set -euo pipefail
cd "$(dirname "$0")/.."
environment=build/env_editable
tests=tests/plugin/test_current_folder.py

site() { "$1/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))'; }

.venv/bin/python -m venv --clear --without-pip "$environment"
site .venv > "$(site "$environment")/host.pth" # behind what is installed in it
"$environment/bin/python" -m pip install -q --disable-pip-version-check --no-deps \
  --ignore-installed -e .
"$environment/bin/python" -m pytest -q -m "not slow" "$tests"::test_{info,server} \
  "$tests::test_host_finds_the_installed_plugin[clone-here]"
