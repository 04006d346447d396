"""Messages about alerts to a real web server and a real mail server, of tables that are written without Spark."""

import json
import logging
import os
import socket
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from aiosmtpd.controller import Controller
from click.testing import CliRunner, Result
from dagster import DagsterInstance, SkipReason, build_sensor_context

from tests.pure.batch.batches import START, planned
from tests.pure.report.shop import SPEC, Shop
from tests.receiver import Receiver, receiving
from tidemark.assets.alarms import messages
from tidemark.assets.ingestion.pending_work import signature
from tidemark.pipelines.cli import main
from tidemark.pipelines.code_location.launching import live_sensor
from tidemark.pipelines.code_location.watches import alert_look, batch_watch
from tidemark.resources.batches.batch_log import BatchLog
from tidemark.resources.batches.plans import BatchKind, this_process
from tidemark.resources.quality.checks import Counted, Expectation, Measured, validated
from tidemark.resources.quality.failures import write_failures
from tidemark.resources.workspace import Workspace
from tidemark.timeops.spec.automation import OnNewInput

RATE = Expectation("rate", holds="few records are lost", remedy="look at `dead_letters`")
ORDER = Expectation("order", holds="events are in order", remedy="report it", blocking=True)
NOTIFY = 'alerts: {notify: [{to: "${ALERTS_HOOK}"}]}\n'
SECRET = "s3cret"


@pytest.fixture
def hook(monkeypatch: pytest.MonkeyPatch) -> Iterator[Receiver]:
    """Run a web server whose URL, with a password in it, is in `ALERTS_HOOK`."""
    with receiving() as made:
        monkeypatch.setenv("ALERTS_HOOK", made.url.replace("http://", f"json://user:{SECRET}@"))
        monkeypatch.setattr(messages, "_said", set())
        yield made


def shop_in(folder: Path, alerts: str = NOTIFY) -> Shop:
    """Make a pipeline whose newest batch, number 1, is committed and has no failed check."""
    (folder / "in").mkdir()
    made = Shop.with_log(folder, 10, SPEC + alerts)
    made.process(ordered=10, held=0)
    return made


def checked(shop: Shop, batch: int, expectation: Expectation = RATE, *, lost: int, is_error: bool = False) -> None:
    """Write the checks of a batch that failed: one counts what was lost."""
    done = validated([Counted(expectation, [Measured("records lost", 0, lost)], is_error=is_error)])
    write_failures(shop.folder / "warehouse" / "shop", "dead_letters", batch, done, START + timedelta(seconds=2))


def look(shop: Shop) -> None:
    alert_look(shop.workspace)


def titles(hook: Receiver) -> list[str]:
    return [message["title"] for message in hook.got]


def call(shop: Shop, *words: str) -> Result:
    given = ["notify", str(shop.folder / "shop.yaml"), *words, "--warehouse", str(shop.folder / "warehouse")]
    return CliRunner().invoke(main, given, catch_exceptions=False)


def next_batch(shop: Shop, batch: int, *, lost: int, is_error: bool = False) -> None:
    """Make a batch without records, one of whose checks found so many to be lost."""
    shop.leave_watermark(batch)
    shop.commit("process", 10, {"records": 0})
    checked(shop, batch, lost=lost, is_error=is_error)


def test_each_change_of_state_is_one_message(tmp_path: Path, hook: Receiver) -> None:
    shop = shop_in(tmp_path)
    look(shop)
    assert titles(hook) == [], "nothing is wrong"
    for batch, (lost, is_error) in enumerate(
        [(3, False), (4, False), (5, True), (1, False), (0, False), (0, False)], 2
    ):
        next_batch(shop, batch, lost=lost, is_error=is_error)
        look(shop)
        look(shop)
    assert titles(hook) == [
        "shop: warning, rate",
        "shop: error, rate",
        "shop: warning, rate",
        "shop: resolved, rate",
    ]
    assert [message["type"] for message in hook.got] == ["warning", "failure", "warning", "success"]


def test_a_message_says_what_was_found_and_what_to_do(tmp_path: Path, hook: Receiver) -> None:
    shop = shop_in(tmp_path)
    checked(shop, 1, lost=3)
    look(shop)
    [message] = hook.got
    sentence, _, *rest = message["message"].splitlines()
    assert sentence == (
        "batch 1 is committed, and a check of it warns: check rate: Expected: few records are lost. "
        "Found records lost: 3; expected none. To do: look at `dead_letters`."
    )
    assert rest[:2] == ["Check: rate", f"Pipeline: shop, {tmp_path / 'warehouse' / 'shop'}"]
    assert rest[2].startswith("Message: ")


