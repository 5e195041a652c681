"""Section 3: items and their parts."""

from __future__ import annotations

from tests.conformance.requirements.requirement import rules

_RULES = rules(
    "3.1",
    ("items.easy-message", "message shapes: easy", "A message may be a role and a text alone."),
    (
        "items.input-message",
        "message shapes: input",
        "A message of users, systems and developers has parts of input.",
    ),
    (
        "items.output-message",
        "message shapes: output",
        "A message of the assistant has an id, a status, and parts of output or input.",
    ),
    (
        "control.items-of-every-kind",
        "round-trip",
        "Output items of every kind that a client executes are accepted back as input.",
    ),
    (
        "items.unknown-keys",
        "round-trip",
        "Unknown keys of an item that comes back are no obstacle.",
    ),
    ("items.status-is-ignored", "status", "The status of an input item is taken and ignored."),
    (
        "items.reasoning",
        "reasoning",
        "Reasoning comes back as its text, sealed, or as its id alone.",
    ),
    (
        "control.sealed-reasoning",
        "reasoning",
        "Sealed reasoning is accepted back; what was not sealed here is refused with 400.",
    ),
    (
        "items.output-of-a-call",
        "function_call_output.output",
        "The output of a call is a text, an empty one too, or a list of parts.",
    ),
    (
        "items.function-output-without-call",
        "function_call_output.call_id",
        "The output of a function may name its function in place of a call, and need not have one.",
    ),
    (
        "items.phase",
        "phase",
        "The phase of a message is kept and returned, and left out where it is unknown.",
    ),
    (
        "items.role-precedence",
        "Role precedence",
        "Instructions, system and developer messages make the developer message of the prompt.",
    ),
    (
        "items.limits",
        "Limits",
        "Texts, ids of calls and names of functions are bounded; media with the whole body.",
    ),
)
_PARTS = rules(
    "3.2",
    ("parts.input-text", "input_text", "A text of the input is read, hints to caches ignored."),
    (
        "parts.input-image",
        "input_image",
        "An image is named to the model as missing, or refused where the operator says so.",
    ),
    (
        "parts.input-file",
        "input_file",
        "A file is named to the model as missing, or refused where the operator says so.",
    ),
    ("parts.input-audio", "input_audio", "Audio is refused, as no known part of a message."),
    (
        "parts.input-video",
        "input_video",
        "A video is taken as a file, since one specification has it.",
    ),
    (
        "parts.output-text",
        "output_text",
        "A text of the output always has its list of annotations.",
    ),
    ("parts.refusal", "refusal", "A refusal is a part of its own, and accepted back."),
    ("parts.reasoning-text", "reasoning_text", "Reasoning has its text in its content."),
    ("parts.summary-text", "summary_text", "A summary of reasoning has its text in summary."),
    (
        "parts.of-conversations",
        "text, computer_screenshot",
        "Parts that only conversations name are taken there.",
    ),
    (
        "parts.annotations",
        "Annotations",
        "Annotations that come back are accepted; the model itself makes none.",
    ),
    (
        "control.logprobs",
        "Logprob",
        "Log probabilities are those of the tokens that spell the answer.",
    ),
    (
        "parts.logprobs-are-whole",
        "Logprob",
        "Every entry has its bytes and its alternatives, in deltas too.",
    ),
)
_KINDS = rules(
    "3.3",
    ("kinds.message", "message (output)", "A message goes from in_progress to its end."),
    (
        "kinds.reasoning",
        "reasoning",
        "Reasoning is shown only with content, has a summary, and a status.",
    ),
    (
        "kinds.function-call",
        "function_call",
        "Arguments are a string, empty in the beginning; the id of the call is not the item's.",
    ),
    (
        "control.custom-tool",
        "custom_tool_call",
        "A custom tool is called with a text, and its output is accepted back.",
    ),
    (
        "control.grammar",
        "custom_tool_call",
        "The input of a custom tool is of its grammar, or the response fails.",
    ),
    (
        "kinds.hosted-calls",
        "web_search_call, code_interpreter_call, mcp_list_tools, mcp_call",
        "Calls of tools that are not offered are never made; as input they are kept and shown.",
    ),
    (
        "control.shells",
        "shell / apply_patch / local_shell",
        "Calls of the shells and the patcher are items of their own types.",
    ),
    (
        "kinds.computer",
        "computer, client tool_search",
        "Computers and searches of tools are dropped like tools that run at a server.",
    ),
    (
        "kinds.client-executed",
        "client-executed",
        "The response ends with the call, and the next one has its output.",
    ),
    (
        "kinds.item-reference",
        "item_reference",
        "A reference is resolved from what is stored, with and without its type.",
    ),
    (
        "kinds.compaction",
        "compaction",
        "A compaction is opened and shown to the model in the place of what went before.",
    ),
    (
        "kinds.additions-of-2026",
        "additional_tools, configuration_update, program, tool_search",
        "Tools that items bring are offered; what is not served is refused by its type.",
    ),
    (
        "control.namespace",
        "namespace",
        "A call of a tool in a namespace comes back with name and namespace apart.",
    ),
    (
        "kinds.programmatic-tools",
        "tool_search / programmatic_tool_calling",
        "A search at the client is called and answered; tools for programs are dropped, and named.",
    ),
)
ITEMS = (*_RULES, *_PARTS, *_KINDS)
