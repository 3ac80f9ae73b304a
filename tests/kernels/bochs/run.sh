#!/usr/bin/env bash
# run.sh PROGRAM [ARGUMENT...]
#
# Runs a static x86-64 Linux program on a CPU that Bochs emulates; prints its output and exits with
# its status.  The program sees the variables CPU_BACKEND_* of the environment.
#   BOCHS_CPU      the CPU; `bochs-headless --help cpu` lists them
#   BOCHS_WITHOUT  features that it shall not have, in Bochs's names
#   BOCHS_XCR0     mask of the register sets that the system saves: 0x7 is up to AVX, 0x3 up to SSE
#   BOCHS_TIMEOUT  seconds
# The guest is machine.cpp, not an operating system: see there for what a program may do.
set -euo pipefail

program=$1
timeout=${BOCHS_TIMEOUT:-900}
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

"${CXX:-c++}" -std=c++17 -O1 -Wall -Wextra -DXCR0="${BOCHS_XCR0:-0x600e7}" \
  -ffreestanding -nostdlib -static -fno-pic -no-pie -fno-exceptions -fno-rtti \
  -fno-stack-protector -fcf-protection=none -mno-red-zone -mgeneral-regs-only \
  -Wl,--build-id=none -Wl,--oformat=binary -T "$here/machine.ld" \
  "$here/reset.S" "$here/machine.cpp" -o "$work/rom"

variables=()
for name in $(compgen -e CPU_BACKEND_ || true); do variables+=("$name=${!name}"); done
printf '%s\0' "$@" '' ${variables[@]+"${variables[@]}"} '' > "$work/disk"
truncate -s 65536 "$work/disk"
cat "$program" >> "$work/disk"
truncate -s %516096 "$work/disk" # whole cylinders of 16 heads and 63 sectors

# A slow clock makes devices fast: their delays take fewer instructions.  Nothing runs the VGA ROM,
# but Bochs wants one.
cat > "$work/bochsrc" << EOT
cpu: model=${BOCHS_CPU:-sapphire_rapids}, exclude_features="${BOCHS_WITHOUT:-}"
cpu: ips=1000000, reset_on_triple_fault=0
memory: guest=128, host=128
romimage: file=$work/rom
vgaromimage: file=$work/rom
ata0-master: type=disk, path=$work/disk, mode=flat
com1: enabled=1, mode=file, dev=$work/output
com2: enabled=1, mode=file, dev=$work/status
display_library: nogui
log: $work/log
panic: action=fatal
error: action=report
info: action=ignore
EOT
# Bochs ends with a panic also when the guest shuts down; the status is what the guest wrote.
touch "$work"/{output,status,log}
timeout -s KILL "$timeout" bochs-headless -q -f "$work/bochsrc" > "$work/screen" 2>&1 || true

cat "$work/output"
status=$(< "$work/status")
if [[ ! $status =~ ^[0-9]{3}$ ]]; then
  echo "error: the machine stopped before the program ended, or $timeout s passed" >&2
  cat "$work/screen" "$work/log" >&2
  exit 125
fi
exit $((10#$status))
