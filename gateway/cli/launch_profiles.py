"""What clients read to find the gateway: files of our own, never those that the user keeps.

The key is in none of them: they name the environment variable that it is in.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from gateway.cli.provision import make_folder, write_private
from gateway.errors import StartupError

if TYPE_CHECKING:
    from pathlib import Path

    from gateway.cli.launch_target import OfferedModel, Target

KEY_VARIABLE: Final = "HARMONY_GATEWAY_API_KEY"
PROVIDER: Final = "harmony-gateway"
CODEX_PROFILE: Final = "gateway"
OUTPUT_TOKENS_MAX: Final = 32_000
"""What opencode keeps free for an answer, unless the window is small."""
OUTPUT_SHARE: Final = 4

_CODEX = """\
# Written anew by each `harmony-gateway launch codex`. It goes over the config.toml beside it, which
# is for settings of your own.
model = {model}
model_provider = "{provider}"
# gpt-oss cannot search the web here.
web_search = "disabled"
check_for_update_on_startup = false

[model_providers.{provider}]
name = "Harmony Gateway"
base_url = {base_url}
env_key = "{key_variable}"
env_key_instructions = "Start Codex with: harmony-gateway launch codex"
wire_api = "responses"
model_catalog_url = {catalog_url}
supports_websockets = {websockets}

# Every tool that is offered stands in every prompt. These are two thirds of it, and only larger
# models use them well.
[agents]
enabled = false

[features]
view_image = false
apps = false
plugins = false

[skills.bundled]
enabled = false

# Commands of the model need no key.
[shell_environment_policy]
exclude = ["{key_variable}", "OPENAI_API_KEY"]

[analytics]
enabled = false

[feedback]
enabled = false
"""


@dataclass(frozen=True, slots=True)
class Profile:
    """A client's command line, its further environment, and the file that these lead it to."""

    path: Path
    text: str
    command: tuple[str, ...]
    environment: dict[str, str]

    def write(self) -> None:
        """Raises `StartupError` where that cannot be done."""
        make_folder(self.path.parents[1])
        try:
            self.path.parent.mkdir(mode=0o700, exist_ok=True)
            write_private(self.path, self.text)
        except OSError as error:
            raise StartupError(
                f"cannot write {self.path}: {error.strerror}",
                remedy="Name another folder with GATEWAY_DATA_DIR.",
            ) from error


def codex_profile(target: Target, data_dir: Path, *, websockets: bool) -> Profile:
    """A home of its own for Codex, in which it also keeps its sessions."""
    home = data_dir / "codex"
    text = _CODEX.format(
        model=json.dumps(target.model),
        provider=PROVIDER,
        base_url=json.dumps(target.base_url),
        catalog_url=json.dumps(f"{target.base_url}/codex/models"),
        key_variable=KEY_VARIABLE,
        websockets=json.dumps(websockets),
    )
    return Profile(
        path=home / f"{CODEX_PROFILE}.config.toml",
        text=text,
        command=("codex", "--profile", CODEX_PROFILE),
        environment={"CODEX_HOME": str(home)},
    )


def opencode_profile(target: Target, data_dir: Path) -> Profile:
    """A configuration that opencode reads beside the user's, and that wins over it."""
    model = f"{PROVIDER}/{target.model}"
    provider = {
        "npm": "@ai-sdk/openai",
        "name": "Harmony Gateway",
        "options": {"baseURL": target.base_url, "apiKey": f"{{env:{KEY_VARIABLE}}}"},
        "models": {name: _opencode_model(one) for one in target.offered for name in one.names},
    }
    configuration = {
        "model": model,
        "small_model": model,
        "share": "disabled",
        "autoupdate": False,
        "provider": {PROVIDER: provider},
    }
    path = data_dir / "opencode" / "opencode.json"
    return Profile(
        path=path,
        text=json.dumps(configuration, indent=2) + "\n",
        command=("opencode",),
        environment={"OPENCODE_CONFIG": str(path)},
    )


def _opencode_model(model: OfferedModel) -> dict[str, Any]:
    """Without `forceReasoning` nothing is said of reasoning for a model whose name is unknown."""
    output = min(OUTPUT_TOKENS_MAX, model.context_length // OUTPUT_SHARE)
    return {
        "reasoning": True,
        "tool_call": True,
        "attachment": False,
        "limit": {"context": model.context_length, "output": output},
        "options": {"reasoningSummary": "auto", "forceReasoning": True},
    }
