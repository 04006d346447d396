"""Losses of a batch, looked up once for metadata, alerts, silences and the questions to ask next."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidemark.assets.alarms.losses.causes import Around, Cause, around_of, cause_of_loss
from tidemark.assets.alarms.losses.log_tables import LogTables
from tidemark.assets.alarms.losses.rates import Losses, losses_since
from tidemark.assets.alarms.losses.sentences import in_two_lines
from tidemark.assets.batch import BatchWriter
from tidemark.resources.batches.position import plan_end, records_in
from tidemark.resources.workspace import Workspace
from tidemark.timeops import columns as c
from tidemark.timeops.figures.losses import OF_TIME, Loss, refused_by


@dataclass(frozen=True, eq=False)
class BatchLosses:
    """The losses up to the end of a batch, read from its tables when a look needs them: these must be written."""

    batch: BatchWriter

    @property
    def log(self) -> LogTables:
        """The tables as the batch leaves them."""
        workspace = self.batch.workspace
        return LogTables(workspace, workspace.lake.version, plan_end(self.batch.plan))

    @cached_property
    def losses(self) -> Losses:
        """The losses by day, from the day before the batch."""
        levels = self.batch.workspace.spec.alerts.dead_letter_rate
        return losses_since(self.log, self.batch.plan.first_seq, levels)

    @cached_property
    def around(self) -> Around:
        """The records around all of its letters."""
        return around_of(self.log, self.losses.letters)

    def cause(self, letters: pa.Table) -> Cause:
        """Return why the records of some of the letters were lost."""
        return cause_of_loss(self.log, letters, self.around)

    @property
    def newest_seq(self) -> int:
        """The `_arrival_seq` of the newest letter that the time of its event decides, else of the newest one."""
        letters = self.losses.letters
        of_time = letters.filter(pc.is_in(letters["reason"], pa.array([*map(str, OF_TIME)])))
        return int(pc.max((of_time if len(of_time) else letters)[c.SEQ]).as_py())

    def in_two_lines(self) -> tuple[str, ...]:
        """Say in two lines what the batch lost of its own records; nothing where it lost none."""
        plan, letters = self.batch.plan, self.losses.letters
        letters = letters.filter(pc.greater_equal(letters[c.SEQ], plan.first_seq))
        if not len(letters):
            return ()
        refused = refused_by(letters, None, np.zeros(len(letters), np.int64))["", 0]
        loss = Loss("", "", True, f"in batch {plan.batch_id}", records_in(plan), refused)
        return in_two_lines(loss, self.cause(letters), self.batch.workspace.spec)


def lost_lately(workspace: Workspace) -> tuple[str, ...]:
    """Say in two lines what was lost of the newest day, as of the last commit; nothing where nothing was lost.

    It looks at the records since the day before the last batch, a limited number of the newest of them.
    """
    last = workspace.batches.last_commit("process") if workspace.exists else None
    if last is None:
        return ()
    log = LogTables(workspace, workspace.base_of, workspace.progress.processed_end())
    losses = losses_since(log, last.plan.first_seq, workspace.spec.alerts.dead_letter_rate)
    if losses.newest is None:
        return ()
    letters = losses.newest_letters
    return in_two_lines(losses.newest, cause_of_loss(log, letters, around_of(log, letters)), workspace.spec)
