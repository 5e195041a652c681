"""Reads ids as vLLM's own parsers do. Runs in vLLM's environment, without anything of the gateway.

Each line of its input is a batch, `{"tokenizer", "reasoning", "calls", "tools", "thinking",
"streamed", "turns"}`, and becomes a line of its output: for each turn (a list of ids) a list of
what vLLM makes of it, `[reasoning, content, [[name, arguments], …]]`: of the whole turn, and, if it
is to be `streamed`, of the turn that comes id by id.
"""

from __future__ import annotations

import json
import logging
import sys
from typing import Any


def main() -> None:
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerFast
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
    from vllm.parser.parser_manager import ParserManager

    logging.disable(logging.CRITICAL)
    for line in sys.stdin:
        batch = json.loads(line)
        tokenizer = PreTrainedTokenizerFast(
            tokenizer_object=Tokenizer.from_str(json.dumps(batch["tokenizer"])),
            clean_up_tokenization_spaces=False,
        )
        parser = ParserManager.get_parser(
            tool_parser_name=batch["calls"],
            reasoning_parser_name=batch["reasoning"],
            enable_auto_tools=True,
            tokenizer=tokenizer,
        )
        asked = {"model": "m", "messages": [], "tools": batch["tools"]}
        request = ChatCompletionRequest.model_validate(asked)
        thinking = {"enable_thinking": batch["thinking"], "thinking": batch["thinking"]}
        read = []
        for ids in batch["turns"]:
            made = [
                parser(tokenizer, request.tools, chat_template_kwargs=dict(thinking))
                for _ in range(1 + batch["streamed"])
            ]
            answers = [read_whole(made[0], tokenizer, request, ids)]
            answers += [read_streamed(one, tokenizer, request, ids) for one in made[1:]]
            read.append(answers)
        sys.stdout.write(json.dumps(read) + "\n")
        sys.stdout.flush()


def read_whole(parser: Any, tokenizer: Any, request: Any, ids: list[int]) -> Any:
    text = tokenizer.decode(ids, skip_special_tokens=False)
    try:
        reasoning, content, calls = parser.parse(
            text, request, enable_auto_tools=True, model_output_token_ids=ids
        )
    except Exception as error:  # noqa: BLE001 - a fault of theirs is an answer, too
        return f"{type(error).__name__}: {error}"
    return [reasoning, content, [[call.name, call.arguments] for call in calls or ()]]


def read_streamed(parser: Any, tokenizer: Any, request: Any, ids: list[int]) -> Any:
    said, seen = ["", ""], ""
    calls: list[list[str]] = []
    for at, token in enumerate(ids):
        text = tokenizer.decode(ids[: at + 1], skip_special_tokens=False)
        is_last = at == len(ids) - 1
        delta = "" if text.endswith("\ufffd") and not is_last else text[len(seen) :]
        seen += delta
        try:
            told = parser.parse_delta(
                delta, [token], request, prompt_token_ids=[] if at == 0 else None, finished=is_last
            )
        except Exception as error:  # noqa: BLE001 - a fault of theirs is an answer, too
            return f"{type(error).__name__}: {error}"
        if told is None:
            continue
        said[0] += told.reasoning or ""
        said[1] += told.content or ""
        for call in told.tool_calls or ():
            if call.index < 0:
                return f"a call at {call.index}"
            while len(calls) <= call.index:
                calls.append(["", ""])
            function = call.function
            if function is not None:
                calls[call.index][0] += function.name or ""
                calls[call.index][1] += function.arguments or ""
    return [said[0], said[1], calls]


if __name__ == "__main__":
    main()
