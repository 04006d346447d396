"""Commands that one waits for at a keyboard, from cold: `python -m benchmarks.commands`.

They validate the demo's spec, and test three cases of it. Commands that read data are in end_to_end.py.
"""

import tempfile
from functools import partial
from pathlib import Path

import click

from benchmarks.cold import TIDEMARK, run_cold
from benchmarks.timing import BUDGET, INTO, Figure, Report, seconds
from tidemark.pipelines.command_line import SPECS

SPEC = SPECS / "flights.yaml"
CASES = """
cases:
  - name: a flight that leaves late counts for the hour it was to leave in
    steps:
      - records:
          - &late {year: 2013, month: 1, day: 1, sched_dep_time: 517, dep_delay: 92, carrier: UA, origin: EWR}
          - {year: 2013, month: 1, day: 1, sched_dep_time: 640, dep_delay: 10, carrier: B6, origin: JFK}
        expect: {windows/departures_1h: []}
      - records:
          - &later {year: 2013, month: 1, day: 1, sched_dep_time: 1000, dep_delay: 0, carrier: B6, origin: JFK}
        expect:
          watermark: 2013-01-01T12:00Z
          windows/departures_1h:
            - {window_start: 2013-01-01T10:00Z, origin: EWR, departures: 1, mean_delay: 92.0}
            - {window_start: 2013-01-01T11:00Z, origin: JFK, departures: 1, mean_delay: 10.0}
  - name: a flight more than three hours behind is refused
    records:
      - *later
      - *late
    expect: {dead_letters: [{reason: out_of_order}]}
  - name: at the end of input all is closed
    records: [*late]
    end_of_input: flush
    expect:
      watermark: final
      windows/departures_1h: [{origin: EWR, departures: 1}]
"""


@click.command()
@click.option("--rounds", default=3, help="How often each command runs.")
@click.option("--tidemark", default=str(TIDEMARK), help="The command to measure.")
@BUDGET
@INTO
def main(rounds: int, tidemark: str, budget: float, into: Path | None) -> None:
    """Runs both in turns, once more at first so that their files are in the machine's cache."""
    with tempfile.TemporaryDirectory() as root:
        folder = Path(root)
        (folder / "three.cases.yaml").write_text(CASES, encoding="utf-8")
        commands = {
            "`tidemark validate` of the demo's spec": [tidemark, "validate", str(SPEC)],
            "`tidemark test` of three cases": [tidemark, "test", str(SPEC), "three.cases.yaml"],
        }
        work = {name: partial(run_cold, command, folder) for name, command in commands.items()}
        taken = seconds(work, rounds=rounds, budget_s=budget)
    aims = dict(zip(commands, (4.0, 10.0), strict=True))
    report = Report("commands at a keyboard, cold")
    report.figures = [Figure(work, values, aim=aims[work]) for work, values in taken.items()]
    report.save(into)


if __name__ == "__main__":
    main()
