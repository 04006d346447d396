"""The options of stores for Spark: settings of Hadoop's clients, in the session that uses them.

Here: one mapping for each store. Not here: the origin of options (credentials.py), the jars of the clients
(../spark/delta_jars.py).

The results of these functions hold secrets, as in credentials.py.
"""

from collections.abc import Iterable
from urllib.parse import urlsplit

from tidemark.resources.places.credentials import (
    DEFAULT_REGION,
    IN_SPARK,
    Options,
    is_open,
    options_of,
    spark_defaults,
)
from tidemark.timeops.errors import SpecError

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
        found, host = options_of(root), urlsplit(root).netloc
        match urlsplit(root).scheme:
            case "s3":
                settings |= _of_s3a(found, f"fs.s3a.bucket.{host}.")
            case "gs":
                of_gs = _of_gs(found)
                if any(settings.get(name, value) != value for name, value in of_gs.items()):
                    raise _two_accounts(root)
                settings |= of_gs
            case "abfss":
                settings |= _of_abfss(found, host.partition("@")[2])
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


def _two_accounts(root: str) -> SpecError:
    return SpecError(
        f"{root} has another account than an earlier bucket, and Spark takes one account for all of Google's.",
        expected="one Google account for input and tables of a session",
        remedy="let one account read all buckets, and name it for each",
    )


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
    found = {f"fs.azure.{name}.{account}": value for name, value in settings.items()}
    found |= {"fs.azure.io.retry.max.retries": _RETRIES, "spark.sql.redaction.options.regex": _HIDDEN}
    if endpoint.scheme == "http":  # its other HTTP client always wants a certificate
        found |= {"fs.azure.always.use.https": "false", "fs.azure.networking.library": "JDK_HTTP_URL_CONNECTION"}
    return found
