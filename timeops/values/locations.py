"""URLs of places, as they are written: schemes, their other spellings, and what no URL may hold.

Here: what a text says by itself. Not here: places and stores (resources/places).
"""

import re
from collections.abc import Mapping

SCHEMES = ("s3", "gs", "abfss", "hdfs")
SPELLINGS: Mapping[str, str] = {"s3a": "s3", "s3n": "s3", "gcs": "gs", "abfs": "abfss"}
"""Schemes as others write them, Hadoop above all, and as they are here."""
_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+)://(.*)", re.DOTALL)
_NOT_IN_KEYS = ("", ".", "..")
_TOKEN = re.compile(r"[?&](?:sig|sv|token|secret|password|X-Amz-\w+|AWSAccessKeyId|Signature)=", re.IGNORECASE)
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


def parts_of_url(text: str) -> tuple[str, str, str] | None:
    """Return the scheme in its own spelling, the host or bucket and the rest of a URL; None of a path."""
    match = _URL.fullmatch(text)
    if match is None:
        return None
    scheme = match[1].lower()
    host, _, path = match[2].partition("/")
    return SPELLINGS.get(scheme, scheme), host, path


def url_problem(text: str) -> str | None:
    """Return what is wrong with a URL, to follow it in a sentence; None for a path and for a place's URL."""
    parts = parts_of_url(text)
    if parts is None:
        return None
    scheme, host, key = parts
    if has_secret(text):
        return "with a user or a secret in it"
    if scheme == "file":
        is_here = host in ("", "localhost") and bool(key.strip("/"))
        return None if is_here else "which is not the URL of a file on this machine"
    if scheme not in SCHEMES or not host:
        return "which is not the URL of an object store"
    if key.strip("/") and odd_part(key.rstrip("/")) is not None:
        return "with a part that is empty, `.` or `..`: object stores have no such folders"
    return None


def has_secret(text: str) -> bool:
    """Return whether a URL holds what may be a secret: a user, or the token of a query. A message repeats none."""
    parts = parts_of_url(text)
    if parts is None:
        return False
    scheme, host, key = parts
    user, sign, _ = host.rpartition("@")
    return bool(sign and (scheme != "abfss" or ":" in user)) or _TOKEN.search(key) is not None


def odd_part(key: str) -> str | None:
    """Return a part of a key that libraries take for something else, or refuse; None where there is none."""
    odd = (part for part in key.split("/") if part in _NOT_IN_KEYS or _CONTROL.search(part))
    return next(odd, None)
