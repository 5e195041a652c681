"""Read the body of `POST /v1/completions` as vLLM does: check known fields, ignore others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from gateway.models.harmony.tokenizer import VOCABULARY_SIZE
from gateway.simulator.completion_wire import (
    LOGPROBS_MAX,
    CompletionRequest,
    SimulatedError,
    bad_request,
    bad_shape,
    json_object,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tests.fakes.wayward_engine.constraint_fields import OutputConstraint
    from tests.fakes.wayward_engine.options import WaywardOptions

_MAX_TOKENS_DEFAULT: Final = 16
_SAMPLING: Final = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "seed",
)
_SALT_CHARS_MAX: Final = 128
_SALT_FORBIDDEN: Final = frozenset("@/\\\0")
_SEED_END: Final = 1 << 63


@dataclass(frozen=True, slots=True, kw_only=True)
class StrictRequest(CompletionRequest):
    """A request whose fields were checked as vLLM checks them."""

    cache_salt: str
    sampling: Mapping[str, Any]
    """The sampling fields as they came."""
    priority: int | None = None
    """None: none was sent, which SGLang takes for the least urgent of all."""
    adapter: str | None = None
    """The LoRA adapter that answers; None: the base model does."""
    constraint: OutputConstraint | None = None
    """The shape that its output is held to."""
    is_generate: bool = False
    """It came to SGLang's `/generate`."""


def read_request(body: bytes, options: WaywardOptions) -> StrictRequest:
    """Read a completion request.

    Raises `SimulatedError` with the status and body that vLLM answers.
    """
    return strict_request(Fields(json_object(body)), options)


def strict_request(fields: Fields, options: WaywardOptions) -> StrictRequest:
    """Return the request of a body that was read. Raises as `read_request`."""
    model = _model(fields, options)
    prompt = _prompt(fields)
    stream = fields.flag("stream", default=False)
    stream_options = fields.mapping("stream_options")
    if stream_options and not stream:
        raise bad_request(
            "Stream options can only be defined when `stream=True`. (parameter=stream_options)",
            "stream_options",
        )
    _check_sampling(fields)
    return StrictRequest(
        id=fields.text("rid" if options.engine == "sglang" else "request_id"),
        model=model,
        prompt=prompt,
        max_tokens=_max_tokens(fields, len(prompt), options.context_length),
        stream=stream,
        include_usage=stream_options.get("include_usage") is True,
        return_token_ids=fields.flag("return_token_ids", default=False) and not options.is_rust,
        skip_special_tokens=fields.flag("skip_special_tokens", default=True),
        include_stop_text=fields.flag("include_stop_str_in_output", default=False),
        stop_ids=_stop_ids(fields),
        cache_salt=_cache_salt(fields),
        sampling=fields.some(*_SAMPLING),
        priority=fields.integer("priority"),
        adapter=model if model in options.adapters else None,
        logprobs=_logprobs(fields),
        tokens_as_ids=fields.flag("return_tokens_as_token_ids", default=False),
    )


def _model(fields: Fields, options: WaywardOptions) -> str:
    # SGLang answers with its base model whatever `model` is, and with an adapter if it is the
    # `lora_path`.
    model = fields.text("model") or options.models[0]
    if options.engine == "sglang":
        adapter = fields.text("lora_path")
        if adapter is None:
            return options.models[0]
        if adapter not in options.adapters:
            loaded = list(options.adapters)
            message = f"Got LoRA adapter that has never been loaded: {adapter}\n"
            raise bad_request(f"{message}All loaded adapters: dict_keys({loaded}).")
        return adapter
    names = (*options.models, *options.adapters)
    if model not in names:
        message = f"The model `{model}` does not exist. Valid aliases: {', '.join(names)}."
        raise SimulatedError(404, message, param="model")
    return model


class Fields:
    """The members of the body, by type; null is as good as absent."""

    def __init__(self, members: dict[str, Any]) -> None:
        self._members = members

    def get(self, name: str) -> Any:
        return self._members.get(name)

    def some(self, *names: str) -> dict[str, Any]:
        return {name: self._members[name] for name in names if name in self._members}

    def text(self, name: str) -> str | None:
        value = self.get(name)
        if value is not None and not isinstance(value, str):
            raise bad_shape(name, "string_type", "Input should be a valid string", value)
        return value

    def flag(self, name: str, *, default: bool) -> bool:
        value = self.get(name)
        if value is not None and not isinstance(value, bool):
            raise bad_shape(name, "bool_type", "Input should be a valid boolean", value)
        return default if value is None else value

    def number(self, name: str, default: float) -> float:
        value = self.get(name)
        if value is not None and type(value) not in {int, float}:
            raise bad_shape(name, "float_type", "Input should be a valid number", value)
        return default if value is None else float(value)

    def integer(self, name: str) -> int | None:
        value = self.get(name)
        if value is not None and type(value) is not int:
            message = "Input should be a valid integer, unable to parse string as an integer"
            raise bad_shape(name, "int_parsing", message, value)
        return value

    def mapping(self, name: str) -> dict[str, Any]:
        value = self.get(name)
        if value is not None and not isinstance(value, dict):
            raise bad_shape(name, "dict_type", "Input should be a valid dictionary", value)
        return value or {}

    def ids(self, name: str) -> list[int]:
        value = self.get(name)
        if not isinstance(value, list):
            raise bad_shape(name, "list_type", "Input should be a valid list of token ids", value)
        if set(map(type, value)) - {int}:
            raise bad_shape(name, "int_type", "Input should be a valid integer", value)
        if value and min(value) < 0:
            message = "Input should be greater than or equal to 0"
            raise bad_shape(name, "greater_than_equal", message, min(value))
        return value


