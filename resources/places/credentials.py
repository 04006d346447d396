"""Access to a store: its options, found in one place, and passed to each library under its own names.

Here: options by their names in delta-rs (`storage_options`), from a file, the environment or Spark's settings; and
the same for delta-rs, obstore, Arrow, and Hadoop's clients in Spark. Not here: the operations of a store
(resources/places/stores.py), whether it can be used (resources/places/checks.py), the jars of the clients
(resources/spark/delta_jars.py).

The results of these functions hold secrets: they go to a library, and into no message, plan, table or log.
"""

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import yaml

from tidemark.timeops.errors import SpecError
from tidemark.timeops.values.locations import parts_of_url

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem

    from tidemark.resources.places.stores import Store


NAMED_OPTIONS = "TIDEMARK_STORAGE_OPTIONS"
"""Variable that names a YAML file: options by bucket, `s3://bucket: {aws_access_key_id: …}`."""
PATIENCE = timedelta(seconds=30)
"""How long a failing request to a store is tried again."""

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
    "aws_allow_http": "allow_http",
    "google_service_account_path": "google_service_account",
    "azure_client_id": "azure_storage_client_id",
    "azure_client_secret": "azure_storage_client_secret",
    "azure_tenant_id": "azure_storage_tenant_id",
    "azure_storage_sas_token": "azure_storage_sas_key",
    "azure_storage_endpoint": "azure_endpoint",
}
_LOCK = "aws_s3_locking_provider"
_IN_ENVIRONMENT = {
    "s3": (
        *("aws_access_key_id", "aws_secret_access_key", "aws_session_token", "aws_region", "aws_default_region"),
        *("aws_endpoint_url", "aws_endpoint_url_s3", "aws_endpoint", "aws_allow_http", "aws_skip_signature"),
        *("aws_virtual_hosted_style_request", _LOCK),
    ),
    "gs": ("google_service_account", "google_application_credentials", "google_base_url", "google_skip_signature"),
    "abfss": (
        *("azure_storage_account_key", "azure_endpoint", "azure_storage_endpoint"),
        *("azure_storage_client_id", "azure_storage_client_secret", "azure_storage_tenant_id"),
        *("azure_client_id", "azure_client_secret", "azure_tenant_id"),
    ),
    "hdfs": (),
}
# Set for delta-rs alone: otherwise two runs could commit one version, whatever a user has set.
_COMMITS: Mapping[str, str] = {"aws_conditional_put": "etag", "aws_s3_allow_unsafe_rename": "false"}
ADDRESSES = ("aws_endpoint_url", "google_base_url", "azure_endpoint")
_ADDRESS = re.compile(r"https?://(?:[\w.-]+|\[[\da-fA-F:]+\])(?::\d+)?(?:/[\w./-]*)?")
IN_SPARK = {  # of one bucket, after `fs.s3a.bucket.<bucket>.`
    "aws_access_key_id": "access.key",
    "aws_secret_access_key": "secret.key",
    "aws_session_token": "session.token",
    "aws_endpoint_url": "endpoint",
    "aws_region": "endpoint.region",
}
DEFAULT_REGION = "us-east-1"


def options_of(root: str) -> Options:
    """Return the options of a store by delta-rs's names: from its entry in the named file, else the environment.

    Options that neither sets are taken from Spark's settings, `spark.hadoop.fs.s3a.…` of spark-defaults.conf.

    Raises:
        SpecError: The file of options cannot be read, or an option cannot be taken.
    """
    scheme = urlsplit(root).scheme
    environment = {name: os.environ[name.upper()] for name in _IN_ENVIRONMENT[scheme] if os.environ.get(name.upper())}
    return _checked({**_in_spark_defaults(root), **_renamed(environment), **_renamed(_named(root))})


def _checked(options: Options) -> Options:
    """Return the same options, if all libraries can take them: a malformed address would end this process."""
    for name in ADDRESSES:
        if name in options and not _ADDRESS.fullmatch(options[name]):
            raise SpecError(
                f"{name.upper()} is not an address: {options[name].rpartition('@')[2]}",  # secrets come before it
                expected="an address such as https://store.example.com",
                remedy=f"correct the variable, or the option in the file that {NAMED_OPTIONS} names",
            )
    if _LOCK in options:
        raise SpecError(
            f"{_LOCK.upper()} is set, but delta-rs no longer has a lock: two runs could write the same commit.",
            expected="a store with conditional puts, which needs no lock",
            remedy=f"unset it, or take it out of the file that {NAMED_OPTIONS} names",
        )
    if "azure_storage_sas_key" in options:
        raise SpecError(
            "Tidemark does not accept a shared access signature for Azure: messages of Arrow would quote it.",
            expected="azure_storage_account_key, or azure_client_id, azure_client_secret and azure_tenant_id",
            remedy=f"name one of them in the file that {NAMED_OPTIONS} names",
        )
    return options


