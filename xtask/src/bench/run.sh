#!/bin/sh
# Measures kvmem on this machine, within six minutes. It needs neither a network nor a toolchain.
#
#     ./run.sh [FOLDER [SUITE [ARGUMENT...]]]
#
# The rows go to FOLDER (default: out), one file a suite, with the output and what the machine is;
# FOLDER.tar.gz has all of them. `cargo xtask bench-record --from FOLDER` files the rows where the
# archive was made. A SUITE is one of `kvmem-lab bench`, with its arguments (such as --quick);
# without it all suites below run with --quick. SECONDS_IN_ALL limits the time of them; a suite that
# takes more than twice its share is ended. Without a driver or a GPU the suite `gpu` says so, and
# nothing fails.
set -u
# Nothing runs that the current folder has.
case ":${PATH:-.}:" in *:[!/]*) PATH=/usr/local/bin:/usr/bin:/bin ;; esac
export PATH
here=$(cd "$(dirname "$0")" && pwd)
out=${1:-out}
[ $# -gt 0 ] && shift
mkdir -p "$out" || exit 1
log=$out/log.txt
failed=
end=$(($(date +%s) + ${SECONDS_IN_ALL:-350}))

# Runs a program for at most twice its share of the remaining time. Its output is shown and written
# to the log.
run() {
    left=$((end - $(date +%s)))
    if [ "$programs" -gt 2 ]; then
        left=$((left * 2 / programs))
    fi
    programs=$((programs - 1))
    if [ "$left" -le 0 ]; then
        echo "left out, no time: $*" | tee -a "$log"
        return 1
    fi
    { timeout -k 5 "$left" "$@" 2>&1; echo $? > "$out/status"; } | tee -a "$log"
    status=$(cat "$out/status")
    rm -f "$out/status"
    return "$status"
}

# Measures a suite.
measure() {
    suite=$1
    shift
    run "$here/kvmem-lab" bench "$suite" --json "$out/$suite.json" "$@" && return
    failed="$failed $suite"
    # Half a file has no rows.
    rm -f "$out/$suite.json"
}

date -u +%Y-%m-%d > "$out/date"
{
    uname -srm
    lscpu 2>/dev/null || grep -m1 'model name' /proc/cpuinfo
    nvidia-smi --query-gpu=name,driver_version,pci.bus_id --format=csv,noheader 2>/dev/null
    cat /sys/kernel/mm/transparent_hugepage/enabled 2>/dev/null
    grep -E '^(MemTotal|MemAvailable|HugePages_)' /proc/meminfo 2>/dev/null
} > "$log"
if [ $# -gt 0 ]; then
    programs=1
    measure "$@"
else
    programs=8
    # First what needs many cores most.
    for suite in concurrency cache arena node register offset; do
        measure "$suite" --quick
    done
    run "$here/tests" the_real_driver --nocapture --test-threads 1 || failed="$failed tests"
    measure gpu --quick
fi
tar -C "$(dirname "$out")" -czf "$out.tar.gz" "$(basename "$out")" || exit 1
echo "rows: $out.tar.gz"
if [ -n "$failed" ]; then
    echo "failed:$failed; see $log"
    exit 1
fi
