from __future__ import annotations

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import (
    ContextOverflow,
    UpstreamFailed,
    UpstreamLost,
    UpstreamRejected,
    UpstreamUnavailable,
)
from gateway.upstreams.problems import (
    BackendBusy,
    BrokeDown,
    GrammarFailed,
    ModelGone,
    PathNotFound,
    breakage,
    code_of,
    has_no_grammars,
    may_blame_grammar,
    message_of_body,
    refusal,
    retry_after_of,
)
from tests.fakes.backend_captures import capture, names
from tests.fakes.cases import each

REFUSED = names("e_*", "a_noauth_cmpl", "d_max_tokens_*", "s_bad_*", "o_gen_*")


@each(
    ("body", "message"),
    [
        (b'{"error":{"message":"too bad","code":400}}', "too bad"),
        (b'{"error":"Unauthorized"}', "Unauthorized"),
        (b'{"detail":"Not Found"}', "Not Found"),
        (b'{"object":"error","message":"queue is full","code":503}', "queue is full"),
        (b'{"error":{"message":"no","code":"bad_key"}}', "bad_key: no"),
        (b'{"detail":[{"loc":["body"],"msg":"x"}]}', '[{"loc":["body"],"msg":"x"}]'),
        (b"<html>\n <b>502</b>\n</html>", "<html> <b>502</b> </html>"),
        (b"", "no message"),
        (b'{"error":null}', '{"error":null}'),
        (b"\xff\xfe", "\N{REPLACEMENT CHARACTER}" * 2),
    ],
)
def test_every_shape_of_error_is_read(body: bytes, message: str) -> None:
    assert message_of_body(body) == message


def test_a_message_fits_into_a_log_line() -> None:
    body = orjson.dumps({"error": {"message": "long\n" * 1000}})
    assert len(message_of_body(body)) == 500
    assert "\n" not in message_of_body(body)


@given(st.binary(max_size=100))
def test_no_body_makes_it_raise(body: bytes) -> None:
    assert message_of_body(body)


@each(
    ("status", "kind"),
    [
        (400, UpstreamRejected),
        (404, PathNotFound),
        (413, UpstreamRejected),
        (422, UpstreamRejected),
        (401, UpstreamUnavailable),
        (307, UpstreamUnavailable),
        (405, UpstreamUnavailable),
        (429, BackendBusy),
        (500, BrokeDown),
        (503, BackendBusy),
    ],
)
def test_only_the_callers_own_mistakes_are_rejections(status: int, kind: type) -> None:
    error = refusal("gpu-1", status, "because")
    assert type(error) is kind
    assert str(error) == f"gpu-1: answered {status}: because"


@pytest.mark.parametrize(
    "message",
    [
        "The model `m` does not exist.",
        'model "m" not found, try pulling it first',
        "model_not_found: it is not there",
        "The lora module `m` does not exist.",
    ],
)
def test_a_model_that_is_not_found_is_gone(message: str) -> None:
    assert type(refusal("gpu-1", 404, message)) is ModelGone


@each(
    ("message", "kind"),
    [
        ("google/x requires moderation on Vertex. Your input was flagged for violence", True),
        ("Request violates our content policy", True),
        ("Invalid API key", False),
        ("This key has no access to the model", False),
    ],
)
def test_a_403_for_content_is_the_callers_and_one_for_a_key_ours(
    message: str, *, kind: bool
) -> None:
    assert isinstance(refusal("api", 403, message), UpstreamRejected) is kind


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ([(b"Retry-After", b" 12 ")], 12.0),
        ([(b"x", b"1"), (b"retry-after", b"0")], 0.0),
        ([(b"retry-after", b"Fri, 31 Dec 1999 23:59:59 GMT")], None),
        ([(b"retry-after", b"-1")], None),
        ([], None),
    ],
)
def test_a_refusal_may_say_after_how_many_seconds_to_try_again(
    headers: list[tuple[bytes, bytes]], expected: float | None
) -> None:
    assert retry_after_of(headers) == expected
    assert refusal("gpu-1", 503, "busy", retry_after_s=expected).retry_after_s == expected
    assert refusal("gpu-1", 400, "bad", retry_after_s=expected).retry_after_s is None


@pytest.mark.parametrize(
    "message",
    [
        "Got LoRA adapter that has never been loaded: zz\nAll loaded adapters: dict_keys(['ad']).",
        "LoRA adapter 'zz' was requested, but LoRA is not enabled. Please launch the server with …",
        "validation failed: LoRA adapter 'nope' is not loaded; loaded adapters: []",
    ],
)
def test_an_adapter_that_sglang_does_not_know_is_a_model_that_is_gone(message: str) -> None:
    assert type(refusal("gpu-1", 400, message)) is ModelGone


