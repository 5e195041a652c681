"""Interface between the gateway and a family of models.

Nothing outside of a format's package knows one of its ids.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, Protocol, Self, TypeAlias, cast

from gateway.errors import ConfigError

if TYPE_CHECKING:
    from array import array
    from collections.abc import Iterable, Mapping, Sequence
    from enum import StrEnum

    from gateway.constraints.output_rules import AnswerFormat, OutputRules
    from gateway.generation import (
        Constraint,
        FinishReason,
        Framing,
        ParserPosition,
        Prompt,
        TokenParser,
    )
    from gateway.protocol.context_item import Columns, ContextItem
    from gateway.protocol.grants import Grants
    from gateway.protocol.items import InputItem
    from gateway.protocol.tool_types import FunctionTool


AFTER_ANSWER_RULE = "after_answer_dropped"
"""Recovery rule for ids behind a whole answer: their meaning would be a guess."""


def count_recoveries(recoveries: dict[str, int], rules: Iterable[StrEnum], times: int = 1) -> None:
    for rule in rules:
        recoveries[rule.value] = recoveries.get(rule.value, 0) + times


RAW: Final = "raw_message_tokens"
"""vLLM's shape of messages that it does not take apart."""
TAKEN_BACK_BY: Final = "taken_back_by"
"""Member of a message that was taken back: the recovery rule."""
INVALID_UNICODE: Final = "The input holds text that is not valid Unicode: half of a surrogate pair."
UNTHINKS: Final = "reasoning_off"
"""Thinking can be switched off."""
SEES: Final = "vision"
IMAGE_QUESTION: Final = b"image "
"""Before an image's URL in a question. The gateway answers with a data URL or an error."""
IMAGE_NO_ROOM: Final = "no room: "
"""Before such an error when other images use up the memory: a later request may succeed."""


@dataclass(frozen=True, slots=True)
class Builtins:
    """Built-in tools of the prompt. `python_description` replaces the trained text."""

    browser: bool = False
    python: bool = False
    python_description: str | None = None
    location: str | None = None

    @classmethod
    def from_grants(cls, grants: Grants | None) -> Builtins:
        if grants is None:
            return NO_BUILTINS
        browser, python = grants.browser, grants.python
        description = (python.description or "").strip() if python else ""
        return cls(
            browser=browser is not None,
            python=python is not None,
            python_description=description or None,
            location=browser.location if browser else None,
        )


NO_BUILTINS: Final = Builtins()
Rendering: TypeAlias = "array[int] | str"
"""Ids, or why the server's template refuses the conversation."""


class Unrendered(Exception):
    """Signal that only a server of the model has the answers to `questions`.

    A question is the JSON body of `POST /tokenize` of vLLM (`/v1/tokenize` of SGLang) without the
    model's name. The caller renders again with `RenderOptions.rendered`.
    """

    def __init__(self, questions: Sequence[bytes]) -> None:
        super().__init__(f"{len(questions)} conversations are to be rendered by a server")
        self.questions = tuple(questions)


@dataclass(frozen=True, slots=True)
class RenderOptions:
    """Options of a prompt besides its items.

    `current_date` is YYYY-MM-DD, `knowledge_cutoff` YYYY-MM. Without `commentary_without_tools` the
    commentary channel is only offered with tools: models that see it may call functions that do not
    exist. `tool_paths` are parameter paths, by default `tools[i]`. Only prompts of the same `scope`
    share a cache; without one nothing is cached. `approved` is the id of the MCP approval request
    whose call ends the prompt. `runs_tools`: the gateway runs some tools itself. `new_items` are
    the request's own, for errors.
    """

    instructions: str | None
    tools: tuple[FunctionTool, ...]
    effort: Literal["low", "medium", "high"]
    current_date: str | None
    model_identity: str
    knowledge_cutoff: str | None
    commentary_without_tools: bool
    answer: AnswerFormat | None = None
    tool_paths: tuple[str, ...] = ()
    scope: bytes = b""
    builtins: Builtins = NO_BUILTINS
    approved: str | None = None
    runs_tools: bool = False
    requested_effort: str | None = None
    rendered: Mapping[bytes, Rendering] = field(default_factory=dict)
    new_items: Sequence[InputItem] = field(default=(), repr=False)


