#!/usr/bin/env bash
# Runs every fuzz target of the module for a short time: fuzz.sh [TIME]
set -euo pipefail
cd "$(dirname "$0")/.."
time=${1:-10s}
log=$(mktemp)
trap 'rm -f "$log"' EXIT

# The end of the time, told as a failure: a race in Go's own fuzzing engine
# (golang/go#75804). A finding has other lines, and its input on record.
only_the_time_ended() {
  [[ $(sed -n '/^--- FAIL/,/^FAIL$/p' "$log" | sed '1d;$d') == "    context deadline exceeded" ]] &&
    ! grep -qE 'Failing input written|^panic|DATA RACE|hung or terminated' "$log"
}

grep --recursive --include='*_test.go' --files-with-matches '^func Fuzz' . | xargs --no-run-if-empty dirname | sort -u |
  while read -r dir; do
    # The names come from the source: listing would compile every package.
    sed -n 's/^func \(Fuzz[A-Za-z0-9_]*\)(.*/\1/p' "$dir"/*_test.go |
      while read -r target; do
        echo "--- $dir $target"
        go test -run '^$' -fuzz "^$target\$" -fuzztime "$time" "$dir" </dev/null 2>&1 | tee "$log" || {
          only_the_time_ended || exit 1
          echo "ok: nothing found when the time ended"
        }
      done
  done
