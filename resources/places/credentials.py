"""How a store is reached: its options, found in one place, and handed to each library in its own words.

Here: options by the names that delta-rs has for them (`storage_options`), from a file, the environment or Spark's
settings; and the same for delta-rs, obstore, Arrow and Spark. Not here: what a store can do (stores.py), whether it
can be used (checks.py).

What these functions return holds secrets: it goes to a library, and into no message, plan, table or log.
"""

import os
from collections.abc import Iterable, Mapping
from datetime import timedelta
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import yaml

from tidemark.timeops.errors import SpecError

if TYPE_CHECKING:  # who has all on the file system must not wait for these
    from pyarrow.fs import FileSystem

    from tidemark.resources.places.stores import Store

SCHEMES = ("s3", "gs", "abfss", "hdfs")
NAMED_OPTIONS = "TIDEMARK_STORAGE_OPTIONS"
"""Variable that names a YAML file: options by bucket, `s3://bucket: {aws_access_key_id: …}`."""
PATIENCE = timedelta(seconds=30)
"""So long a request to a store that fails is tried again."""

Options = dict[str, str]

_OTHER_NAMES = {
    "access_key_id": "aws_access_key_id",
    "secret_access_key": "aws_secret_access_key",
    "session_token": "aws_session_token",
    "region": "aws_region",
    "aws_default_region": "aws_region",
    "endpoint": "aws_endpoint_url",
    "endpoint_url": "aws_endpoint_url",
    "aws_endpoint": "aws_endpoint_url",
    "aws_endpoint_url_s3": "aws_endpoint_url",
    "google_application_credentials": "google_service_account",
    "azure_storage_account_name": "azure_storage_account_name",
    "azure_storage_account_key": "azure_storage_account_key",
}
_IN_ENVIRONMENT = {
    "s3": (
        *("aws_access_key_id", "aws_secret_access_key", "aws_session_token", "aws_region", "aws_default_region"),
        *("aws_endpoint_url", "aws_endpoint_url_s3", "aws_endpoint", "aws_allow_http", "aws_skip_signature"),
        *("aws_virtual_hosted_style_request", "aws_conditional_put", "aws_s3_locking_provider"),
        *("aws_s3_allow_unsafe_rename", "delta_dynamo_table_name"),
    ),
    "gs": ("google_service_account", "google_service_account_key", "google_application_credentials"),
    "abfss": (
        *("azure_storage_account_key", "azure_storage_client_id", "azure_storage_client_secret"),
        *("azure_storage_tenant_id", "azure_storage_sas_key"),
    ),
    "hdfs": (),
}
_OF_DELTA = (
    "aws_conditional_put",
    "aws_s3_locking_provider",
    "aws_s3_allow_unsafe_rename",
    "delta_dynamo_table_name",
)
_OF_CLIENT = ("aws_allow_http",)
_IN_SPARK = {  # of one bucket, behind `fs.s3a.bucket.<bucket>.`
    "aws_access_key_id": "access.key",
    "aws_secret_access_key": "secret.key",
    "aws_session_token": "session.token",
    "aws_endpoint_url": "endpoint",
    "aws_region": "endpoint.region",
}
_DEFAULT_REGION = "us-east-1"


def options_of(root: str) -> Options:
    """Return the options of a store by delta-rs's names: of its entry in the named file, else of the environment.

    What neither says is taken from Spark's settings, `spark.hadoop.fs.s3a.…` of spark-defaults.conf.

    Args:
        root: URL of the bucket or container.

    Raises:
        SpecError: The file of options cannot be read.
    """
    scheme = urlsplit(root).scheme
    environment = {name: os.environ[name.upper()] for name in _IN_ENVIRONMENT[scheme] if os.environ.get(name.upper())}
    return {**_in_spark_defaults(root), **_renamed(environment), **_renamed(_named(root))}


def _renamed(options: Mapping[str, str]) -> Options:
    return {_OTHER_NAMES.get(name.lower(), name.lower()): str(value) for name, value in options.items()}