def bad_value(message: str, param: str, value: object) -> SimulatedError:
    # vLLM repeats the parameter and its value behind some messages.
    return bad_request(f"{message} (parameter={param}, value={value})", param)


def _prompt(fields: Fields) -> list[int]:
    if fields.get("prompt") is None:
        message = "Either prompt or prompt_embeds must be provided and non-empty."
        raise bad_request(f"{message} (parameter=prompt)", "prompt")
    prompt = fields.ids("prompt")
    if not prompt:
        raise bad_request("You must pass at least one prompt")
    if max(prompt) >= VOCABULARY_SIZE:
        raise bad_request(f"Token id {max(prompt)} is out of vocabulary")
    return prompt


def _max_tokens(fields: Fields, prompt_tokens: int, context_length: int) -> int:
    # The requested number, bounded by the room that the prompt leaves.
    if prompt_tokens > context_length:
        raise bad_value(
            f"This model's maximum context length is {context_length} tokens. However, your prompt "
            f"contains {prompt_tokens} input tokens, which exceeds this limit even without any "
            "output tokens. Please reduce the length of the input prompt.",
            "input_tokens",
            prompt_tokens,
        )
    wanted = fields.integer("max_tokens")
    wanted = _MAX_TOKENS_DEFAULT if wanted is None else wanted
    if wanted > context_length:
        raise bad_value(
            f"max_tokens={wanted} cannot be greater than max_model_len={context_length}. Please "
            "request fewer output tokens.",
            "max_tokens",
            wanted,
        )
    room = min(wanted, context_length - prompt_tokens)
    if room < 1:
        raise bad_value(f"max_tokens must be at least 1, got {room}.", "max_tokens", room)
    least = fields.integer("min_tokens") or 0
    if least > room:
        message = f"min_tokens must be less than or equal to max_tokens={room}, got {least}."
        raise bad_request(message)
    return room


def _check_sampling(fields: Fields) -> None:
    temperature = fields.number("temperature", 1.0)
    if temperature < 0:
        message = f"temperature must be non-negative, got {temperature}."
        raise bad_value(message, "temperature", temperature)
    top_p = fields.number("top_p", 1.0)
    if not 0 < top_p <= 1:
        raise bad_value(f"top_p must be in (0, 1], got {top_p}.", "top_p", top_p)
    for name in ("presence_penalty", "frequency_penalty"):
        penalty = fields.number(name, 0.0)
        if not -2 <= penalty <= 2:
            raise bad_value(f"{name} must be in [-2, 2], got {penalty}.", name, penalty)
    top_k = fields.integer("top_k")
    if top_k is not None and top_k < -1:
        message = f"top_k must be 0 (disable), or at least 1, got {top_k}."
        raise bad_value(message, "top_k", top_k)
    min_p = fields.number("min_p", 0.0)
    if not 0 <= min_p <= 1:
        raise bad_value(f"min_p must be in [0, 1], got {min_p}.", "min_p", min_p)
    seed = fields.integer("seed")
    if seed is not None and not -_SEED_END <= seed < _SEED_END:
        raise bad_shape("seed", "less_than_equal", "Input should be a 64-bit integer", seed)


def _stop_ids(fields: Fields) -> tuple[int, ...]:
    if fields.get("stop_token_ids") is None:
        return ()
    stop_ids = fields.ids("stop_token_ids")
    unknown = [one for one in stop_ids if one >= VOCABULARY_SIZE]
    if unknown:
        raise bad_value(
            f"token_id(s) {unknown} in stop_token_ids contain out-of-vocab token ids. Vocabulary "
            f"size: {VOCABULARY_SIZE}",
            "stop_token_ids",
            unknown,
        )
    return tuple(stop_ids)


def _cache_salt(fields: Fields) -> str:
    salt = fields.text("cache_salt") or ""
    if len(salt) > _SALT_CHARS_MAX or _SALT_FORBIDDEN & set(salt):
        raise bad_request(
            "Parameter 'cache_salt' must be at most 128 characters and must not contain '@', '/', "
            "'\\\\', or NUL. (parameter=cache_salt)",
            "cache_salt",
        )
    return salt


def _logprobs(fields: Fields) -> int | None:
    count = fields.integer("logprobs")
    if count is not None and count > LOGPROBS_MAX:
        raise bad_value(
            f"Requested sample logprobs of {count}, which is greater than max allowed: "
            f"{LOGPROBS_MAX}",
            "logprobs",
            count,
        )
    if count is not None and count < 0:
        message = f"logprobs must be non-negative, got {count}."
        raise bad_value(message, "logprobs", count)
    return count
