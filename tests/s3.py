"""A real S3 server of this machine, for tests: moto's, on a port of its own, with a door in front of it.

Here: the server as a process (`python -m tests.s3`), and what a process needs to reach it. The door lets in known
keys only, and can be told to behave like stores that lack something. Not here: what is kept there.
"""

import json
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen
from uuid import uuid4

import boto3

from tests.processes import process, wait_until

BUCKET = "bucket"
KEY, SECRET = "the-key", "the-secret-that-nobody-may-see"
READER = "key-of-a-reader"
"""This key may list and read."""
_DOOR, _OF_MOTO = "/_door", "/moto-api/"
_ALL_IS_ALLOWED = '{"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": "*", "Resource": "*"}]}'
_DENIED = '<?xml version="1.0"?><Error><Code>{code}</Code><Message>{message}</Message></Error>'


@dataclass(frozen=True)
class S3Server:
    """A server that runs.

    Attributes:
        address: Its endpoint.
    """

    address: str

    @property
    def environment(self) -> dict[str, str]:
        """Variables by which a process reaches it."""
        return {
            "AWS_ENDPOINT_URL": self.address,
            "AWS_ACCESS_KEY_ID": KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_REGION": "us-east-1",
        }

    def make_bucket(self, name: str) -> str:
        """Make a bucket; return its URL."""
        headers = {"Authorization": f"AWS4-HMAC-SHA256 Credential={KEY}/20260101/us-east-1/s3/aws4_request"}
        urlopen(Request(f"{self.address}/{name}", method="PUT", headers=headers)).close()
        return f"s3://{name}"

    def tell(self, **orders: bool | str | None) -> None:
        """Set the rules of the door: `ignore_conditions`, `deny_writes`, let in a `user` by its key."""
        urlopen(Request(f"{self.address}{_DOOR}", json.dumps(orders).encode(), method="POST")).close()

    def requests(self) -> Mapping[str, int]:
        """Return the requests so far, by method."""
        with urlopen(f"{self.address}{_DOOR}") as answer:
            found: Mapping[str, int] = json.load(answer)
        return found

    @contextmanager
    def one_user(self) -> Iterator[dict[str, str]]:
        """Let in one user only during the block, and check its signatures; yield variables with its key."""
        told = {"aws_access_key_id": KEY, "aws_secret_access_key": SECRET, "region_name": "us-east-1"}
        iam = boto3.client("iam", endpoint_url=self.address, **told)
        name = f"user-{uuid4()}"
        iam.create_user(UserName=name)
        iam.put_user_policy(UserName=name, PolicyName="all", PolicyDocument=_ALL_IS_ALLOWED)
        made = iam.create_access_key(UserName=name)["AccessKey"]
        self.tell(user=made["AccessKeyId"])
        self._check_from_request("0")
        try:
            yield {"AWS_ACCESS_KEY_ID": made["AccessKeyId"], "AWS_SECRET_ACCESS_KEY": made["SecretAccessKey"]}
        finally:
            self._check_from_request("inf")
            self.tell(user=None)

    def _check_from_request(self, number: str) -> None:
        """Set the number of requests after which moto looks who asks."""
        plain = {"Content-Type": "text/plain"}
        urlopen(Request(f"{self.address}{_OF_MOTO}reset-auth", number.encode(), plain, method="POST")).close()


@contextmanager
def s3_server(folder: Path) -> Iterator[S3Server]:
    """Yield a server with one bucket, as a process that ends with the block.

    Args:
        folder: Where its log goes.
    """
    log = folder / "s3.log"
    with process([sys.executable, "-m", "tests.s3"], {}, log):
        wait_until(lambda: "at http" in log.read_text(), log)
        server = S3Server(log.read_text().partition("at ")[2].split()[0])
        server.make_bucket(BUCKET)
        yield server


class Door:
    """Proxy between clients and the server.

    Args:
        behind: The server.
    """

    def __init__(self, behind: Callable[..., Iterable[bytes]]) -> None:
        self._behind, self._orders, self._counts = behind, dict[str, Any](), Counter[str]()
        self._one_at_a_time = threading.Lock()  # moto looks whether a key is there, and then puts it

    def __call__(self, request: dict[str, Any], answer: Callable[..., Any]) -> Iterable[bytes]:
        if request["PATH_INFO"] == _DOOR:
            return self._ordered(request, answer)
        method = request["REQUEST_METHOD"]
        with self._one_at_a_time:
            self._counts[method] += 1
            key = request.get("HTTP_AUTHORIZATION", "").partition("Credential=")[2].partition("/")[0]
            if request["PATH_INFO"].startswith(_OF_MOTO):
                return list(self._behind(request, answer))
            if key not in (KEY, READER, self._orders.get("user")):
                return _refused(answer, "InvalidAccessKeyId", "The key you provided does not exist in our records.")
            if (key == READER or self._orders.get("deny_writes")) and method not in ("GET", "HEAD"):
                return _refused(answer, "AccessDenied", "Access Denied")
            if self._orders.get("ignore_conditions"):
                request.pop("HTTP_IF_NONE_MATCH", None)
            return list(self._behind(request, answer))

    def _ordered(self, request: dict[str, Any], answer: Callable[..., Any]) -> Iterable[bytes]:
        if request["REQUEST_METHOD"] == "POST":
            self._orders |= json.loads(request["wsgi.input"].read(int(request["CONTENT_LENGTH"])))
        answer("200 OK", [("Content-Type", "application/json")])
        return [json.dumps(self._counts).encode()]


def _refused(answer: Callable[..., Any], code: str, message: str) -> Iterable[bytes]:
    answer("403 Forbidden", [("Content-Type", "application/xml")])
    return [_DENIED.format(code=code, message=message).encode()]


def main() -> None:
    # Only the process of the server waits for these.
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app  # noqa: PLC0415
    from werkzeug.serving import WSGIRequestHandler, make_server  # noqa: PLC0415

    class Silent(WSGIRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_request(self, *_: object) -> None:
            """Print nothing for a request."""

    door = Door(DomainDispatcherApplication(create_backend_app))
    server = make_server("127.0.0.1", 0, door, threaded=True, request_handler=Silent)
    print(f"at http://127.0.0.1:{server.server_port} ", flush=True)  # noqa: T201
    server.serve_forever()


if __name__ == "__main__":
    main()
