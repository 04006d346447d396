"""A port that nobody has, for what a test serves."""

import socket


def free_port() -> int:
    """A free port of this machine."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])
