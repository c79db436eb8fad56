#!/usr/bin/env bash
# Runs every fuzz target of the module for a short time: fuzz.sh [TIME]
set -euo pipefail
cd "$(dirname "$0")/.."
time=${1:-10s}

grep --recursive --include='*_test.go' --files-with-matches '^func Fuzz' . | xargs --no-run-if-empty dirname | sort -u |
  while read -r dir; do
    # The names come from the source: listing would compile every package.
    sed -n 's/^func \(Fuzz[A-Za-z0-9_]*\)(.*/\1/p' "$dir"/*_test.go |
      while read -r target; do
        echo "--- $dir $target"
        go test -run '^$' -fuzz "^$target\$" -fuzztime "$time" "$dir" </dev/null
      done
  done