def _named(root: str) -> Mapping[str, str]:
    """The options that the file has for a store; `${NAME}` in a value stands for that variable of the environment."""
    file = os.environ.get(NAMED_OPTIONS)
    if not file:
        return {}
    found = _read_named(file)
    return {name: os.path.expandvars(str(value)) for name, value in (found.get(root) or {}).items()}


@cache
def _read_named(file: str) -> Mapping[str, Mapping[str, str]]:
    try:
        found = yaml.safe_load(Path(file).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        why = getattr(error, "strerror", None) or "it is no YAML"  # YAML's own words quote the file, secrets and all
        raise _wrong_file(file, why) from None
    if not isinstance(found, dict) or not all(isinstance(one, dict) for one in found.values()):
        raise _wrong_file(file, "it is no mapping of buckets")
    return {str(root).rstrip("/"): options for root, options in found.items()}


def _wrong_file(file: str, why: str) -> SpecError:
    return SpecError(
        f"{NAMED_OPTIONS} names {file}, which cannot be read: {why}",
        expected="a YAML file with a mapping for each bucket, such as `s3://bucket: {aws_region: eu-central-1}`",
        remedy="correct the file, or unset the variable",
    )


def delta_options(root: str) -> Options:
    """Return the options as delta-rs takes them: it commits by the store's own put-if-absent."""
    found = options_of(root)
    if urlsplit(root).scheme != "s3":
        return found
    unsafe = {"aws_s3_allow_unsafe_rename": "false"}  # else two runs could commit one version
    by_store = {} if found.get("aws_s3_locking_provider") else {"aws_conditional_put": "etag"}
    return {**by_store, **found, **_http(found), **unsafe, "retry_timeout": _seconds(PATIENCE)}


def _seconds(patience: timedelta) -> str:
    return f"{patience.total_seconds():g}s"


def _http(options: Options) -> Options:
    """Who names an address without TLS has allowed it."""
    return {"aws_allow_http": "true"} if options.get("aws_endpoint_url", "").startswith("http://") else {}


def named_roots() -> tuple[str, ...]:
    """Return the stores that the file of options names."""
    file = os.environ.get(NAMED_OPTIONS)
    return tuple(sorted(_read_named(file))) if file else ()


def has_lock(root: str) -> bool:
    """Tell whether a lock is named that stands in for put-if-absent: delta-rs's table in DynamoDB."""
    return bool(options_of(root).get("aws_s3_locking_provider"))


def store_at(root: str) -> "Store":
    """Return the store, opened once for these options."""
    return store_with(root, PATIENCE)


def store_with(root: str, patience: timedelta) -> "Store":
    """Return the store, whose requests are tried again for so long."""
    return _opened(root, tuple(sorted({**options_of(root), **_http(options_of(root))}.items())), patience)


@cache
def _opened(root: str, options: tuple[tuple[str, str], ...], patience: timedelta) -> "Store":
    from tidemark.resources.places.stores import Hdfs, ObjectStore  # noqa: PLC0415 - see above

    if root.startswith("hdfs://"):
        return Hdfs(root, patience)
    config: dict[str, Any] = {name: value for name, value in options if name not in (*_OF_DELTA, *_OF_CLIENT)}
    client: dict[str, Any] = {"connect_timeout": "5s", "timeout": "60s"}
    if dict(options).get("aws_allow_http", "").lower() == "true":
        client["allow_http"] = True
    return ObjectStore(root, config, client, patience)


def arrow_files(root: str) -> "FileSystem":
    """Return the store as Arrow reads it; paths begin with the bucket."""
    import pyarrow.fs as files  # noqa: PLC0415 - see above

    found, host = options_of(root), urlsplit(root).netloc
    match urlsplit(root).scheme:
        case "s3":
            endpoint = urlsplit(found.get("aws_endpoint_url", ""))
            return files.S3FileSystem(
                access_key=found.get("aws_access_key_id"),
                secret_key=found.get("aws_secret_access_key"),
                session_token=found.get("aws_session_token"),
                region=found.get("aws_region", _DEFAULT_REGION),
                endpoint_override=endpoint.netloc or None,
                scheme=endpoint.scheme or "https",
                anonymous=found.get("aws_skip_signature", "").lower() == "true",
                force_virtual_addressing=found.get("aws_virtual_hosted_style_request", "").lower() == "true",
            )
        case "gs":
            return files.GcsFileSystem()
        case "abfss":
            key = found.get("azure_storage_account_key")
            return files.AzureFileSystem(host.partition("@")[2].partition(".")[0], account_key=key)
        case _:
            from hdfs_native.fsspec import HdfsFileSystem  # noqa: PLC0415 - an extra

            name, _, port = host.partition(":")
            return files.PyFileSystem(files.FSSpecHandler(HdfsFileSystem(name, int(port) if port else None)))


def hadoop_settings(roots: Iterable[str]) -> Options:
    """Return the options of stores as Spark's sessions take them: settings of Hadoop's file systems, by bucket.

    A session hands them on to whatever reads and writes for it: in this process, on a cluster, on a server.
    """
    settings: Options = {}
    for root in sorted(set(roots)):
        found, host = options_of(root), urlsplit(root).netloc
        match urlsplit(root).scheme:
            case "s3":
                settings |= _of_s3a(found, f"fs.s3a.bucket.{host}.")
            case "gs" if file := found.get("google_service_account"):
                settings["fs.gs.auth.type"] = "SERVICE_ACCOUNT_JSON_KEYFILE"
                settings["fs.gs.auth.service.account.json.keyfile"] = file
            case "abfss" if key := found.get("azure_storage_account_key"):
                settings[f"fs.azure.account.key.{host.partition('@')[2]}"] = key
    return settings


def _of_s3a(options: Options, prefix: str) -> Options:
    settings = {f"{prefix}{name}": options[option] for option, name in _IN_SPARK.items() if option in options}
    if "aws_endpoint_url" in options:
        is_virtual = options.get("aws_virtual_hosted_style_request", "").lower() == "true"
        settings[f"{prefix}path.style.access"] = str(not is_virtual).lower()
        settings.setdefault(f"{prefix}endpoint.region", _DEFAULT_REGION)
    if options.get("aws_skip_signature", "").lower() == "true":
        settings[f"{prefix}aws.credentials.provider"] = "org.apache.hadoop.fs.s3a.AnonymousAWSCredentialsProvider"
    elif "aws_session_token" in options:
        settings[f"{prefix}aws.credentials.provider"] = "org.apache.hadoop.fs.s3a.TemporaryAWSCredentialsProvider"
    elif "aws_access_key_id" in options:
        settings[f"{prefix}aws.credentials.provider"] = "org.apache.hadoop.fs.s3a.SimpleAWSCredentialsProvider"
    return settings


def _in_spark_defaults(root: str) -> Options:
    """What Spark's settings say of a bucket of S3."""
    if not root.startswith("s3://"):
        return {}
    said, bucket = spark_defaults(), urlsplit(root).netloc
    found: Options = {}
    for option, name in _IN_SPARK.items():
        for setting in (f"spark.hadoop.fs.s3a.bucket.{bucket}.{name}", f"spark.hadoop.fs.s3a.{name}"):
            if setting in said:
                found.setdefault(option, said[setting])
    endpoint = found.get("aws_endpoint_url")
    if endpoint and "://" not in endpoint:
        found["aws_endpoint_url"] = f"https://{endpoint}"
    return found


def spark_defaults() -> dict[str, str]:
    """Return what `spark-defaults.conf` says: names and values, with blanks or `=` between them."""
    try:
        text = defaults_file().read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return {}
    lines = (line.strip().replace("=", " ", 1).split(None, 1) for line in text.splitlines())
    return {name: value.strip() for name, value in (line for line in lines if len(line) == 2) if name[0] != "#"}


def defaults_file() -> Path:
    """Return where Spark looks for it."""
    folder = os.environ.get("SPARK_CONF_DIR")
    if folder:
        return Path(folder, "spark-defaults.conf")
    home = os.environ.get("SPARK_HOME")
    if home is None:
        found = find_spec("pyspark")  # not imported: that takes a second
        home = str(Path(found.origin).parent) if found is not None and found.origin else ""
    return Path(home, "conf", "spark-defaults.conf")