@pytest.mark.parametrize(
    "words",
    [
        "LoRA adapter 'm' is not loaded",
        "Got LoRA adapter that has never been loaded: m",
        "Duplicate request ID detected: dup",
        "data_parallel_rank 3 is out of range [0, 1).",
        "it can't be used with 'skip_tokenizer_init'",
        "Invalid grammar specification: 'triggers'",
        "not supported when the server is launched with --grammar-backend none",
    ],
)
@pytest.mark.parametrize(
    "message", ["Grammar error: Invalid type: {}", 'Grammar error: at 1(8): invalid regex "({}"']
)
def test_words_of_a_client_that_an_engine_repeats_are_not_its_own(message: str, words: str) -> None:
    error = refusal("gpu-1", 400, message.format(words))
    assert (type(error), has_no_grammars(error)) == (UpstreamRejected, False)


def test_sglang_takes_some_tokens_less_than_its_context_is_long() -> None:
    message = "Input length (8191 tokens) exceeds the maximum allowed length (8186 tokens). Use a …"
    assert isinstance(refusal("gpu-1", 400, message), ContextOverflow)


@each("name", REFUSED)
def test_recorded_overflows_and_only_they_are_told_apart(name: str) -> None:
    recorded = capture(name)
    error = refusal("gpu-1", recorded.status, message_of_body(recorded.body))
    overflow = name in {"e_too_long", "e_too_long_stream", "e_exact_maxlen", "d_max_tokens_huge"}
    overflow = overflow or name in {"d_max_tokens_neg", "d_max_tokens_zero"}
    assert isinstance(error, ContextOverflow) == overflow, str(error)


@pytest.mark.parametrize(
    "message",
    [
        "However, you requested 9000 tokens; this model's maximum context length is 8192 tokens.",
        "The input (9 tokens) is longer than the model's context length (8 tokens).",
        "Requested token count exceeds the model's maximum context length of 8 tokens.",
    ],
)
def test_other_servers_word_overflows_differently(message: str) -> None:
    assert isinstance(refusal("gpu-1", 400, message), ContextOverflow)


def test_an_overflow_may_be_named_by_the_code_of_openais_api() -> None:
    words = "Please reduce the length of the messages or completion. " * 20
    told = {"error": {"message": words, "code": "context_length_exceeded"}}
    for status in (400, code_of(told)):
        message = message_of_body(orjson.dumps(told))
        assert isinstance(refusal("box", status, message), ContextOverflow)
    assert code_of({"error": {"code": "rate_limit_exceeded"}}) == 429
    assert code_of({"error": {"code": "server_error"}}) == 500


@each(
    "document",
    [
        *(None, [], {}, {"error": "x"}, {"code": None}, {"code": "x"}),
        *({"code": "99"}, {"code": "9" * 5000}),
    ],
)
def test_an_error_without_a_code_counts_as_500(document: object) -> None:
    assert code_of(document) == 500


@pytest.mark.parametrize("name", names("s_bad_*", "s_stream_refused_tag"))
def test_a_recorded_refusal_of_a_grammar_may_be_the_grammars_fault(name: str) -> None:
    recorded = capture(name)
    assert may_blame_grammar(refusal("gpu-1", recorded.status, message_of_body(recorded.body)))


@pytest.mark.parametrize(
    "error",
    [
        refusal("gpu-1", 400, "This model's maximum context length is 8 tokens."),
        refusal("gpu-1", 503, "busy"),
        UpstreamLost("ReadError", upstream="gpu-1"),
        UpstreamFailed("stalled", upstream="gpu-1"),
    ],
)
def test_a_grammar_is_not_to_blame_for_everything(error: UpstreamFailed) -> None:
    assert not may_blame_grammar(error)


@pytest.mark.parametrize(
    ("message", "constrained", "kind"),
    [
        ("Internal server error", True, GrammarFailed),
        ("Internal server error", False, UpstreamFailed),
        ("EngineCore encountered an issue.", True, UpstreamFailed),
    ],
)
def test_an_engine_that_dies_is_told_from_one_that_gives_up_a_grammar(
    message: str, constrained: bool, kind: type
) -> None:
    assert type(breakage("gpu-1", message, constrained=constrained)) is kind


@pytest.mark.parametrize(
    ("message", "none"),
    [
        (
            "Structured outputs requires a tokenizer so it can't be used with"
            " 'skip_tokenizer_init'",
            True,
        ),
        ("not supported when the server is launched with --grammar-backend none", True),
        ("Invalid grammar specification: 'triggers'", True),
        ("Invalid grammar specification.", False),
        ("Internal server error", False),
    ],
)
def test_a_backend_that_refuses_every_grammar_says_so(message: str, none: bool) -> None:
    assert has_no_grammars(refusal("gpu-1", 400, message)) == none
