#!/usr/bin/env bash
# Installs what the tests can use and pip cannot bring, where that is allowed: as root, with apt-get.
# Says what it does, is silent when there is nothing to do, and never fails: what is missing makes tests skip.
set -u

missing=()
command -v make >/dev/null || missing+=(make)
command -v python3 >/dev/null || missing+=(python3)
python3 -c 'import ensurepip, venv' 2>/dev/null || missing+=(python3-venv)
if ! command -v initdb >/dev/null && ! ls /usr/lib/postgresql/*/bin/initdb >/dev/null 2>&1; then missing+=(postgresql); fi

if [ "$(uname)" = Linux ]; then command -v bwrap >/dev/null || missing+=(bubblewrap); fi
command -v chromium >/dev/null || command -v google-chrome >/dev/null || missing+=(chromium)

[ ${#missing[@]} -gt 0 ] || exit 0
if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
  echo "not installed: ${missing[*]} (needs root and apt-get; tests that need it are skipped)"
  exit 0
fi

echo "installing ${missing[*]} with apt-get"
export DEBIAN_FRONTEND=noninteractive
apt=(timeout 240 apt-get -qq -o Acquire::Retries=1 -o Acquire::http::Timeout=20 -o DPkg::Lock::Timeout=60)
log=$(mktemp)
if ! { "${apt[@]}" update && "${apt[@]}" install -y --no-install-recommends "${missing[@]}"; } >"$log" 2>&1 </dev/null; then
  echo "could not install ${missing[*]}: $(tail -n 1 "$log")"
fi
rm -f "$log"
exit 0
