#!/usr/bin/env bash
# Measures everything that docs/benchmarks.md speaks of, on this machine, and
# prints the rows of its tables. Run it as root on a machine that does nothing
# else, after "make build"; with Docker's daemon running it is measured too.
#   tools/bench.sh [ROUNDS]
set -euo pipefail
cd "$(dirname "$0")/.."
rounds=${1:-50}
export PATH=$PATH:/usr/local/go/bin

scratch=$(mktemp -d /tmp/tbxbench.XXXXXX)
export TAIBOX_DATA_DIR=$scratch/data TAIBOX_HOST=unix://$scratch/s.sock
finish() {
  local pid
  pid=$(sed -n 's/.*"pid": *\([0-9]*\).*/\1/p' "$scratch/s.sock.lock" 2>/dev/null || true)
  [[ -z $pid ]] || { kill "$pid" && tail --pid="$pid" -f /dev/null; } || true
  rm -rf --one-file-system "$scratch"
}
trap finish EXIT
trap 'exit 130' INT TERM

vs=()
if docker info >/dev/null 2>&1; then vs=(--vs docker); fi
for face in cli api; do
  printf '\n### %s\n\n|  | Taibox p50 | p99 | Docker p50 | p99 | ratio p50 |\n|---|---|---|---|---|---|\n' "$face"
  bin/taibox bench -n "$rounds" --face "$face" "${vs[@]}" --json | python3 -c '
import json, sys
r = json.load(sys.stdin)
d = r.get("docker")
for key, name in (("create_to_first_exec", "create to first exec"), ("exec", "exec"), ("remove", "remove")):
    us = r[key]
    row = [name, "%.3g ms" % us["p50_ms"], "%.3g ms" % us["p99_ms"]]
    row += ["%.3g ms" % d[key]["p50_ms"], "%.3g ms" % d[key]["p99_ms"], "%.2f" % (us["p50_ms"] / d[key]["p50_ms"])] if d else ["", "", ""]
    print("| " + " | ".join(row) + " |")
rate = "parallel_create_per_second"
row = ["parallel creates a second", "%.3g" % r[rate], "", "%.3g" % d[rate] if d else "", "", "%.2f" % (r[rate] / d[rate]) if d else ""]
print("| " + " | ".join(row) + " |")
print("| memory of an idle box | %.1f MiB | | | | |" % (r["idle_box_rss_bytes"] / 2**20))'
done

# One row a benchmark: its name, and each number with its unit.
rows() {
  awk '/^Benchmark/ && !/ns\/op *$/ {
    sub(/^Benchmark/, "", $1); sub(/-[0-9]+$/, "", $1); row = "| " $1 " |"
    for (i = 3; i < NF; i += 2) if ($(i + 1) != "ns/op") row = row " " $i " " $(i + 1) " |"
    print row
  } /^(--- FAIL|FAIL|panic)/ { print > "/dev/stderr"; bad = 1 } END { exit bad }'
}
bench() { go test -run '^$' -timeout 60m -bench "$1" -benchtime "$2" "$3" | rows; }

printf '\n### Boxes beside a create; 200 idle boxes; 500 MB image\n\n'
bench '^BenchmarkCreate$' "${rounds}x" ./test/load
bench '^BenchmarkIdle$' 3x ./test/load
bench '^BenchmarkPull$' 5x ./test/load
printf '\n### Go API\n\n'
go test -run '^$' -bench . -benchtime 2s ./drivers/oci | grep '^Benchmark'
