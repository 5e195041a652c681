"""Stand-ins for Vault's transit engine and for AWS KMS, as far as wrapping keys goes.

They answer in the forms of the real services, over HTTP: what is sent is checked as these check it,
down to the signature of a request to KMS.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import re
import threading
from base64 import b64decode, b64encode
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from typing_extensions import override

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

VAULT_TOKEN = "hvs.test-token"
ACCESS_KEY, SECRET_KEY = "AKIDEXAMPLE", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY"
KMS_ARN = "arn:aws:kms:eu-central-1:111122223333:key/1234abcd-12ab-34cd-56ef-1234567890ab"
_AUTHORIZATION = re.compile(
    r"AWS4-HMAC-SHA256 Credential=(\w+)/(\d{8})/([\w-]+)/kms/aws4_request, "
    r"SignedHeaders=([\w;-]+), Signature=([0-9a-f]{64})\Z"
)


@dataclass
class KeyServices:
    """`port` on 127.0.0.1. `asked` are the acts, in order. `status` answers everything with that
    and `errors`, `error` is the `__type` of KMS with status 400.
    """

    port: int = 0
    asked: list[str] = field(default_factory=list)
    status: int | None = None
    error: str | None = None
    errors: list[str] = field(default_factory=lambda: ["away"])
    versions: list[AESGCM] = field(default_factory=lambda: [AESGCM(bytes(32))])

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def vault(self, path: str, token: str | None, sent: dict[str, Any]) -> tuple[int, object]:
        _, version, mount, act, key = path.split("/")
        self.asked.append(f"vault {act}")
        if token != VAULT_TOKEN:
            return 403, {"errors": ["permission denied"]}
        if (version, mount, key) != ("v1", "transit", "harmony-gateway"):
            return 400, {"errors": ["encryption key not found"]}
        context = b64decode(sent["context"], validate=True)
        if act == "encrypt":
            plain = b64decode(sent["plaintext"], validate=True)
        else:
            plain_or_none = self._opened(sent["ciphertext"], context)
            if plain_or_none is None:
                return 400, {"errors": ["cipher: message authentication failed"]}
            plain = plain_or_none
        if act == "decrypt":
            return 200, {"data": {"plaintext": b64encode(plain).decode()}}
        number, nonce = len(self.versions), os.urandom(12)
        sealed = nonce + self.versions[-1].encrypt(nonce, plain, context)
        ciphertext = f"vault:v{number}:{b64encode(sealed).decode()}"
        return 200, {"data": {"ciphertext": ciphertext, "key_version": number}}

    def _opened(self, ciphertext: str, context: bytes) -> bytes | None:
        _, version, sealed = ciphertext.split(":")
        content = b64decode(sealed)
        try:
            key = self.versions[int(version[1:]) - 1]
            return key.decrypt(content[:12], content[12:], context)
        except InvalidTag:
            return None

    def kms(self, handler: BaseHTTPRequestHandler, body: bytes) -> tuple[int, object]:
        act = (handler.headers["x-amz-target"] or "").removeprefix("TrentService.")
        self.asked.append(f"kms {act}")
        if self.error is not None:
            return 400, {"__type": self.error, "message": "no"}
        if not is_signed(handler, body):
            return 400, {"__type": "InvalidSignatureException"}
        assert handler.headers["content-type"] == "application/x-amz-json-1.1"
        sent = json.loads(body)
        context = json.dumps(sent["EncryptionContext"], sort_keys=True).encode()
        if sent["KeyId"] not in {KMS_ARN, "alias/harmony"}:
            return 400, {"__type": "com.amazonaws.kms#NotFoundException", "message": "no"}
        if act == "Encrypt":
            nonce = os.urandom(12)
            plain = b64decode(sent["Plaintext"], validate=True)
            blob = nonce + self.versions[0].encrypt(nonce, plain, context)
            return 200, {
                "CiphertextBlob": b64encode(blob).decode(),
                "KeyId": KMS_ARN,
                "EncryptionAlgorithm": "SYMMETRIC_DEFAULT",
            }
        blob = b64decode(sent["CiphertextBlob"], validate=True)
        try:
            plain = self.versions[0].decrypt(blob[:12], blob[12:], context)
        except InvalidTag:
            return 400, {"__type": "InvalidCiphertextException"}
        return 200, {"Plaintext": b64encode(plain).decode(), "KeyId": KMS_ARN}


def is_signed(handler: BaseHTTPRequestHandler, body: bytes) -> bool:
    """Signature Version 4, read from what came instead of from what was meant to be sent."""
    found = _AUTHORIZATION.match(handler.headers["authorization"] or "")
    if found is None or found[1] != ACCESS_KEY:
        return False
    _, day, region, signed, signature = found.groups()
    lines = [f"{name}:{handler.headers[name]}" for name in signed.split(";")]
    digest = hashlib.sha256(body).hexdigest()
    request = "\n".join(["POST", handler.path, "", *lines, "", signed, digest])
    scope = f"{day}/{region}/kms/aws4_request"
    date = handler.headers["x-amz-date"]
    hashed = hashlib.sha256(request.encode()).hexdigest()
    text = f"AWS4-HMAC-SHA256\n{date}\n{scope}\n{hashed}"
    key = ("AWS4" + SECRET_KEY).encode()
    for word in scope.split("/"):
        key = hmac.new(key, word.encode(), hashlib.sha256).digest()
    is_bound = {"host", "x-amz-date", "x-amz-target"} <= set(signed.split(";"))
    expected = hmac.new(key, text.encode(), hashlib.sha256).hexdigest()
    return is_bound and date.startswith(day) and hmac.compare_digest(expected, signature)


@contextmanager
def key_services() -> Iterator[KeyServices]:
    """Both of them, at one port."""
    services = KeyServices()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            status: int
            if services.status is not None:
                status, answer = services.status, {"errors": services.errors}
            elif self.path == "/":
                status, answer = services.kms(self, body)  # type: ignore[assignment]
            else:
                token = self.headers["x-vault-token"]
                status, answer = services.vault(self.path, token, json.loads(body))  # type: ignore[assignment]
            content = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        @override
        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    services.port = server.server_port
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield services
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def sealing(folder: Path, keys_url: str) -> dict[str, Any]:
    """The section `encryption` of settings, with a file of keys in `folder`."""
    path = folder / "kek"
    if not path.exists():
        path.write_text(f"k1 {b64encode(os.urandom(32)).decode()}\n")
        path.chmod(0o600)
    return {"provider": "file", "keys_url": keys_url, "file": {"path": str(path)}}