@dataclass(frozen=True, slots=True)
class RepeatedHistory:
    """Part of a history that a prompt repeats: leading instructions as text, then the `ids`."""

    instructions: tuple[ContextItem, ...]
    ids: array[int]


@dataclass(frozen=True, slots=True)
class ImageLimits:
    """Limits of the images of one context; `bytes_max` is of each as a file."""

    bytes_max: int = 8 * 1024 * 1024
    images_max: int = 32
    context_bytes_max: int = 32 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class FormatOptions:
    """Options of one model.

    The family is recognised by `model`. `tokenizer` is the path of a `tokenizer.json`, or of its
    folder. `reasoning` and `calls` name syntaxes, None: the family's. `template_kwargs` is JSON.
    """

    model: str = ""
    tokenizer: str = ""
    reasoning: str | None = None
    calls: str | None = None
    template_kwargs: str = "{}"
    sees: bool = False
    images: ImageLimits = field(default_factory=ImageLimits)


@dataclass(frozen=True, slots=True)
class GrammarOptions:
    """Options of a turn's grammar.

    `refusals`: the model may refuse in words instead of the format. `reasoning`: it may think
    first. `has_thought`: it did so in this turn.
    """

    refusals: bool = True
    reasoning: bool = True
    has_thought: bool = False


TokenPart = Literal["marker", "role", "recipient", "channel", "content_type", "body", "between"]
"""Part of a message. Formats without headers have only markers and bodies."""


class TokenPiece(NamedTuple):
    """Id as operators see it; text behind it belongs to the part `behind`."""

    spelling: bytes
    part: TokenPart
    behind: TokenPart


Turn = tuple["Sequence[int]", "FinishReason | None"]
"""Ids of a turn, prefill included, and why it ended."""


