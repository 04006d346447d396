"""Commands that run in forks of the warm process: seen from outside, each is the process that was started."""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from tests.processes import wait_until
from tidemark.pipelines.warm.asking import NOTE, received_line, warm_process

WAITS = """
name: waits
sources:
  - {name: lines, kind: files, path: "in/*.jsonl", format: json, schema: "t STRING", settle: 50 s}
time: {timestamp_by: t, out_of_orderness: 10 s}
"""
"""A pipeline whose run waits for its file to settle, before it needs a Spark."""
ENTRANCE = [sys.executable, "-m", "tidemark.pipelines.entrance"]
ALONE = [sys.executable, "-m", "tidemark.pipelines.cli"]
STOPPED = "Nothing is lost: what was committed stays, and the next run does the rest.\n"


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Yield a Dagster home with a warm process."""
    home = tmp_path_factory.mktemp("home")
    log = home / "log"
    log.touch()
    with warm_process(home):
        wait_until((home / NOTE).exists, log)
        yield home


def warm_of(home: Path) -> psutil.Process:
    """Return the warm process of a home."""
    return psutil.Process(json.loads((home / NOTE).read_text())["pid"])


def forks_of(home: Path) -> list[psutil.Process]:
    """Return the forks of the warm process of a home that live."""
    return [fork for fork in warm_of(home).children() if fork.status() != psutil.STATUS_ZOMBIE]


@contextmanager
def waiting_run(
    home: Path, folder: Path, variables: Mapping[str, str], *, is_forked: bool
) -> Iterator[subprocess.Popen[str]]:
    """Yield a run that waits for its input, in a fork of the warm process or in its own."""
    (folder / "in").mkdir()
    (folder / "in" / "one.jsonl").write_text('{"t": "2026-01-01T00:00:00Z"}\n')
    (folder / "waits.yaml").write_text(WAITS)
    environment = os.environ | {"DAGSTER_HOME": str(home), **variables}
    said = folder / "said"
    with (
        said.open("w") as stderr,
        subprocess.Popen(
            [*ENTRANCE, "run", "waits.yaml"],
            cwd=folder,
            env=environment,
            stderr=stderr,
            text=True,
            process_group=0,  # a job of its own, as in a shell: it can be stopped
        ) as run,
    ):
        try:
            wait_until(lambda: "waiting for them to settle" in said.read_text() or run.poll() is not None, said)
            assert bool(forks_of(home)) == is_forked
            yield run
        finally:
            run.kill()


@pytest.mark.long
def test_a_command_in_a_fork_says_and_exits_as_one_of_its_own_in_the_folder_and_environment_of_who_typed_it(
    home: Path, tmp_path: Path
) -> None:
    (tmp_path / "wrong.yaml").write_text(WAITS.replace("out_of_orderness", "out_of_odds"))
    (tmp_path / "waits.yaml").write_text(WAITS)
    environment = os.environ | {"DAGSTER_HOME": str(home), "TIDEMARK_WAREHOUSE": "tables-ä"}
    for words in (
        ["schema"],
        ["--version"],
        ["run", "wrong.yaml"],
        ["run", "no-such.yaml"],
        ["status", "waits.yaml"],
        ["show", "--no-such-option"],
    ):
        fork, alone = (
            subprocess.run(
                [*command, *words], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
            )
            for command in (ENTRANCE, ALONE)
        )
        assert fork.returncode == alone.returncode, fork.stderr
        named = [
            said.replace("python -m tidemark.pipelines.cli", "tidemark") for said in (alone.stdout, alone.stderr)
        ]
        assert [fork.stdout, fork.stderr] == named


@pytest.mark.long
@pytest.mark.parametrize(
    ("by", "code", "said"),
    [
        pytest.param(signal.SIGINT, 130, f"Stopped. {STOPPED}", id="SIGINT"),
        pytest.param(signal.SIGTERM, 143, f"Stopped by SIGTERM. {STOPPED}", id="SIGTERM"),
        pytest.param(signal.SIGHUP, -signal.SIGHUP, "", id="SIGHUP"),
        pytest.param(signal.SIGKILL, -signal.SIGKILL, "", id="SIGKILL"),
    ],
)
def test_a_signal_to_a_command_ends_the_fork_that_does_its_work(
    home: Path, tmp_path: Path, by: signal.Signals, code: int, said: str
) -> None:
    with waiting_run(home, tmp_path, {}, is_forked=True) as run:
        [fork] = forks_of(home)
        run.send_signal(by)
        assert run.wait(60) == code
        wait_until(lambda: not forks_of(home), tmp_path / "said")
        assert not fork.is_running() or fork.status() == psutil.STATUS_ZOMBIE
    assert (tmp_path / "said").read_text().endswith(said)


@pytest.mark.long
def test_a_fork_that_is_killed_ends_its_command_as_if_that_were_killed(home: Path, tmp_path: Path) -> None:
    with waiting_run(home, tmp_path, {}, is_forked=True) as run:
        forks_of(home)[0].kill()
        assert run.wait(60) == -signal.SIGKILL


@pytest.mark.long
@pytest.mark.parametrize(
    "variables",
    [
        pytest.param({"ARROW_DEFAULT_MEMORY_POOL": "system"}, id="a library reads it when it is loaded"),
        pytest.param({"PYTHONWARNINGS": "default"}, id="Python reads it when it starts"),
    ],
)
def test_a_command_with_variables_that_a_fork_would_not_heed_has_a_process_of_its_own(
    home: Path, tmp_path: Path, variables: Mapping[str, str]
) -> None:
    with waiting_run(home, tmp_path, variables, is_forked=False) as run:
        run.terminate()
        assert run.wait(60) == 143


@pytest.mark.parametrize("note", ["", "[]", '{"path": "/no/such/socket", "pid": 1}'])
def test_a_command_whose_warm_process_does_not_answer_runs_by_itself(tmp_path: Path, note: str) -> None:
    (tmp_path / NOTE).write_text(note)
    environment = os.environ | {"DAGSTER_HOME": str(tmp_path)}
    done = subprocess.run([*ENTRANCE, "--version"], env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.long
@pytest.mark.parametrize(
    "typed",
    [
        pytest.param("{} status waits.yaml <&-", id="without stdin"),
        pytest.param("{} --version >&-", id="without stdout"),
        pytest.param("{} schema 2>&-", id="without stderr"),
        pytest.param("{} schema > /dev/full", id="to a full disk"),
        pytest.param("{} show <(cat waits.yaml) | grep -v /dev/fd", id="a file of the shell"),
        pytest.param("ulimit -v 1500000; {} status waits.yaml", id="with little memory"),
        pytest.param("mkdir gone; cd gone; rmdir ../gone; {} status waits.yaml", id="in a folder that has gone"),
        pytest.param("cat waits.yaml | {} status /dev/stdin | grep -v /proc", id="from a pipe"),
    ],
)
def test_a_command_that_a_shell_starts_in_an_unusual_way_ends_as_one_of_its_own(
    home: Path, tmp_path: Path, typed: str
) -> None:
    (tmp_path / "waits.yaml").write_text(WAITS)
    environment = os.environ | {"DAGSTER_HOME": str(home)}
    fork, alone = (
        subprocess.run(
            ["bash", "-c", typed.format(" ".join(command))],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=100,
        )
        for command in (ENTRANCE, ALONE)
    )
    assert fork.returncode == alone.returncode, fork.stderr
    assert fork.stdout == alone.stdout
    assert fork.stderr.splitlines()[-1:] == alone.stderr.splitlines()[-1:]


def has_stopped(process: psutil.Process) -> bool:
    return bool(process.status() == psutil.STATUS_STOPPED)


@pytest.mark.long
def test_a_command_that_is_stopped_at_the_terminal_rests_with_its_fork_until_it_is_continued(
    home: Path, tmp_path: Path
) -> None:
    with waiting_run(home, tmp_path, {}, is_forked=True) as run:
        [fork] = forks_of(home)
        both = [fork, psutil.Process(run.pid)]
        for _ in range(2):
            run.send_signal(signal.SIGTSTP)
            wait_until(lambda: all(map(has_stopped, both)), tmp_path / "said")
            run.send_signal(signal.SIGCONT)
            wait_until(lambda: not any(map(has_stopped, both)), tmp_path / "said")
        run.terminate()
        assert run.wait(60) == 143


@pytest.mark.long
def test_a_warm_process_takes_over_when_another_one_of_its_home_ends(home: Path) -> None:
    first = (home / NOTE).read_text()
    with warm_process(home):
        wait_until(lambda: (home / NOTE).read_text() != first, home / "log")
    wait_until(lambda: (home / NOTE).exists() and (home / NOTE).read_text() == first, home / "log")


def relay_with(said_at_once: bytes, home: Path, listener: socket.socket) -> None:
    """Pass what one command says on to the warm process of a home, its second line with more in the same piece."""
    with listener.accept()[0] as command, socket.socket(socket.AF_UNIX) as warm:
        warm.connect(json.loads((home / NOTE).read_text())["path"])
        warm.sendall(received_line(command))
        command.sendall(received_line(warm))
        text, fds, _, _ = socket.recv_fds(command, 100, 3)
        socket.send_fds(warm, [text + said_at_once], fds)
        for fd in fds:
            os.close(fd)
        command.sendall(warm.recv(100))


def test_a_signal_that_comes_before_the_fork_has_begun_ends_it_at_once(home: Path, tmp_path: Path) -> None:
    (tmp_path / "waits.yaml").write_text(WAITS)
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "one.jsonl").write_text('{"t": "2026-01-01T00:00:00Z"}\n')
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "socket"))
        listener.listen()
        (tmp_path / NOTE).write_text(json.dumps({"path": str(tmp_path / "socket")}))
        environment = os.environ | {"DAGSTER_HOME": str(tmp_path)}
        with subprocess.Popen([*ENTRANCE, "run", "waits.yaml"], cwd=tmp_path, env=environment) as run:
            relay_with(bytes([signal.SIGHUP]), home, listener)
            assert run.wait(10) == -signal.SIGKILL  # this process has got no signal itself


def test_callers_that_go_in_the_middle_of_asking_leave_nothing_open_in_the_warm_process(home: Path) -> None:
    path = json.loads((home / NOTE).read_text())["path"]
    before = warm_of(home).num_fds()
    for asked in (b'{"has"', b"no JSON\n", b"[]\n", b"7\n", b'{"interrupt": []}\n'):
        with socket.socket(socket.AF_UNIX) as caller:
            caller.connect(path)
            socket.send_fds(caller, [asked], [0, 1, 2])
    with socket.socket(socket.AF_UNIX) as caller:  # it is answered after all of them
        caller.connect(path)
        caller.sendall(b'{"has": "no such run"}\n')
        assert received_line(caller) == b"false\n"
        assert warm_of(home).num_fds() <= before + 1  # this one


@pytest.mark.long
def test_a_command_runs_by_itself_when_its_warm_process_is_there_and_does_not_answer(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "socket"))
        listener.listen()
        (tmp_path / NOTE).write_text(json.dumps({"path": str(tmp_path / "socket")}))
        environment = os.environ | {"DAGSTER_HOME": str(tmp_path)}
        asked = [*ENTRANCE, "--version"]
        done = subprocess.run(asked, env=environment, capture_output=True, text=True, check=False, timeout=25)
    assert (done.returncode, done.stderr) == (0, "")
