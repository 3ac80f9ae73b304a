#!/usr/bin/env bash
# try_s390x.sh TORCH: compiles and links all libraries for IBM Z with a cross compiler, against the
# headers in the folder TORCH of a torch package, which are the same for every CPU.  torch itself need
# not be there: its symbols are looked up at run time.  Without optimization, as nothing runs.
set -euo pipefail
cd "$(dirname "$0")/.."
build=build/libraries-s390x
log=build/libraries-s390x.log
mkdir -p build

TORCH_ROOT=$1 cmake --workflow --preset libraries-s390x > "$log" 2>&1 || { cat "$log" >&2; exit 1; }
for library in "$build"/_kernels.so "$build"/_ops_*.so; do
  s390x-linux-gnu-readelf -h "$library" | grep -q "Machine: *IBM S/390" \
    || { echo "error: $library is not for s390x" >&2; exit 1; }
  # What it asks of the kernels has their version; what has none, nobody defines.
  missing=$(s390x-linux-gnu-nm -DC --undefined-only "$library" | grep " cpu_backend::" | grep -v "@CPU_BACKEND_" || true)
  [ -z "$missing" ] || { echo "error: $library asks for what is not there: $missing" >&2; exit 1; }
  echo "$library: compiled and linked, never run"
done