class ModelFormat(Protocol):
    """Format of a family of models. All threads share it."""

    @property
    def name(self) -> str:
        """Return the value of `models[].format`."""

    @property
    def abilities(self) -> tuple[str, ...]:
        """Return the abilities that `GET /v1/models` shows."""

    @property
    def template_state(self) -> bytes:
        """Return the properties of the model's server that a run needs until its end."""

    def with_state(self, template_state: bytes) -> ModelFormat:
        """Return this format with the state of a run. Raises `ValueError` for an invalid one."""

    def relearn(self) -> None:
        """Learn the template anew after a server restarted; runs in progress keep theirs."""

    @property
    def questions(self) -> tuple[bytes, ...]:
        """Return the questions (`Unrendered`) whose answers show whether a server fits."""

    def misfits(self, rendered: Mapping[bytes, Rendering]) -> tuple[str, ...]:
        """Return what does not fit in the answers to `questions`, for operators."""

    def check(self) -> None:
        """Raise `StartupError` if prompts differ from those of the family's reference."""

    # Ids.

    @property
    def vocabulary_size(self) -> int:
        """Return the upper bound of ids, exclusive."""

    @property
    def text_ids(self) -> range:
        """Return the ids of text; others are markers, or no ids at all."""

    @property
    def stop_ids(self) -> tuple[int, ...]:
        """Return the ids that end a turn; the backend always gets them."""

    @property
    def framing(self) -> Framing:
        """Return the ids around messages."""

    @property
    def framing_tokens(self) -> int:
        """Return the most ids between a thought and the body of an answer."""

    # Prompts.

    def render(
        self,
        items: Sequence[ContextItem],
        options: RenderOptions,
        repeated: RepeatedHistory | None = None,
    ) -> Prompt:
        """Return the prompt of `items`, behind the `repeated` prompt of a history.

        Items with ids are repeated id for id. Hidden items and leading instructions have no span.
        Raises `InvalidRequest` for items without a rendering, and `Unrendered`.
        """

    def prefill_size(self, prompt_ids: Sequence[int]) -> int:
        """Return how many last ids of a prompt are the prefill, which is parsed with the output."""

    def with_result(self, ids: Sequence[int], result: Sequence[int]) -> Sequence[int]:
        """Return `ids` that end with a call, then `result` and the opening of the next turn.

        `ids` come from `rerender` or are a prompt without its prefill.
        """

    def render_item(self, item: ContextItem, function: str | None = None) -> Sequence[int]:
        """Return new ids of one item. `function` is the one that an output belongs to."""

    def render_result(self, name: str, text: str) -> tuple[int, ...]:
        """Return the ids of the message with the result of a hosted tool, without markers from
        text.

        `name` is `builtin:browser.search`, `builtin:python`, or `label.tool` of an MCP server.
        Raises `InvalidRequest` for text that cannot be tokenised.
        """

    def render_call(self, name: str, arguments: str) -> tuple[int, ...]:
        """Return the ids of a call of that tool. Raises as `render_result` does."""

    def count_ids(self, text: str) -> int:
        """Count ids. CPU work. Raises as `render_result` does."""

    def encode(self, text: str) -> Sequence[int]:
        """Return ids without markers. CPU work. Raises as `render_result` does."""

    def repeated_ids(self, history: Columns, *, is_answered: bool) -> array[int] | None:
        """Return the ids that a prompt repeats of a history; None if its items have to be read.

        `is_answered`: an answer follows.
        """

    # Transcripts: what operators and clients are shown of raw ids.

    def messages(self, prompt: Prompt, *, with_ids: bool) -> list[dict[str, Any]]:
        """Return the messages of a prompt, without the opening that it ends with."""

    def messages_of_turn(
        self,
        ids: Sequence[int],
        taken_back: Sequence[tuple[str, Sequence[int]]] = (),
        *,
        with_ids: bool = False,
    ) -> list[dict[str, Any]]:
        """Return the messages of a turn, then what was `taken_back`, by recovery rule."""

    def anatomy(self, ids: Iterable[int], part: TokenPart = "role") -> list[TokenPiece]:
        """Return each id of a turn; `part` is that of the id before the first one."""

    # Turns.

    def new_parser(self, rules: OutputRules, *, trace: bool = False) -> TokenParser:
        """Return a parser of one turn. With `trace` its text has the positions of its ids."""

    def turn_ids(self, turns: Sequence[tuple[Sequence[int], Sequence[int]]]) -> list[int]:
        """Return the ids of turns (prefill, generated), each but the last closed."""

    def rerender(self, turns: Iterable[Turn], new_parser: Callable[[], TokenParser]) -> list[int]:
        """Return the ids of finished turns as the model should have written them, each message
        followed by the opening of another. A call that was cut off cannot have an output and is
        left out.
        """

    # Prefills of a turn that is continued.

    def answer_opening(self, rules: OutputRules, *, attempt: int) -> tuple[int, ...]:
        """Return ids that open an answer in the format; `attempt` counts earlier ones."""

    def call_opening(self, rules: OutputRules) -> tuple[int, ...]:
        """Return the ids that open the required call."""

    def message_opening(self) -> tuple[int, ...]:
        """Return the ids that open a message for the user."""

    # A turn while it grows.

    @property
    def header_markers(self) -> frozenset[int]:
        """Return the markers that do not end a message."""

    @property
    def has_text_headers(self) -> bool:
        """Return True if text ids may spell what opens or ends a message, as the name of a call."""

    @property
    def plain_header_ids_max(self) -> int:
        """Return the most ids of a header without a recipient; 0: the format has none."""

    def plain_header(self, ids: Sequence[int], at: int) -> int:
        """Return how many ids from `at` on are a header without a recipient; 0: none."""

    def has_body(self, message: Sequence[int]) -> bool:
        """Return True if these first ids of a message contain its whole header."""

    # The grammar of a turn.

    def turn_constraint(
        self,
        rules: OutputRules,
        place: ParserPosition,
        message: Sequence[int],
        options: GrammarOptions,
    ) -> Constraint | None:
        """Return the grammar of the ids from `place` on; None if nothing is bound, or can be.

        `message` are the ids of the open message so far. CPU work.
        """


