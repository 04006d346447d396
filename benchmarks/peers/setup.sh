#!/usr/bin/env bash
# Builds the environments of the peers that have one of their own: all of them, or those that are named.
set -euo pipefail
cd "$(dirname "$0")"

readonly python=../../.venv/bin/python

# What Flink reads Parquet with: its own jar, and Hadoop's classes, which PySpark has. Ivy, of PySpark too, finds the jar.
add_parquet_to_flink() {
  local jars lib version
  jars=$("$python" -c 'import pathlib, pyspark; print(pathlib.Path(pyspark.__file__).parent / "jars")')
  lib=$("$1/bin/python" -c 'import pathlib, pyflink; print(pathlib.Path(pyflink.__file__).parent / "lib")')
  version=$(sed -n 's/^apache-flink==//p' flink.txt)
  "${JAVA_HOME:+$JAVA_HOME/bin/}java" -jar "$jars"/ivy-*.jar -error -cache .ivy -confs default \
    -dependency org.apache.flink flink-sql-parquet "$version" -retrieve "$lib/[artifact]-[revision].[ext]"
  mkdir -p "$1/hadoop"
  cp "$jars"/hadoop-client-api-*.jar "$jars"/hadoop-client-runtime-*.jar "$jars"/jcl-over-slf4j-*.jar \
    "$jars"/slf4j-api-*.jar "$1/hadoop/"
}

if (($# == 0)); then
  set -- duckdb polars flink
fi
for name in "$@"; do
  environment=.environments/$name
  echo "peers: $name"
  "$python" -m venv --clear "$environment"
  "$environment/bin/python" -m pip install --quiet --disable-pip-version-check -r "$name.txt"
  if [[ $name == flink ]]; then
    add_parquet_to_flink "$environment"
  fi
done