def test_a_batch_that_a_blocking_check_holds_back_is_an_error_until_it_is_committed(
    tmp_path: Path, hook: Receiver
) -> None:
    shop = shop_in(tmp_path)
    watched = Workspace(shop.file, tmp_path / "warehouse", watch=batch_watch(lambda: None))
    of_spec: dict[str, Any] = {"first_seq": 10, "end_seq": 10, "fingerprint": shop.file.spec.fingerprint()}
    plan = planned(watched.batches, now=START, **of_spec)
    checked(shop, 2, ORDER, lost=1)
    watched.batches.give_up(plan, START, "order")
    assert titles(hook) == ["shop: error, order", "shop: error, batch"]
    assert hook.got[0]["message"].startswith("batch 2 (process) is not committed: check order: Expected: events")
    assert "tidemark accept SPEC 2" in hook.got[1]["message"]
    again = planned(watched.batches, now=START + timedelta(seconds=4), owner=this_process("again"), **of_spec)
    look(shop)
    assert len(hook.got) == 2, "while it is tried again, nothing is well yet"
    shop.leave_watermark(2)
    versions = {table: shop.lake.version(table) for table in watched.tables}
    watched.batches.commit(again, {"records": 0}, versions, START + timedelta(seconds=5))
    assert titles(hook)[2:] == ["shop: resolved, order", "shop: resolved, batch"]


@pytest.mark.parametrize(("kind", "due"), [("ingest", 0), ("process", 1)])
def test_a_commit_is_looked_at_once_its_records_were_judged(
    tmp_path: Path, hook: Receiver, kind: BatchKind, due: int
) -> None:
    shop = shop_in(tmp_path)
    checked(shop, 1 if kind == "ingest" else 2, lost=3)
    watched = Workspace(shop.file, tmp_path / "warehouse", watch=batch_watch(lambda: None))
    plan = planned(watched.batches, kind, first_seq=10, end_seq=10, fingerprint=shop.file.spec.fingerprint())
    shop.leave_watermark(2)
    versions = {table: shop.lake.version(table) for table in watched.tables}
    watched.batches.commit(plan, {"records": 0}, versions, START)
    assert len(hook.got) == due


def test_input_that_is_held_back_and_results_that_get_old_need_no_batch(tmp_path: Path, hook: Receiver) -> None:
    shop = shop_in(tmp_path, 'alerts: {freshness: {warn: 1 hour, error: 1 day}, notify: [{to: "${ALERTS_HOOK}"}]}\n')
    (tmp_path / "shop.yaml").write_text(shop.text.replace("format: csv", "format: csv, options: {header: true}"))
    file = tmp_path / "in" / "bad.csv"
    file.write_text("a,b\n1,2\n")
    os.utime(file, (0, 0))
    look(shop)
    assert titles(hook) == ["shop: error, nothing_held_back", "shop: error, freshness"]
    assert "bad.csv" in hook.got[0]["message"]
    file.unlink()
    look(shop)
    assert titles(hook)[2:] == ["shop: resolved, nothing_held_back"]


