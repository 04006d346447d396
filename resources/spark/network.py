"""Access to a Spark of ours over the network: its addresses, its secret, its UI.

Here: these settings, by where it computes. Not here: all others (resources/spark/session.py), the server of `tidemark
serve` (resources/spark/server.py).
"""

import socket
from collections.abc import Mapping
from contextlib import AbstractContextManager
from urllib.parse import urlsplit

from tidemark.resources.places.credentials import defaults_file, spark_defaults, variable_set
from tidemark.timeops.computing.session import is_local
from tidemark.timeops.errors import MachineError, TidemarkError

LOOPBACK = "127.0.0.1"
_AUTHENTICATE, _SECRET, _UI = "spark.authenticate", "spark.authenticate.secret", "spark.ui.enabled"
_PATIENCE_S = 3.0
_PORTS = {"http": 80, "https": 443}
_LOCAL_ADDRESS = "SPARK_LOCAL_IP"  # the UI has no setting for its address, and takes this variable


def network_settings(master: str, *, ui: bool) -> dict[str, str]:
    """Return settings that admit only the processes that the work needs.

    Where only this machine computes, Spark listens on the loopback address and requires a secret that it generates
    itself. On a cluster the executors have to reach the driver: it requires a secret as well, and has no UI, unless
    the cluster's `spark-defaults.conf` says otherwise.
    """
    if is_local(master):
        return {
            "spark.driver.host": LOOPBACK,
            "spark.driver.bindAddress": LOOPBACK,
            _AUTHENTICATE: "true",
            _UI: str(ui).lower(),
            "spark.ui.killEnabled": "false",  # its visitors only look: it has no login
        }
    defaults = spark_defaults()
    return {name: value for name, value in {_AUTHENTICATE: "true", _UI: "false"}.items() if name not in defaults}


def check_secret(config: Mapping[str, str]) -> None:
    """Check that a standalone cluster has a secret; YARN and Kubernetes make one for each application.

    Raises:
        TidemarkError: The settings have no secret, and do not say that none is wanted.
    """
    master = config.get("spark.master", "")
    if not master.startswith("spark://") or _AUTHENTICATE not in config or _SECRET in spark_defaults():
        return
    raise TidemarkError(
        f"The cluster {master} has no secret: anyone who reaches the driver's ports could run code in it.",
        expected=f"`{_AUTHENTICATE} true` and `{_SECRET} …` in spark-defaults.conf of master, workers and driver",
        remedy=f"write both there, readable by its owner only, or `{_AUTHENTICATE} false` if the network admits no "
        f"one else. The driver's is {defaults_file()}; SPARK_CONF_DIR names another folder",
    )


def check_master(master: str) -> None:
    """Check that a process listens at the address of a cluster's master: Spark itself tries for a minute.

    Several masters of a standalone cluster have commas between them.

    Raises:
        MachineError: No process listens.
    """
    addresses = _addresses(master)
    if addresses and not any(_listens(host, port) for host, port in addresses):
        raise MachineError(
            f"No process listens at {master}.",
            expected="the master of a cluster, at the address that TIDEMARK_SPARK names",
            remedy="correct the address or start the cluster; without TIDEMARK_SPARK this machine computes.",
        )


def _addresses(master: str) -> list[tuple[str, int]]:
    """Return the addresses of a master; none for masters that are found otherwise, such as YARN's."""
    kind, _, location = master.partition("://")
    if kind == "spark":
        urls = [urlsplit(f"//{address}") for address in location.split(",")]
    elif kind == "k8s":
        urls = [urlsplit(location if "://" in location else f"https://{location}")]
    else:
        return []
    try:
        return [(url.hostname or "", url.port or _PORTS[url.scheme]) for url in urls]
    except (ValueError, KeyError) as error:
        raise MachineError(
            f"{master} is not an address with a port.",
            expected="an address such as spark://host:7077 or k8s://https://host:443",
            remedy="correct TIDEMARK_SPARK.",
        ) from error


def _listens(host: str, port: int) -> bool:
    try:
        with socket.create_connection((host, port), timeout=_PATIENCE_S):
            return True
    except OSError:
        return False


def bound_to_loopback(config: Mapping[str, str]) -> AbstractContextManager[None]:
    """Let a JVM that starts during the block listen only on the loopback address, unless a cluster computes."""
    return variable_set(_LOCAL_ADDRESS, LOOPBACK if is_local(config.get("spark.master", "")) else None)
