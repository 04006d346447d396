#!/usr/bin/env bash
# Beam: the DirectRunner takes an element whose window the watermark has passed, Prism drops it; only Prism joins sessions one gap apart.
# Prism is built by Go from the module of the same release.
set -euo pipefail
folder=$(mktemp -d)
trap 'chmod -R u+w "$folder"; rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet apache-beam==2.77.0
GOPATH="$folder/go" GOBIN="$folder" GOFLAGS=-modcacherw go install github.com/apache/beam/sdks/v2/go/cmd/prism@v2.77.0 2>"$folder/go.txt"
"$folder/venv/bin/python" - "$folder" <<'PYTHON'
import logging
import sys
from pathlib import Path

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.testing.test_stream import TestStream
from apache_beam.transforms.window import FixedWindows, Sessions, TimestampedValue, WindowFn

logging.disable(logging.WARNING)
FOLDER = Path(sys.argv[1])
print("apache-beam", beam.__version__)


class Pane(beam.DoFn):
    def process(self, keyed: tuple, file: str, window: object = beam.DoFn.WindowParam) -> None:
        with open(file, "a") as out:
            out.write(f"{float(window.start):g}-{float(window.end):g} {','.join(sorted(keyed[1]))}\n")


def panes(runner: str, stream: TestStream, windows: WindowFn) -> list[str]:
    file = FOLDER / "panes.txt"
    file.write_text("")
    words = [f"--runner={runner}", "--streaming", "--environment_type=LOOPBACK", f"--prism_location={FOLDER}/prism"]
    with beam.Pipeline(options=PipelineOptions(words)) as pipeline:
        keyed = pipeline | stream | beam.WindowInto(windows) | beam.Map(lambda value: ("key", value))
        keyed | beam.GroupByKey() | beam.ParDo(Pane(), str(file))
    return sorted(file.read_text().split("\n")[:-1])


found = {}
for runner in ("DirectRunner", "PrismRunner"):
    at_the_end = TestStream().add_elements([TimestampedValue("a", 1)]).advance_watermark_to(10)
    at_the_end = at_the_end.add_elements([TimestampedValue("late", 9.999)]).advance_watermark_to_infinity()
    gap_apart = TestStream().add_elements([TimestampedValue("a", 0), TimestampedValue("b", 10)])
    gap_apart = gap_apart.advance_watermark_to_infinity()
    found[runner] = (panes(runner, at_the_end, FixedWindows(10)), panes(runner, gap_apart, Sessions(10)))
    print(f"{runner}: element of 9.999 at watermark 10, window 0-10: {found[runner][0]};", end=" ")
    print(f"Sessions(10) of 0 and 10: {found[runner][1]}")
as_described = found["DirectRunner"] == (["0-10 a", "0-10 late"], ["0-10 a", "10-20 b"])
raise SystemExit(0 if as_described and found["PrismRunner"] == (["0-10 a"], ["0-20 a,b"]) else 1)
PYTHON
