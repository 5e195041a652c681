"""`helm test`: exit code 0 if the gateway is ready and, with a key, answers a request."""

import json
import os
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

ANSWER_WAIT_S = 60
"""As long as a model may take that has just been loaded."""


def answered(path: str, body: dict[str, object] | None = None, key: str = "") -> bytes:
    """Return the body of an answer. Exits with its words if it is an error."""
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {key}"}
    data = None if body is None else json.dumps(body).encode()
    request = Request(os.environ["SERVICE_URL"] + path, data, headers)
    try:
        with urlopen(request, timeout=ANSWER_WAIT_S) as answer:
            content: bytes = answer.read()
    except HTTPError as error:
        raise SystemExit(f"{path}: {error.code} {error.read().decode()}") from None
    except OSError as error:
        raise SystemExit(f"{path}: {error}") from None
    return content


answered("/readyz")
print("ready")
if file := os.environ.get("TEST_KEY_FILE"):
    asked = {"model": os.environ["TEST_MODEL"], "input": "Say hello.", "store": False}
    response = json.loads(answered("/v1/responses", asked, Path(file).read_text("utf-8").strip()))
    if response["status"] != "completed":
        raise SystemExit(f"/v1/responses: {response['status']}: {response['error']}")
    print(f"answered by {response['model']}")
