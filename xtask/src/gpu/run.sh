#!/bin/sh
# Tests the CUDA registrar on this machine's driver, and measures memory for its GPU.
#
#     ./run.sh [FOLDER [ARGUMENT...]]
#
# The rows and the log go to FOLDER (default: out); the arguments are those of `kvmem-lab bench gpu`,
# such as --quick, --size 64GiB or --borrow-hugepages. Without a driver or a GPU it says `skipped`
# and succeeds. It needs neither a network nor a toolchain.
set -u
# Nothing runs that the current folder has.
case ":$PATH:" in *:[!/]*) PATH=/usr/local/bin:/usr/bin:/bin ;; esac
here=$(cd "$(dirname "$0")" && pwd)
out=${1:-out}
[ $# -gt 0 ] && shift
mkdir -p "$out" || exit 1
log=$out/gpu.log
failed=0

# Runs a program, whose output is shown and kept, and returns its status.
run() {
    { "$@" 2>&1; echo $? > "$out/status"; } | tee -a "$log"
    status=$(cat "$out/status")
    rm -f "$out/status"
    return "$status"
}

: > "$log"
{
    uname -srm
    nvidia-smi --query-gpu=name,driver_version,pci.bus_id --format=csv,noheader 2>/dev/null
    cat /sys/kernel/mm/transparent_hugepage/enabled 2>/dev/null
    grep -E '^(MemTotal|MemAvailable|HugePages_)' /proc/meminfo 2>/dev/null
} >> "$log"
run "$here/tests" the_real_driver --nocapture --test-threads 1 || failed=1
run "$here/kvmem-lab" bench gpu --json "$out/gpu.json" "$@" || failed=1
if [ "$failed" -ne 0 ]; then
    echo "failed: see $log"
    exit 1
fi
if grep -q '^ *skipped: no ' "$log"; then
    echo "skipped: nothing was measured"
else
    echo "rows: $out/gpu.json"
fi
