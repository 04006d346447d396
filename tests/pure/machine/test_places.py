"""Places that a text names, and how the options of a store are found and said to each library; without a store."""

import os
from collections.abc import Callable
from pathlib import Path, PurePosixPath

import pytest
from hdfs_native.fsspec import HdfsFileSystem
from pyarrow.fs import PyFileSystem

from tests.processes import free_port
from tests.pure.source.landed import source
from tidemark.resources.places.checks import StoreFailureError, ensure_answers, failure_of_store
from tidemark.resources.places.credentials import (
    NAMED_OPTIONS,
    arrow_files,
    delta_options,
    hadoop_settings,
    named_roots,
    options_of,
    store_at,
    variable_set,
)
from tidemark.resources.places.place import RemotePath, _matches, place_of, relative, roots_of, spark_url
from tidemark.resources.sources.local_files import fixed_folder, name_of, path_of_url, spark_path
from tidemark.timeops.errors import SpecError
from tidemark.timeops.spec import parse_spec
from tidemark.timeops.values.locations import has_secret

ROOT = "s3://tables"
ACCOUNT = "lake.dfs.core.windows.net"
CONTAINER = f"abfss://tables@{ACCOUNT}"
Write = Callable[[str], None]


@pytest.fixture(autouse=True)
def nothing_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [*filter(lambda name: name.startswith("AWS_"), os.environ), NAMED_OPTIONS]:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path / "conf"))


