"""Everything a run needs, decided before it starts."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from gateway.generation import Route
from gateway.metering import NOBODY, Metering
from gateway.text_ids import TEXT_STATE

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from uuid import UUID

    from gateway.cache import LruCache
    from gateway.constraints.output_rules import OutputRules
    from gateway.constraints.validation import Checker
    from gateway.entries import Compacted, ToolsListed
    from gateway.generation import Sampling
    from gateway.limits.accounting import Charge
    from gateway.protocol.context_item import ContextItem, ConversationPlace
    from gateway.protocol.responses.response_object import ResponseHead
    from gateway.tenancy import Principal


@dataclass(frozen=True, slots=True)
class RunSpec:
    """Specification of one response to generate.

    `added` are the items this request brought, rendered: they are stored with the output. There
    are none where nobody asks for them again, or once they are stored.
    `sampling.max_tokens` already fits into the model's context window, in which there is room for
    `window_left` ids behind the prompt (None: that is not known to be more); with 0 the model is
    not asked. `root_created_at` (unix seconds) is when the first response of the chain was
    created; it pins the date in the prompt.

    `rules` are what the request demands of the output, `checker` knows whether a body meets them.
    `reasoning_budget` is how many tokens the model may think, None: as many as it likes. `priority`
    is that of `TokenRequest`, `share_weight` the tenant's when it was accepted, in hundredths.

    `compacted` is what its log begins with, if its context was compacted for it; then come the
    `listings` of MCP servers. `secrets` are what the request gave to be sent to these, by label:
    they are in no log, and nothing but the tools is told them. `approvals` are the answers to
    requests for approval that are used up when it begins: their ids, and what they were made for.
    `tool_state` is what its context has for hosted tools, which goes on if it uses none itself.
    `tool_values` is what they keep of an unstored one for those that continue it.
    `route` is where its context was generated, and then where it is itself.

    `inherited` are the items before `added`, where somebody goes on with the response though it is
    not stored; otherwise None.

    `durable`: its log is kept in the database, so that any replica can go on with it and show it.
    `streamed`: it was asked for as a stream. `inputs` is how many items the request brought, which
    of a durable one are stored before it runs. `conversation` is what it is added to when it ends;
    of one that was taken over only its row knows. `charge` is what its key was charged for it.
    `template_state` is what the format of the model has learned of its servers
    (`ModelFormat.template_state`), `opens_thought` is that of its `Prompt`. `who` is who asked for
    it, as its usage line says. `image_holds` count the bytes of images that were fetched for its
    prompt, for as long as it is there.
    """

    principal: Principal
    head: ResponseHead
    model: str
    prompt_ids: Sequence[int]
    added: tuple[ContextItem, ...]
    sampling: Sampling
    cache_salt: str
    store: bool
    parent: UUID | None
    root_created_at: int
    rules: OutputRules
    checker: Checker
    reasoning_budget: int | None = None
    priority: int = 0
    share_weight: int = 100
    durable: bool = False
    streamed: bool = False
    inputs: int = 0
    conversation: ConversationPlace | None = None
    inherited: tuple[ContextItem, ...] | None = None
    compacted: Compacted | None = None
    listings: tuple[ToolsListed, ...] = ()
    secrets: Mapping[str, Mapping[str, str]] = field(default_factory=dict, repr=False)
    window_left: int | None = None
    approvals: tuple[tuple[str, bytes], ...] = ()
    tool_state: bytes | None = None
    tool_values: LruCache[str, Any] | None = None
    route: Route = field(default_factory=Route, compare=False, repr=False)
    template_state: bytes = b""
    opens_thought: bool = False
    who: Metering = NOBODY
    charge: Charge | None = field(default=None, compare=False, repr=False)
    image_holds: tuple[object, ...] = field(default=(), compare=False, repr=False)

    @property
    def is_text(self) -> bool:
        # The prompt is a conversation, and the turns are text.
        return self.template_state == TEXT_STATE
