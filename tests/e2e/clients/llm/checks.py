"""llm, the command line tool, with its models in `extra-openai-models.yaml`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from answering import API_KEY, BASE_URL, MODEL, answer

FOLDER = Path(os.environ["LLM_USER_PATH"])
MODELS = f"""
- model_id: chat
  model_name: {MODEL}
  api_base: {BASE_URL}
  api_key_name: gateway
  supports_schema: true
  supports_tools: true
- model_id: responses
  model_name: {MODEL}
  api_base: {BASE_URL}
  api_key_name: gateway
  responses: true
  reasoning: true
  supports_schema: true
  supports_tools: true
"""
WEATHER = """
def get_weather(location: str) -> str:
    "Current weather of a place."
    return f"17 degrees in {location}"
"""


def llm(*arguments: str) -> str:
    FOLDER.mkdir(exist_ok=True)
    (FOLDER / "extra-openai-models.yaml").write_text(MODELS)
    (FOLDER / "keys.json").write_text(json.dumps({"gateway": API_KEY}))
    done = subprocess.run(
        [sys.executable, "-m", "llm", *arguments],
        check=False,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
    )
    if done.returncode:
        raise RuntimeError(done.stderr)
    return done.stdout


def prompt(*, model: str) -> str:
    return llm("-m", model, "Hello there")


def unstreamed(*, model: str) -> str:
    return llm("-m", model, "--no-stream", "Hello there")


def goes_on(*, model: str) -> str:
    llm("-m", model, "My name is Ada.")
    return llm("-c", "What is my name?")


def schema(*, model: str) -> dict[str, Any]:
    return json.loads(llm("-m", model, "--schema", "location str", "The weather in Paris, please."))


def tools(*, model: str) -> str:
    return llm("-m", model, "--functions", WEATHER, "What is the weather in Paris?")


answer(prompt, unstreamed, goes_on, schema, tools)