def store_address(root: str) -> str:
    """Return the address of a store that an option names; empty if no option does."""
    options = options_of(root)
    return next((options[name] for name in ADDRESSES if name in options), "")


def _renamed(options: Mapping[str, str]) -> Options:
    return {_OTHER_NAMES.get(name.lower(), name.lower()): str(value) for name, value in options.items()}


def _named(root: str) -> Mapping[str, str]:
    """Return the options of a store in the file; `${NAME}` in a value is replaced by that environment variable."""
    file = os.environ.get(NAMED_OPTIONS)
    if not file:
        return {}
    by_root = _read_named(file)
    return {name: os.path.expandvars(str(value)) for name, value in (by_root.get(root) or {}).items()}


@cache
def _read_named(file: str) -> Mapping[str, Mapping[str, str]]:
    try:
        by_root = yaml.safe_load(Path(file).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        why = getattr(error, "strerror", None) or "it is not YAML"  # YAML's own words quote the file's secrets
        raise _wrong_file(file, why) from None
    if not isinstance(by_root, dict) or not all(isinstance(options, dict) for options in by_root.values()):
        raise _wrong_file(file, "it is not a mapping of buckets")
    return {_root_of(str(root)): options for root, options in by_root.items()}


def _root_of(url: str) -> str:
    """Return the URL of a bucket with the scheme that Tidemark uses, however it was written."""
    parts = parts_of_url(url.rstrip("/"))
    return url if parts is None else f"{parts[0]}://{parts[1]}"


def _wrong_file(file: str, why: str) -> SpecError:
    return SpecError(
        f"{NAMED_OPTIONS} names {file}, which cannot be read: {why}",
        expected="a YAML file with a mapping for each bucket, such as `s3://bucket: {aws_region: eu-central-1}`",
        remedy="correct the file, or unset the variable",
    )


def delta_options(root: str) -> Options:
    """Return the options for delta-rs, which commits by the store's own put-if-absent."""
    options, scheme = _with_http(root), urlsplit(root).scheme
    if scheme != "hdfs":
        options["retry_timeout"] = f"{PATIENCE.total_seconds():g}s"
    return {**options, **_COMMITS} if scheme == "s3" else options


def _with_http(root: str) -> Options:
    """Return the options of a store; an address without TLS allows HTTP."""
    options = options_of(root)
    if any(options.get(name, "").startswith("http://") for name in ADDRESSES):
        options["allow_http"] = "true"
    return options


def named_roots() -> tuple[str, ...]:
    """Return the stores that the file of options names."""
    file = os.environ.get(NAMED_OPTIONS)
    return tuple(sorted(_read_named(file))) if file else ()


def store_at(root: str, patience: timedelta = PATIENCE) -> "Store":
    """Return the store, opened once for these options; its requests are tried again for that long."""
    return _opened(root, tuple(sorted(_with_http(root).items())), patience)


@cache
def _opened(root: str, options: tuple[tuple[str, str], ...], patience: timedelta) -> "Store":
    from tidemark.resources.places.stores import Hdfs, ObjectStore  # noqa: PLC0415 - see above

    if root.startswith("hdfs://"):
        return Hdfs(root, patience)
    config: dict[str, Any] = {name: value for name, value in options if name not in (*_COMMITS, "allow_http")}
    client: dict[str, Any] = {"connect_timeout": "5s", "timeout": "60s"}
    if dict(options).get("allow_http", "").lower() == "true":
        client["allow_http"] = True
    return ObjectStore(root, config, client, patience, lambda: arrow_files(root))


def arrow_files(root: str) -> "FileSystem":
    """Return the store as a file system of Arrow; paths begin with the bucket."""
    import pyarrow.fs as files  # noqa: PLC0415 - see above

    options, host = options_of(root), urlsplit(root).netloc
    match urlsplit(root).scheme:
        case "s3":
            endpoint = urlsplit(options.get("aws_endpoint_url", ""))
            return files.S3FileSystem(
                access_key=options.get("aws_access_key_id"),
                secret_key=options.get("aws_secret_access_key"),
                session_token=options.get("aws_session_token"),
                region=options.get("aws_region", DEFAULT_REGION),
                endpoint_override=endpoint.netloc or None,
                scheme=endpoint.scheme or "https",
                anonymous=is_open(options),
                force_virtual_addressing=options.get("aws_virtual_hosted_style_request", "").lower() == "true",
            )
        case "gs":
            account = options.get("google_service_account") or options.get("google_application_credentials")
            return _google_files(account, options.get("google_base_url", ""), is_open(options))
        case "abfss":
            return files.AzureFileSystem(host.partition("@")[2].partition(".")[0], **_of_azure_in_arrow(options))
        case _:
            from hdfs_native.fsspec import HdfsFileSystem  # noqa: PLC0415 - an extra

            name, _, port = host.partition(":")
            # A fork, also that by which PySpark starts Java, drops what fsspec has cached, and hangs in the end of a
            # client whose threads it does not have (fsspec 2026.9, hdfs-native 0.14).
            hdfs = HdfsFileSystem(name, int(port) if port else None, skip_instance_cache=True)
            return files.PyFileSystem(files.FSSpecHandler(hdfs))


def _of_azure_in_arrow(options: Options) -> dict[str, str]:
    """Return the credential for Arrow, which takes one kind, and the address of an emulator for both protocols."""
    if key := options.get("azure_storage_account_key"):
        credential = {"account_key": key}
    else:
        is_role = "azure_storage_client_secret" not in options  # the machine's own, which has no tenant
        names = ("client_id",) if is_role else ("client_id", "client_secret", "tenant_id")
        credential = {name: options[f"azure_storage_{name}"] for name in names if f"azure_storage_{name}" in options}
    endpoint = urlsplit(options.get("azure_endpoint", ""))
    if endpoint.path.strip("/"):
        for kind in ("blob", "dfs"):
            credential |= {f"{kind}_storage_scheme": endpoint.scheme, f"{kind}_storage_authority": endpoint.netloc}
    return credential


def is_open(options: Options) -> bool:
    """Return whether everyone may read, so that requests are not signed."""
    return any(options.get(f"{whose}_skip_signature", "").lower() == "true" for whose in ("aws", "google"))


@cache  # once for each account, as it changes the environment for a moment
def _google_files(account: str | None, address: str, anonymous: bool) -> "FileSystem":
    """Return Google's store for Arrow, which reads an account only from the environment, when it is opened."""
    import pyarrow.fs as files  # noqa: PLC0415 - see above

    endpoint = urlsplit(address)
    with variable_set("GOOGLE_APPLICATION_CREDENTIALS", account or None):
        return files.GcsFileSystem(
            anonymous=anonymous,
            scheme=endpoint.scheme or "https",
            endpoint_override=endpoint.netloc or None,
            retry_time_limit=PATIENCE,
        )


@contextmanager
def variable_set(name: str, value: str | None) -> Iterator[None]:
    """Set a variable of the environment during the block; with None it stays as it is."""
    if value is None:
        yield
        return
    earlier_value = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        if earlier_value is None:
            del os.environ[name]
        else:
            os.environ[name] = earlier_value


def _in_spark_defaults(root: str) -> Options:
    if not root.startswith("s3://"):
        return {}
    defaults, bucket = spark_defaults(), urlsplit(root).netloc
    options: Options = {}
    for option, name in IN_SPARK.items():
        for setting in (f"spark.hadoop.fs.s3a.bucket.{bucket}.{name}", f"spark.hadoop.fs.s3a.{name}"):
            if setting in defaults:
                options.setdefault(option, defaults[setting])
    endpoint = options.get("aws_endpoint_url")
    if endpoint and "://" not in endpoint:
        options["aws_endpoint_url"] = f"https://{endpoint}"
    return options


def spark_defaults() -> dict[str, str]:
    """Return the names and values of `spark-defaults.conf`, which have blanks or `=` between them."""
    try:
        text = defaults_file().read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return {}
    lines = (re.split(r"\s*[=:]\s*|\s+", line.strip(), maxsplit=1) for line in text.split("\n"))
    return {line[0]: line[1] for line in lines if len(line) == 2 and line[0][:1] != "#"}


def defaults_file() -> Path:
    """Return the path at which Spark looks for `spark-defaults.conf`."""
    folder = os.environ.get("SPARK_CONF_DIR")
    if folder:
        return Path(folder, "spark-defaults.conf")
    home = os.environ.get("SPARK_HOME")
    if home is None:
        spec = find_spec("pyspark")  # not imported: that takes a second
        home = str(Path(spec.origin).parent) if spec is not None and spec.origin else ""
    return Path(home, "conf", "spark-defaults.conf")


_S3A = "org.apache.hadoop.fs.s3a"
_ABFS = "org.apache.hadoop.fs.azurebfs.oauth2"
_RETRIES = "5"  # of Azure's client, with longer waits each time: half a minute instead of many
_HIDDEN = r"(?i)url|account\.key"  # Spark masks secrets and tokens by itself, but not Azure's keys
_LOGIN = "https://login.microsoftonline.com"


def hadoop_settings(roots: Iterable[str]) -> Options:
    """Return the options of stores for Spark's sessions: settings of Hadoop's file systems, by bucket.

    A session passes them to all that read and write for it: in this process, on a cluster, on a server.

    Raises:
        SpecError: Two buckets of Google have different accounts: Hadoop's client takes one.
    """
    settings: Options = {}
    for root in sorted(set(roots)):
        options, host = options_of(root), urlsplit(root).netloc
        match urlsplit(root).scheme:
            case "s3":
                settings |= _of_s3a(options, f"fs.s3a.bucket.{host}.")
            case "gs":
                of_gs = _of_gs(options)
                if any(settings.get(name, value) != value for name, value in of_gs.items()):
                    raise SpecError(
                        f"{root} uses another account than an earlier bucket, but Spark uses one account for all of "
                        "Google's.",
                        expected="one Google account for input and tables of a session",
                        remedy="let one account read all buckets, and name it for each",
                    )
                settings |= of_gs
            case "abfss":
                settings |= _of_abfss(options, host.partition("@")[2])
    return settings


def _of_s3a(options: Options, prefix: str) -> Options:
    settings = {f"{prefix}{name}": options[option] for option, name in IN_SPARK.items() if option in options}
    if "aws_endpoint_url" in options:
        is_virtual = options.get("aws_virtual_hosted_style_request", "").lower() == "true"
        settings[f"{prefix}path.style.access"] = str(not is_virtual).lower()
        settings.setdefault(f"{prefix}endpoint.region", DEFAULT_REGION)
    if is_open(options):
        settings[f"{prefix}aws.credentials.provider"] = f"{_S3A}.AnonymousAWSCredentialsProvider"
    elif "aws_session_token" in options:
        settings[f"{prefix}aws.credentials.provider"] = f"{_S3A}.TemporaryAWSCredentialsProvider"
    elif "aws_access_key_id" in options:
        settings[f"{prefix}aws.credentials.provider"] = f"{_S3A}.SimpleAWSCredentialsProvider"
    return settings


def _of_gs(options: Options) -> Options:
    """Return the settings of Google's store; Hadoop's client of it uses no address but Google's."""
    if is_open(options):
        return {"fs.gs.auth.type": "UNAUTHENTICATED"}
    if file := options.get("google_service_account"):
        return {
            "fs.gs.auth.type": "SERVICE_ACCOUNT_JSON_KEYFILE",
            "fs.gs.auth.service.account.json.keyfile": file,
        }
    if "spark.hadoop.fs.gs.auth.type" in spark_defaults():
        return {}
    return {"fs.gs.auth.type": "APPLICATION_DEFAULT"}  # the client itself knows only the role of the machine


def _of_abfss(options: Options, account: str) -> Options:
    """Return the settings of one storage account of Azure, by its full name."""
    settings: Options = {}
    if key := options.get("azure_storage_account_key"):
        settings = {"account.auth.type": "SharedKey", "account.key": key}
    elif "azure_storage_client_secret" in options:
        settings = {
            "account.auth.type": "OAuth",
            "account.oauth.provider.type": f"{_ABFS}.ClientCredsTokenProvider",
            "account.oauth2.client.id": options.get("azure_storage_client_id", ""),
            "account.oauth2.client.secret": options["azure_storage_client_secret"],
            "account.oauth2.client.endpoint": f"{_LOGIN}/{options.get('azure_storage_tenant_id')}/oauth2/token",
        }
    elif not any(name.startswith("spark.hadoop.fs.azure.account.") for name in spark_defaults()):
        settings = {"account.auth.type": "OAuth", "account.oauth.provider.type": f"{_ABFS}.MsiTokenProvider"}
        if client := options.get("azure_storage_client_id"):  # of a machine with several identities
            settings["account.oauth2.client.id"] = client
    endpoint = urlsplit(options.get("azure_endpoint", ""))
    if endpoint.path.strip("/"):  # the account is part of the path, as in emulators: for Blob storage only
        settings |= {"abfs.endpoint": endpoint.netloc, "account.hns.enabled": "false"}
        settings |= {"fns.account.service.type": "BLOB"}
    of_account = {f"fs.azure.{name}.{account}": value for name, value in settings.items()}
    of_account |= {"fs.azure.io.retry.max.retries": _RETRIES, "spark.sql.redaction.options.regex": _HIDDEN}
    if endpoint.scheme == "http":  # its other HTTP client always wants a certificate
        of_account |= {"fs.azure.always.use.https": "false", "fs.azure.networking.library": "JDK_HTTP_URL_CONNECTION"}
    return of_account
