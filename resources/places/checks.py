"""Usable places: no file is in the place of a folder, and a store answers and refuses the second writer.

Here: one check for each process, and failures of stores in the operator's words. Not here: options
(resources/places/credentials.py), files that are missing or damaged (resources/sources/, resources/delta/).
"""

import re
from collections.abc import Sequence
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from tidemark.resources.places.credentials import NAMED_OPTIONS, store_address, store_at
from tidemark.resources.places.place import Place, RemotePath
from tidemark.timeops.errors import LakeError, MachineError, SpecError
from tidemark.timeops.values.locations import SCHEMES, SPELLINGS

_PATIENCE = timedelta(seconds=8)  # an operator who set a wrong address learns so within seconds
_PROBE = "_tidemark/put_if_absent"
_CODE = re.compile(r"<Code>(\w+)</Code>|\b(NoSuchBucket|AccessDenied|InvalidAccessKeyId|SignatureDoesNotMatch)\b")
_STORE_SIGNS = (
    *("Generic S3 error", "Generic GCS error", "Generic MicrosoftAzure error", "Error performing ", "s3a://"),
    *("No FileSystem for scheme", "S3AFileSystem", "software.amazon.awssdk", "AWS Error", "Service: S3"),
    *("hadoop.fs.gs.", "google::cloud::Status", "hadoop.fs.azurebfs", "Azure Error"),
)
_NOT_IMPLEMENTED = ("NotImplemented", "501 Not Implemented", "not implemented", "not supported")
_WHERE = re.compile(r"\b(?:s3a?|gs|abfss?|hdfs)://[^\s/'\",:]+|https?://[^\s'\",)]+")


_CREDENTIALS = {
    "s3": "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
    "gs": "GOOGLE_SERVICE_ACCOUNT or GOOGLE_APPLICATION_CREDENTIALS",
    "abfss": "AZURE_STORAGE_ACCOUNT_KEY, or AZURE_CLIENT_ID, AZURE_CLIENT_SECRET and AZURE_TENANT_ID",
}
_AGAIN = "correct them and run again. Nothing was changed"


class _Failure(NamedTuple):
    """A failure as a store or a library reports it, and its words for the operator."""

    signs: Sequence[str]
    fault: str
    expected: str
    remedy: str


_FAILURES = (
    _Failure(
        ("FileSystem not found", "No FileSystem for scheme"),
        "This Spark has no client for {place}.",
        "a Spark that was started for this store",
        "restart `tidemark serve` with TIDEMARK_WAREHOUSE and TIDEMARK_SPECS as they are now, or your own server "
        "with the packages that docs/how-to/use-object-stores.md names",
    ),
    _Failure(
        ("169.254.169.254", "169.254.170.2", "NoAwsCredentials", "NoAuthWithAWSException"),
        "There are no credentials for {place}.",
        f"{{variables}}, options of the bucket in the file that {NAMED_OPTIONS} names, or a role of this machine",
        _AGAIN,
    ),
    _Failure(
        ("GCP credential error",),
        "The file of the account for {place} cannot be used.",
        "the JSON file of an account, as Google issues it, on this machine",
        _AGAIN,
    ),
    _Failure(
        (
            *("InvalidAccessKey", "SignatureDoesNotMatch", "InvalidToken", "ExpiredToken", "AuthenticationFailed"),
            *("AuthenticationRequired", "UNAUTHENTICATED", "invalid_grant", "InvalidAuthenticationInfo"),
            "failed to authenticate the request",
        ),
        "{place} does not accept the credentials{code}.",
        "the key or the account of a user of this store",
        _AGAIN,
    ),
    _Failure(
        ("NoSuchBucket", "UnknownStoreException", "ContainerNotFound", "bucket does not exist"),
        "There is no bucket {place}{code}.",
        "a bucket that exists: Tidemark does not create any",
        "correct the URL, or create the bucket; see also whether the endpoint is the right one",
    ),
    _Failure(
        (
            *("error sending request", "Connection refused", "dns error", "tcp connect error", "timed out"),
            *("client error (Connect)", "NETWORK_CONNECTION", "UnknownHostException", "SdkClientException"),
            "Connect to",
        ),
        "{place} does not answer{endpoint}.",
        "a store that answers within seconds",
        "check the endpoint, the region and the network, and run again: what was committed is kept",
    ),
    _Failure(
        ("AccessDenied", "403 Forbidden", "Status Code: 403", "AuthorizationPermissionMismatch", "AccessControl"),
        "{place} denies access{code}.",
        "the right to list, read, write and delete in the warehouse, and to list and read where sources are",
        "ask its owner to grant them to this user, and run again: what was committed is kept",
    ),
)


