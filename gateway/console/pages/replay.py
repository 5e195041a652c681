"""A revealed response, which a backend continues from one of its tokens."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from gateway.admin.replays import Replay
from gateway.admin.responses import REVEAL_S
from gateway.api.client_connection import CancelOnDisconnect
from gateway.console.page import Act, Page, Rendered
from gateway.errors import InvalidRequest
from gateway.protocol.request_errors import validated
from gateway.services.runs.regeneration import CONTINUATION_S, FORCED_CHARS_MAX

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gateway.console.page import Call
    from gateway.protocol.admin_bodies import Json

PATH: Final = "/responses/{response_id}/replay"
TEMPLATE: Final = "replay.html"
_NUMBERS: Final[Mapping[str, type]] = {"at": int, "temperature": float, "seed": int}
_ENDINGS: Final = {
    "length": "It was ended at its bound of tokens.",
    "time": f"It was ended after {CONTINUATION_S:.0f} seconds.",
    "recalled": "It was ended because others needed its place at the backend.",
    "broken": "The backend broke off.",
}


@dataclass(frozen=True, slots=True)
class ReplayView:
    id: str
    record: Json
    backends: Sequence[str]
    form: Mapping[str, str] = field(default_factory=dict)
    result: Json | None = None
    may_read: bool = True
    tab: str = "tokens"
    reveal_s: int = REVEAL_S
    text_max: int = FORCED_CHARS_MAX

    @property
    def hides(self) -> bool:
        return self.record["content"]["revealed_until"] is None

    @property
    def differs_at(self) -> int:
        """Return the position of the first token that differs; -1: none."""
        assert self.result is not None, "only a result differs"
        first = self.result["first_difference"]
        return -1 if first is None else self.result["at"] + first

    @property
    def sentence(self) -> str:
        assert self.result is not None, "only a result is told"
        if self.result["source"] == "nothing":
            return "No token of the original is kept: the replay stands alone."
        if self.differs_at >= 0:
            return f"It differs from token {self.differs_at} on."
        if self.result["ending"] == "stop":
            return "It says the same, token for token."
        return "As far as it came, it says the same."

    @property
    def ending(self) -> str:
        return _ENDINGS.get(self.result["ending"], "") if self.result else ""


async def view(call: Call) -> ReplayView:
    return await _shown(call, {"at": call.query.get("at", "")})


async def _shown(call: Call, form: Mapping[str, str], result: Json | None = None) -> ReplayView:
    services, response_id = call.services.operator, call.path["response_id"]
    record = await services.responses.get(call.author, response_id)
    backends = services.replays.backends(record["model"])
    return ReplayView(response_id, record, backends, form, result)


async def run(call: Call) -> Rendered:
    with CancelOnDisconnect(call.connection):
        result = await call.services.operator.replays.replay(
            call.author, call.path["response_id"], body_of(call.form)
        )
        shown = await _shown(call, call.form, result)
    return Rendered(TEMPLATE, "Replay", shown)


def body_of(form: Mapping[str, str]) -> Replay:
    # Browsers send line breaks as two characters.
    fields: dict[str, Any] = {"text": form.get("text", "").replace("\r\n", "\n")}
    if form.get("backend"):
        fields["backend"] = form["backend"]
    for name, kind in _NUMBERS.items():
        if not (value := form.get(name)):
            continue
        try:
            fields[name] = kind(value)
        except ValueError:
            raise InvalidRequest(f"'{name}' is no number.", param=name) from None
    return validated(Replay, fields)


PAGE: Final = Page(
    path=PATH,
    title="Replay",
    template=TEMPLATE,
    permission="content.read",
    view=view,
    acts=(Act(PATH, "content.read", run),),
)
