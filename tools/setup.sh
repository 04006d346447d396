#!/usr/bin/env bash
# Builds the environment in .venv, once for each state of pyproject.toml and constraints.txt.
set -euo pipefail
cd "$(dirname "$0")/.."

readonly venv=.venv
readonly stamp=$venv/.tidemark-setup

fail() {
  printf 'setup: %s\n' "$1" >&2
  exit 1
}

find_python() {
  local candidate
  for candidate in "${PYTHON:-python3}" python3.12 python3.11; do
    if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
      printf '%s' "$candidate"
      return
    fi
  done
  fail 'there is no Python 3.11 or newer: install one, or name it, such as `PYTHON=/path/to/python3.12 make setup`.'
}

# Where Spark's launcher looks: JAVA_HOME, then the PATH.
check_java() {
  local java=${JAVA_HOME:+$JAVA_HOME/bin/}java said
  said=$("$java" -version 2>&1) ||
    fail "there is no Java that runs (tried $java): install Java 17, 21 or 25, and unset JAVA_HOME or let it point there."
  java_version=$(sed -nE 's/.*version "(1\.)?([0-9]+).*/\2/p' <<<"$said" | head -n 1)
  if [[ -n $java_version ]] && ((java_version < 17)); then
    fail "$java is Java $java_version: install Java 17, 21 or 25, and let JAVA_HOME point to it."
  fi
  if [[ $java_version != 17 && $java_version != 21 && $java_version != 25 ]]; then
    printf 'setup: %s is Java %s; Tidemark is tested with 17, 21 and 25.\n' "$java" "${java_version:-of an unknown version}" >&2
  fi
}

wanted() {
  "$1" -c 'import hashlib, pathlib, sys
print(hashlib.sha256(b"".join(pathlib.Path(name).read_bytes() for name in sys.argv[1:])).hexdigest())' \
    pyproject.toml constraints.txt
}

python=$(find_python)
check_java
hash=$(wanted "$python")
if [[ -x $venv/bin/python && -f $stamp && $(<"$stamp") == "$hash" ]]; then
  exit 0
fi

if ! "$venv/bin/python" -m pip --version >/dev/null 2>&1; then
  echo "setup: making $venv"
  "$python" -m venv --clear "$venv" ||
    fail "$python cannot make an environment: install its venv module (on Debian and Ubuntu the package python3-venv)."
fi
echo "setup: installing into $venv (a few minutes the first time)"
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev,demo]'
echo "setup: making a cache of Java's classes, so that Spark starts faster (a minute, once)"
"$venv/bin/python" -m tidemark.resources.spark.class_recording || echo 'setup: there is none; Spark starts as without it'
echo "$hash" >"$stamp"