class StoreFailureError(MachineError):
    """A store cannot be used, or not by this process."""


def failure_of_store(message: str, where: str = "") -> StoreFailureError | None:
    """Return the error to raise if a failure is one of a store; None for every other.

    The bucket is given if it is known. Only the code of the store is shown from the message: it may quote what was
    sent.
    """
    if not where and not any(sign in message for sign in _STORE_SIGNS):
        return None
    failure = next((failure for failure in _FAILURES if any(sign in message for sign in failure.signs)), None)
    if failure is None:
        return None
    place = where or _place_in(message)
    fault = failure.fault.format(place=place, code=_code_in(message), endpoint=_endpoint(place))
    sentence = f"The {fault.removeprefix('the ')}" if fault.startswith("the ") else fault
    variables = _CREDENTIALS.get(urlsplit(place).scheme, "variables of the environment")
    return StoreFailureError(sentence, expected=failure.expected.format(variables=variables), remedy=failure.remedy)


def _place_in(message: str) -> str:
    match = _WHERE.search(message)
    if match is None:
        return "the object store"
    scheme = urlsplit(match[0]).scheme
    return f"{SPELLINGS.get(scheme, scheme)}://{urlsplit(match[0]).netloc}"


def _code_in(message: str) -> str:
    match = _CODE.search(message)
    return f" ({match[1] or match[2]})" if match else ""


def _endpoint(place: str) -> str:
    """Return the address that was asked, if one was set."""
    if urlsplit(place).scheme not in SCHEMES:
        return ""
    endpoint = urlsplit(store_address(place))
    return f" at {endpoint.scheme}://{endpoint.hostname}:{endpoint.port}" if endpoint.port else ""


def ensure_folder(place: Place, named: str, remedy: str) -> None:
    """Check that no file is in the place of a folder of the file system, or on the way to it.

    The folder need not exist; a store is not checked. The error begins with the role of the place, `named`.

    Raises:
        SpecError: A file is there.
    """
    if not isinstance(place, Path):
        return
    for part in (place, *place.parents):
        if part.is_dir():
            return
        if part.exists():
            which = "which" if part == place else f"and {part}"
            raise SpecError(f"{named} {place}, {which} is a file", expected="a folder, or nothing yet", remedy=remedy)


@cache  # a store that answered once is not asked again: later failures show by themselves
def ensure_answers(place: Place) -> None:
    """Check that the store of a place answers and lets this process list; places of the file system pass.

    Raises:
        StoreFailureError: The store does not answer, or refuses.
    """
    if not isinstance(place, RemotePath):
        return
    try:
        store_at(place.root, _PATIENCE).directly_in(place.key)
    except OSError as error:
        raise failure_of_store(str(error), place.root) or _unknown(place.root, error) from error


@cache
def ensure_put_if_absent(warehouse: Place) -> None:
    """Check that two runs never both write there: if two put the same file, the store refuses one.

    A small file stays in the warehouse; if it exists, one request is enough.

    Raises:
        LakeError: The store lets both write.
        StoreFailureError: The store does not answer.
    """
    if not isinstance(warehouse, RemotePath):
        return
    probe, store = warehouse / _PROBE, store_at(warehouse.root, _PATIENCE)
    try:
        for _ in range(2):
            store.put(probe.key, b"Of two runs that put this file, the store refuses one.\n", new=True)
    except FileExistsError:
        return
    except OSError as error:
        if not any(sign in str(error) for sign in _NOT_IMPLEMENTED):
            raise failure_of_store(str(error), warehouse.root) or _unknown(warehouse.root, error) from error
    else:
        store.delete([probe.key])
    raise LakeError(
        f"{warehouse.root} has no conditional put: it lets two runs write the same commit, and one would be lost.",
        expected="a store that refuses `PUT` with `If-None-Match: *` where the object exists, as S3 does",
        remedy="use a store, or a version of it, that does. Nothing was changed",
    )


def _unknown(root: str, error: OSError) -> StoreFailureError:
    kind = type(error.__cause__).__name__ if error.__cause__ is not None else type(error).__name__
    return StoreFailureError(
        f"{root} cannot be used: {kind}{_code_in(str(error))}.",
        expected="a store that lists, reads and writes",
        remedy="check its options: docs/how-to/use-object-stores.md says which there are",
    )
