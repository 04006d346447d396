#!/usr/bin/env bash
# Writes the bill of materials of what is installed in .venv, and fails at a licence that is not on the list.
set -euo pipefail
cd "$(dirname "$0")/.."

readonly environment=.audit pins=tools/audit.txt python=.venv/bin/python
# Licences under which anybody may use and pass on Tidemark with its dependencies; MPL covers changes of its own files.
readonly allowed='0BSD;Apache;BSD;CC0;ISC;MIT;MPL;Mozilla Public License 2.0;PSF;Python Software Foundation'
# Its package names no licence; its repository has Apache 2.0.
readonly unnamed=hdfs-native

# In an environment of their own: the tools bring twenty packages, which are not Tidemark's.
if ! cmp -s "$pins" "$environment/pins.txt"; then
  "$python" -m venv --clear "$environment"
  "$environment/bin/python" -m pip install --quiet --disable-pip-version-check -r "$pins"
  cp "$pins" "$environment/pins.txt"
fi

"$environment/bin/cyclonedx-py" environment "$python" --pyproject pyproject.toml --output-reproducible \
  --of JSON --output-file sbom.json
"$environment/bin/pip-licenses" --python "$python" --from mixed --order license --partial-match \
  --allow-only "$allowed" --ignore-packages tidemark "$unnamed"
echo "audit: sbom.json names what is installed, and every licence is on the list of $0"
