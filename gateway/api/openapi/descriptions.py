"""What the parameters of a response do, in a sentence each."""

from __future__ import annotations

from typing import Final

PARAMETERS: Final = {
    "model": "The id or an alias of a model of `GET /v1/models`.",
    "input": "A text, which is one message of the user, or items.",
    "instructions": "Put first, for this response alone: they are not inherited.",
    "previous_response_id": "A stored response; its input and output come before `input`.",
    "conversation": "A conversation whose items come before `input`; what is new is added to it.",
    "store": "Keep the response and its items, for retrieval and for continuation.",
    "background": "Answer at once and generate in the background; needs `store`.",
    "stream": "Answer with server-sent events.",
    "stream_options": "`include_obfuscation: false` leaves out the padding of deltas.",
    "include": "What to show beside the rest: `reasoning.encrypted_content` seals the reasoning "
    "for clients that store nothing here, `message.output_text.logprobs` adds logprobs.",
    "max_output_tokens": "Bounds all that is generated, reasoning included; at least 16.",
    "max_tool_calls": "Bounds calls of tools that the server runs; it runs none.",
    "metadata": "Up to 16 pairs of texts that are kept with the response.",
    "parallel_tool_calls": "False: at most one call in a response.",
    "prompt_cache_key": "A hint that groups requests with the same beginning.",
    "prompt_cache_retention": "A hint without effect: backends cache every prompt.",
    "prompt_cache_options": "A hint without effect: backends cache every prompt.",
    "reasoning": "`effort` is low, medium or high; `summary` asks for a summary; `max_tokens` "
    "bounds the reasoning.",
    "safety_identifier": "A stable name of your user; kept with the response.",
    "service_tier": "`flex` waits behind others, `priority` goes first where the tenant may.",
    "temperature": "From 0 to 2.",
    "top_p": "From 0 to 1.",
    "top_logprobs": "How many likely tokens are told for each token of the answer, up to 20.",
    "presence_penalty": "From -2 to 2.",
    "frequency_penalty": "From -2 to 2.",
    "text": "`format` is text, json_object or json_schema; `verbosity` is low, medium or high.",
    "tools": "Functions, custom tools, namespaces, shells and apply_patch; the client runs them.",
    "tool_choice": "none, auto, required, one tool, or the tools that are allowed.",
    "truncation": "`auto` drops the oldest turns where the context does not fit.",
    "context_management": "`compaction` sums the context up where it grows beyond a threshold.",
    "user": "A stable name of your user; kept with the response.",
    "enable_response_messages": "Shows the Harmony messages of prompt and output when the response "
    "has ended, where the tenant may see them; with token ids by `include`.",
    "seed": "Makes sampling repeatable as far as the backend does.",
    "stop": "Up to four texts that end the answer and are no part of it.",
    "top_k": "Samples from so many likely tokens; -1: from all.",
    "min_p": "Leaves out tokens that are so much less likely than the likeliest.",
}
