#!/usr/bin/env bash
# Installs those of the named Debian or Ubuntu packages that are missing.
# Asks for nothing and does nothing when all are there.
set -euo pipefail

if ! command -v dpkg-query >/dev/null; then
  echo "This is not Debian or Ubuntu. Please install what these packages hold: $*" >&2
  exit 0
fi

missing=()
for package in "$@"; do
  [[ $(dpkg-query --show --showformat='${db:Status-Status}' "$package" 2>/dev/null) == installed ]] || missing+=("$package")
done
[[ ${#missing[@]} -gt 0 ]] || exit 0

echo "Installing: ${missing[*]}" >&2
root=()
[[ $EUID -eq 0 ]] || root=(sudo)
"${root[@]}" apt-get -qq update
"${root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -qq install --yes --no-install-recommends "${missing[@]}" </dev/null >/dev/null