class FixedFormat:
    """Mixin of formats that learn nothing from a server and prefill nothing."""

    def with_state(self, template_state: bytes) -> Self:  # noqa: ARG002 - it has none
        return self

    def relearn(self) -> None:
        """Do nothing."""

    def misfits(self, rendered: Mapping[bytes, Rendering]) -> tuple[str, ...]:  # noqa: ARG002 - nothing is asked
        return ()

    def prefill_size(self, prompt_ids: Sequence[int]) -> int:  # noqa: ARG002 - a prompt ends before the turn
        return 0


class ServerRenderedFormat:
    """Mixin of formats whose prompts a server renders: items have no ids, messages no headers."""

    plain_header_ids_max: Final = 0

    def check(self) -> None:
        """Do nothing."""

    def repeated_ids(self, history: Columns, *, is_answered: bool) -> array[int] | None:  # noqa: ARG002 - none are stored
        return None

    def message_opening(self) -> tuple[int, ...]:
        return ()

    def plain_header(self, ids: Sequence[int], at: int) -> int:  # noqa: ARG002 - there are none
        return 0


FormatOf = Callable[[str], ModelFormat]
HARMONY: Final = "harmony"
CHAT: Final = "chat"
PASSTHROUGH: Final = "passthrough"
FORMAT_CLASSES: Final = {
    HARMONY: "gateway.models.harmony.harmony_format:HarmonyFormat",
    CHAT: "gateway.models.chat.chat_format:ChatFormat",
    PASSTHROUGH: "gateway.models.chat.passthrough:PassThroughFormat",
}
"""Imported only when a model needs it. `load(options)` may raise `StartupError` for a damaged or
missing file."""
NO_OPTIONS: Final = FormatOptions()


class Formats:
    """Formats by model; an adapter has its base model's, a model without one Harmony."""

    def __init__(
        self,
        by_model: Mapping[str, ModelFormat],
        other: ModelFormat,
        parent_of: Callable[[str], str | None] | None = None,
    ) -> None:
        self._by_model = by_model
        self._parent_of = parent_of
        self.default = other

    @classmethod
    def load(
        cls, named: Mapping[str, str], options: Mapping[str, FormatOptions] | None = None
    ) -> Formats:
        """Load formats by public id → name. Raises `ConfigError` for an unknown name."""
        own = options or {}
        wanted = {model: (name, own.get(model, NO_OPTIONS)) for model, name in named.items()}
        harmony = HARMONY, NO_OPTIONS
        loaded = {key: _load(*key) for key in dict.fromkeys((harmony, *wanted.values()))}
        return cls({model: loaded[key] for model, key in wanted.items()}, loaded[harmony])

    def for_model(self, model: str) -> ModelFormat:
        registered = self._by_model.get(model)
        if (
            registered is None
            and self._parent_of is not None
            and (parent := self._parent_of(model))
        ):
            registered = self._by_model.get(parent)
        return registered or self.default

    def relearn(self, model: str) -> None:
        self.for_model(model).relearn()

    def with_parents(self, parent_of: Callable[[str], str | None]) -> Formats:
        return Formats(self._by_model, self.default, parent_of)


def _load(name: str, options: FormatOptions) -> ModelFormat:
    if name not in FORMAT_CLASSES:
        raise ConfigError(
            f"there is no format '{name}'",
            where="models",
            remedy=f"Set the model's format to one of: {', '.join(FORMAT_CLASSES)}.",
        )
    module, _, made = FORMAT_CLASSES[name].partition(":")
    return cast("ModelFormat", getattr(import_module(module), made).load(options))