@pytest.fixture
def name_options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Writes the file of options, and names it."""

    def write(text: str) -> None:
        (tmp_path / "stores.yaml").write_text(text)
        monkeypatch.setenv(NAMED_OPTIONS, str(tmp_path / "stores.yaml"))

    return write


def test_a_text_names_a_path_or_a_place_in_a_store() -> None:
    assert place_of("data/a b") == Path("data/a b")
    assert place_of("file:///data/a%20b") == Path("/data/a b")
    assert place_of("s3a://tables/a//b/") == RemotePath(ROOT, "a/b")
    assert str(place_of("s3://tables")) == ROOT
    for text in ("ftp://host/a", "s3://", "s3:///a", "s3://tables/../a", "file://elsewhere/a"):
        with pytest.raises(SpecError, match="is not a place"):
            place_of(text)
    assert roots_of(["in/*.csv", "s3://b/x/*.csv", place_of("s3://a"), "gs://c/y"]) == ("gs://c", "s3://a", "s3://b")


AZURE = "abfss://c@a.dfs.core.windows.net"


@pytest.mark.parametrize(
    ("spelled", "root"),
    [
        *((f"{scheme}://tables", "s3://tables") for scheme in ("s3", "s3a", "s3n", "S3", "S3A")),
        *((f"{scheme}://tables", "gs://tables") for scheme in ("gs", "gcs", "GS")),
        ("abfs://c@a.dfs.core.windows.net", AZURE),
        ("ABFSS://c@a.dfs.core.windows.net", AZURE),
        ("HDFS://node:8020", "hdfs://node:8020"),
    ],
)
def test_every_spelling_of_a_scheme_names_the_same_place_and_the_same_files(spelled: str, root: str) -> None:
    assert place_of(f"{spelled}/in/a.csv") == RemotePath(root, "in/a.csv")
    assert fixed_folder(f"{spelled}/in/*/a.csv", Path("/specs")) == RemotePath(root, "in")
    assert roots_of([source(f"{spelled}/in/*.csv").path]) == (root,)


def test_options_are_found_however_the_bucket_is_written(name_options: Write) -> None:
    name_options("s3a://tables/: {aws_region: eu-north-1}\n")
    assert options_of(ROOT) == {"aws_region": "eu-north-1"}
    assert named_roots() == (ROOT,)


def test_a_place_in_a_store_answers_as_a_path_does() -> None:
    place = RemotePath(ROOT, "shop/windows/w.parquet")
    path = PurePosixPath("/shop/windows/w.parquet")
    assert (place.name, place.stem, place.suffix) == (path.name, path.stem, path.suffix)
    assert [one.key for one in place.parents] == [str(one)[1:] for one in path.parents]
    assert place.parent.parent.parent.parent == RemotePath(ROOT)
    assert place.with_name("v") == RemotePath(ROOT, "shop/windows/v")
    assert relative(place, RemotePath(ROOT, "shop")) == "windows/w.parquet"
    assert relative(place, RemotePath(ROOT)) == "shop/windows/w.parquet"


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("*.csv", ["a.csv"]),
        ("**/*.csv", ["a.csv", "x/b.csv", "x/y/c.csv"]),
        ("x/**", ["x/b.csv", "x/y/c.csv"]),
        ("*/*.csv", ["x/b.csv"]),
        ("[ab].csv", ["a.csv"]),
        ("**/y/*", ["x/y/c.csv"]),
    ],
)
def test_a_wildcard_stays_within_a_folder_but_for_two_stars(pattern: str, found: list[str]) -> None:
    paths = ["a.csv", "x/b.csv", "x/y/c.csv"]
    assert [path for path in paths if _matches(path.split("/"), pattern.split("/"))] == found


def test_files_in_a_store_are_named_and_found_again_from_what_spark_says() -> None:
    fixed = fixed_folder("s3://tables/in/*/a.csv", Path("/specs"))
    assert fixed == RemotePath(ROOT, "in")
    assert fixed_folder("s3://tables/in/a.csv", Path("/specs")) == RemotePath(ROOT, "in")
    path = "s3://tables/in/1 %20/a.csv"
    assert name_of(path, fixed) == "1 %20/a.csv"
    assert spark_path("s3://tables/a[1].csv") == r"s3a://tables/a\[1\].csv"
    assert path_of_url("s3a://tables/in/1%20%2520/a.csv") == path
    assert spark_url(Path("/a")) == "file:///a"


def test_a_block_for_which_there_is_no_variable_leaves_what_others_do_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """No thread without an account of Google may set that of another thread again."""
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", "of another thread")
    with variable_set("GOOGLE_APPLICATION_CREDENTIALS", None):
        monkeypatch.delenv("GOOGLE_APPLICATION_CREDENTIALS")
    assert "GOOGLE_APPLICATION_CREDENTIALS" not in os.environ


def test_options_of_a_bucket_come_from_its_entry_in_the_file_then_the_environment_then_sparks_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name_options: Write
) -> None:
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "spark-defaults.conf").write_text(
        "spark.hadoop.fs.s3a.access.key=of spark\nspark.hadoop.fs.s3a.endpoint store.example.com\n"
    )
    of_spark = {"aws_access_key_id": "of spark", "aws_endpoint_url": "https://store.example.com"}
    assert options_of(ROOT) == of_spark
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "of the environment")
    assert options_of(ROOT)["aws_access_key_id"] == "of the environment"
    monkeypatch.setenv("THE_SECRET", "hidden")
    name_options(f'{ROOT}: {{access_key_id: of the file, secret_access_key: "${{THE_SECRET}}"}}\n')
    assert options_of(ROOT)["aws_access_key_id"] == "of the file"
    assert options_of(ROOT)["aws_secret_access_key"] == "hidden"
    assert options_of("s3://other")["aws_access_key_id"] == "of the environment"


def test_spark_knows_each_bucket_apart_and_delta_commits_by_conditional_puts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "k")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "s")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://localhost:9000")
    settings = hadoop_settings([ROOT])
    assert settings["fs.s3a.bucket.tables.endpoint"] == "http://localhost:9000"
    assert settings["fs.s3a.bucket.tables.path.style.access"] == "true"
    assert settings["fs.s3a.bucket.tables.secret.key"] == "s"
    assert delta_options(ROOT)["aws_conditional_put"] == "etag"
    assert delta_options(ROOT)["allow_http"] == "true"
    monkeypatch.setenv("AWS_S3_ALLOW_UNSAFE_RENAME", "true")
    assert delta_options(ROOT)["aws_s3_allow_unsafe_rename"] == "false"
    monkeypatch.setenv("AWS_CONDITIONAL_PUT", "disabled")
    assert delta_options(ROOT)["aws_conditional_put"] == "etag"


def test_a_lock_that_delta_rs_no_longer_has_is_refused(monkeypatch: pytest.MonkeyPatch, name_options: Write) -> None:
    monkeypatch.setenv("AWS_S3_LOCKING_PROVIDER", "dynamodb")
    with pytest.raises(SpecError, match="delta-rs no longer has a lock"):
        delta_options(ROOT)
    monkeypatch.delenv("AWS_S3_LOCKING_PROVIDER")
    name_options(f"{ROOT}: {{aws_s3_locking_provider: dynamodb}}\n")
    with pytest.raises(SpecError, match="delta-rs no longer has a lock"):
        store_at(ROOT)


def test_google_and_azure_are_told_to_spark_by_account(name_options: Write) -> None:
    assert hadoop_settings(["gs://a"]) == {"fs.gs.auth.type": "APPLICATION_DEFAULT"}
    assert hadoop_settings([CONTAINER])[f"fs.azure.account.auth.type.{ACCOUNT}"] == "OAuth"
    name_options(
        "gs://a: {google_service_account: a.json}\n"
        "gs://b: {google_service_account: b.json}\n"
        f"{CONTAINER}: {{azure_storage_account_key: k, azure_endpoint: 'http://127.0.0.1:10000/lake'}}\n"
    )
    assert hadoop_settings(["gs://a"])["fs.gs.auth.service.account.json.keyfile"] == "a.json"
    with pytest.raises(SpecError, match="gs://b uses another account"):
        hadoop_settings(["gs://a", "gs://b"])
    settings = hadoop_settings([CONTAINER])
    assert settings[f"fs.azure.account.key.{ACCOUNT}"] == "k"
    assert settings[f"fs.azure.abfs.endpoint.{ACCOUNT}"] == "127.0.0.1:10000"
    assert spark_url(place_of(f"{CONTAINER}/x")) == f"abfs://tables@{ACCOUNT}/x"
    assert delta_options(CONTAINER)["allow_http"] == "true"


@pytest.mark.parametrize(
    ("text", "root", "said"),
    [
        (
            f"{CONTAINER}: {{azure_storage_sas_token: 'sv=1&sig=hidden'}}\n",
            CONTAINER,
            "does not accept a shared access signature",
        ),
        ("s3://b: {aws_secret_access_key: hidden\n", ROOT, "cannot be read: it is not YAML"),
    ],
    ids=["a shared access signature", "no YAML"],
)
def test_options_that_are_refused_are_not_quoted(name_options: Write, text: str, root: str, said: str) -> None:
    name_options(text)
    with pytest.raises(SpecError, match=said) as raised:
        options_of(root)
    assert "hidden" not in str(raised.value)
    assert raised.value.__cause__ is None


def test_a_malformed_address_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOOGLE_BASE_URL", "http://127.0.0.1 x")
    with pytest.raises(SpecError, match="GOOGLE_BASE_URL is not an address"):
        options_of("gs://tables")


def test_a_failure_of_spark_at_a_store_is_told_without_what_was_sent() -> None:
    said = "Py4JJavaError: s3a://tables/x: getFileStatus: InvalidAccessKeyId, StringToSign hidden (Service: S3, 403)"
    known = failure_of_store(said)
    assert known is not None
    assert known.found == "s3://tables does not accept the credentials (InvalidAccessKeyId)."
    missing = "ClassNotFoundException: Class org.apache.hadoop.fs.s3a.S3AFileSystem not found"
    assert "This Spark has no client for the object store." in str(failure_of_store(missing))
    assert "The object store does not answer." in str(failure_of_store("Generic S3 error: Connection refused"))
    assert failure_of_store("a division by zero") is None


def test_a_name_node_that_does_not_answer_is_a_sentence_and_not_a_wait() -> None:
    with pytest.raises(StoreFailureError, match="does not answer"):
        ensure_answers(place_of(f"hdfs://127.0.0.1:{free_port()}/warehouse"))


def test_a_client_of_hdfs_is_not_among_what_fsspec_drops_in_a_fork() -> None:
    """`findings/fsspec_forks_drop_file_systems.sh`: its end would wait for threads that the fork does not have."""
    known = set(HdfsFileSystem._cache.values())
    assert isinstance(arrow_files(f"hdfs://127.0.0.1:{free_port()}"), PyFileSystem)
    assert set(HdfsFileSystem._cache.values()) == known


@pytest.mark.parametrize(
    "url",
    [
        "s3://me:hunter2@bucket/a",
        "https://me:hunter2@host/a",
        "abfss://c:hunter2@a.example/x",
        "gs://b/x?sig=hunter2",
    ],
)
def test_a_url_with_a_secret_is_refused_and_not_repeated(url: str) -> None:
    assert has_secret(url)
    spec = (
        f'name: p\nsources: [{{name: s, kind: files, path: "{url}", format: json, schema: "t STRING"}}]\n'
        "time: {timestamp_by: t}\n"
    )
    with pytest.raises(SpecError) as of_place:
        place_of(url)
    with pytest.raises(SpecError, match="found a URL with a user or a secret in it") as of_spec:
        parse_spec(spec, file="p.yaml")
    assert "hunter2" not in f"{of_place.value} {of_spec.value}"


@pytest.mark.parametrize("url", ["abfss://container@account.example/x", "s3://b/me@home/x", "a@b/c"])
def test_a_sign_that_is_no_user_is_taken(url: str) -> None:
    assert not has_secret(url)
