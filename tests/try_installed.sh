#!/usr/bin/env bash
# try_installed.sh wheel|editable: installs the package so into an environment of its own, which
# borrows torch and the host from .venv, and runs the tests of what installing decides.
set -euo pipefail
cd "$(dirname "$0")/.."
case $1 in
  wheel) package=(build/wheel/*.whl) ;;
  editable) package=(-e .) ;;
esac
environment=build/env_$1

site() { "$1/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))'; }

.venv/bin/python -m venv --clear --without-pip "$environment"
site .venv > "$(site "$environment")/host.pth" # behind what is installed in it, editable or not
"$environment/bin/python" -m pip install -q --disable-pip-version-check --no-build-isolation \
  --no-deps --ignore-installed "${package[@]}"
"$environment/bin/python" -m pytest -q tests/plugin/test_current_folder.py