def test_a_receiver_that_is_down_gets_its_message_later_and_only_the_state_of_then(
    tmp_path: Path, hook: Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    shop = shop_in(tmp_path)
    checked(shop, 1, lost=3)
    hook.status = 500
    with caplog.at_level(logging.DEBUG):
        look(shop)
        look(shop)
    [said] = [record.getMessage() for record in caplog.records if record.name == "tidemark.notify"]
    assert said == (
        "shop: ${ALERTS_HOOK} did not accept the message about rate: the receiver answered with status 500. It is "
        "sent again at the next look"
    )
    assert SECRET not in caplog.text
    ids = {message["message"].splitlines()[-1] for message in hook.got}
    assert len(ids) == 1, "a message that is sent again has the same id"
    next_batch(shop, 2, lost=4, is_error=True)
    hook.status, hook.got[:] = 201, []
    look(shop)
    assert titles(hook) == ["shop: error, rate"]
    assert hook.got[0]["message"].splitlines()[-1] not in ids
    hook.status, hook.got[:] = 500, []
    next_batch(shop, 3, lost=0)
    look(shop)
    next_batch(shop, 4, lost=2, is_error=True)
    hook.status, hook.got[:] = 201, []
    look(shop)
    assert titles(hook) == [], "the channel knows of the error, and never learnt that it was away"


def test_a_process_that_dies_between_a_commit_and_its_message_loses_nothing(tmp_path: Path, hook: Receiver) -> None:
    shop = shop_in(tmp_path)
    checked(shop, 1, lost=3)

    def dies(*_url: str, **_message: str) -> str:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        messages.notify_channels(shop.workspace, dies)
    look(shop)
    assert titles(hook) == ["shop: warning, rate"]


def test_a_channel_of_errors_gets_no_warnings_and_hears_when_the_error_is_over(
    tmp_path: Path, hook: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    both = '[{to: "${ALERTS_HOOK}"}, {to: "${ALERTS_PAGER}", level: error}]'
    shop = shop_in(tmp_path, f"alerts: {{notify: {both}}}\n")
    with receiving() as pager:
        monkeypatch.setenv("ALERTS_PAGER", pager.url.replace("http://", "json://"))
        for batch, (lost, is_error) in enumerate([(3, False), (3, True), (3, False), (0, False)], 2):
            next_batch(shop, batch, lost=lost, is_error=is_error)
            look(shop)
        assert titles(hook) == [
            *("shop: warning, rate", "shop: error, rate", "shop: warning, rate", "shop: resolved, rate")
        ]
        assert titles(pager) == ["shop: error, rate", "shop: resolved, rate"]
        assert pager.got[1]["message"].startswith("It is a warning now: ")


def test_a_pipeline_without_channels_is_not_looked_at(tmp_path: Path) -> None:
    shop = shop_in(tmp_path, "")
    look(shop)
    assert not (tmp_path / "warehouse" / "shop" / "_quality").exists()
    called = call(shop)
    assert called.exit_code == 2
    assert "has no `alerts.notify`" in called.stderr


def test_the_command_sends_a_test_to_every_channel_and_says_who_took_it(tmp_path: Path, hook: Receiver) -> None:
    shop = shop_in(tmp_path, 'alerts: {notify: [{to: "${ALERTS_HOOK}"}, {to: "${ALERTS_NOT_SET}"}]}\n')
    called = call(shop, "--test")
    assert called.exit_code == 1
    first, second = called.stdout.splitlines()
    assert first == "shop: ${ALERTS_HOOK} accepted the message"
    assert second.startswith("shop: ${ALERTS_NOT_SET} did not accept the message: the variable is not set")
    assert titles(hook) == ["shop: test"]
    hook.status = 403
    assert "status 403" in call(shop, "--test").stdout


@pytest.mark.parametrize(
    "url", ["nonsense", f"jsno://user:{SECRET}@127.0.0.1/x", f"json://user:{SECRET}@127.0.0.1:9/"]
)
def test_a_url_is_never_shown(
    tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    shop = shop_in(tmp_path)
    monkeypatch.setenv("ALERTS_HOOK", url)
    with caplog.at_level(logging.DEBUG):
        called = call(shop, "--test")
    assert called.exit_code == 1
    assert "did not accept the message: " in called.stdout
    assert url not in called.output + caplog.text
    assert SECRET not in called.output + caplog.text


def test_a_mail_says_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mails: list[str] = []

    class Mails:
        async def handle_DATA(self, _server: object, _session: object, envelope: object) -> str:  # noqa: N802
            mails.append(vars(envelope)["content"].decode())
            return "250 OK"

    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    server = Controller(Mails(), hostname="127.0.0.1", port=port)
    server.start()
    try:
        monkeypatch.setenv("ALERTS_HOOK", f"mailto://127.0.0.1:{port}?from=tm@example.org&to=ops@example.org")
        shop = shop_in(tmp_path)
        checked(shop, 1, lost=3)
        look(shop)
    finally:
        server.stop()
    [mail] = mails
    assert "Subject: shop: warning, rate" in mail
    assert "To: ops@example.org" in mail
    assert "few records are lost" in mail.replace("=\r\n", "")


def test_states_are_kept_next_to_failed_checks_and_hold_no_url(tmp_path: Path, hook: Receiver) -> None:
    shop = shop_in(tmp_path)
    checked(shop, 1, lost=3)
    look(shop)
    text = (tmp_path / "warehouse" / "shop" / "_quality" / "notified.json").read_text(encoding="utf-8")
    assert json.loads(text)["rate"]["delivered"] == {"ALERTS_HOOK": "warn"}
    assert SECRET not in text
    assert hook.url.rpartition(":")[2] not in text
    assert BatchLog(shop.lake).pending() is None


def test_states_that_an_earlier_version_noted_with_pages_are_read(tmp_path: Path, hook: Receiver) -> None:
    shop = shop_in(tmp_path)
    noted = tmp_path / "warehouse" / "shop" / "_quality" / "notified.json"
    noted.parent.mkdir()
    state = {
        "level": "warn",
        "changes": 1,
        "sentence": "old",
        "page": "/p.html",
        "delivered": {"ALERTS_HOOK": "warn"},
    }
    noted.write_text(json.dumps({"rate": state}))
    look(shop)
    assert titles(hook) == ["shop: resolved, rate"]


def test_dagsters_sensor_looks_also_where_nothing_has_come(tmp_path: Path, hook: Receiver) -> None:
    on_input = "schedule: {on_new_input: 15 seconds}\n"
    freshness = 'alerts: {freshness: {warn: 1 hour}, notify: [{to: "${ALERTS_HOOK}"}]}\n'
    shop = shop_in(tmp_path, on_input + freshness)
    given = shop.file.spec.schedule
    assert isinstance(given, OnNewInput)
    workspace = shop.workspace
    sensor = live_sensor(workspace, "shop_live", given)
    with DagsterInstance.ephemeral() as instance:
        nothing_new = signature(workspace)
        tick = sensor(build_sensor_context(instance, cursor=nothing_new))
    assert isinstance(tick, SkipReason)
    assert titles(hook) == ["shop: warning, freshness"]
