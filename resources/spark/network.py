"""Who can reach a Spark of ours over the network: its addresses, its secret, its UI.

Here: these settings, by where it computes. Not here: all others (session.py), the server of `tidemark serve`
(server.py).
"""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from tidemark.resources.places.credentials import defaults_file, spark_defaults
from tidemark.timeops.errors import TidemarkError

LOOPBACK = "127.0.0.1"
_AUTHENTICATE, _SECRET, _UI = "spark.authenticate", "spark.authenticate.secret", "spark.ui.enabled"
_LOCAL_ADDRESS = "SPARK_LOCAL_IP"  # the UI has no setting for its address, and takes this variable


def network_settings(master: str, *, ui: bool) -> dict[str, str]:
    """Settings that let in nobody but those whom the work needs.

    Of this machine alone Spark listens on the loopback address, and asks for a secret that it makes for itself. Of a
    cluster the driver has to be reached by its executors: it asks for a secret as well, and has no UI, unless the
    cluster's `spark-defaults.conf` says otherwise.

    Args:
        master: Whose cores compute, as Spark's `spark.master` names them.
        ui: Whether Spark's UI is wanted, on this machine.
    """
    if is_local(master):
        return {
            "spark.driver.host": LOOPBACK,
            "spark.driver.bindAddress": LOOPBACK,
            _AUTHENTICATE: "true",
            _UI: str(ui).lower(),
            "spark.ui.killEnabled": "false",  # whoever reaches it only looks: it has no login
        }
    said = spark_defaults()
    return {name: value for name, value in {_AUTHENTICATE: "true", _UI: "false"}.items() if name not in said}


def is_local(master: str) -> bool:
    """Whether the threads of one process compute."""
    return master == "local" or master.startswith("local[")


def check_secret(config: Mapping[str, str]) -> None:
    """Checks that a standalone cluster has a secret; YARN and Kubernetes are given one for each application.

    Args:
        config: Settings of a session.

    Raises:
        TidemarkError: Nobody has said it, nor that there is to be none.
    """
    master = config.get("spark.master", "")
    if not master.startswith("spark://") or _AUTHENTICATE not in config or _SECRET in spark_defaults():
        return
    raise TidemarkError(
        f"The cluster {master} has no secret: anyone who reaches the driver's ports could run code in it.",
        expected=f"`{_AUTHENTICATE} true` and `{_SECRET} …` in spark-defaults.conf of master, workers and driver",
        remedy=f"write both there, readable by its owner only, or `{_AUTHENTICATE} false` where the network lets in "
        f"nobody else. The driver's is {defaults_file()}; SPARK_CONF_DIR names another folder",
    )


@contextmanager
def bound_to_loopback(config: Mapping[str, str]) -> Iterator[None]:
    """While a JVM that computes alone is started inside, what it opens is bound to the loopback address."""
    if not is_local(config.get("spark.master", "")):
        yield
        return
    before = os.environ.get(_LOCAL_ADDRESS)
    os.environ[_LOCAL_ADDRESS] = LOOPBACK
    try:
        yield
    finally:
        if before is None:
            del os.environ[_LOCAL_ADDRESS]
        else:
            os.environ[_LOCAL_ADDRESS] = before
