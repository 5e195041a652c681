"""Sections 1.8 to 1.11: counting, compaction, conversations, models."""

from __future__ import annotations

from tests.conformance.requirements.requirement import rules

COUNTING = rules(
    "1.8",
    (
        "count.exact",
        "Reply",
        "The count is that of the tokens which a response of the same would be prompted with.",
    ),
    ("count.stores-nothing", "Reply", "Counting asks no model and stores nothing."),
    (
        "count.parameters",
        "Body subset",
        "What a request has besides is named in a header; mistakes are those of a response.",
    ),
)
COMPACTION = rules(
    "1.9",
    ("compact.body", "Reply", "The reply has an id, its object, a time, output and usage."),
    (
        "compact.output",
        "output",
        "The output has all messages of user and operator, completed, and then one compaction.",
    ),
    ("compact.accepted-back", "output", "The output is accepted as the input of a later request."),
    (
        "compact.parameters",
        "Body",
        "A model is needed, a key is bounded, and what has no effect is named.",
    ),
    ("compact.chain", "Body", "The response before is compacted together with the input."),
    ("compact.not-retrievable", "Not retrievable", "What was compacted is stored nowhere."),
    (
        "compact.sealed",
        "encrypted_content",
        "The summary is sealed for its tenant, and what was not sealed here is refused.",
    ),
    (
        "compact.trigger",
        "compaction_trigger",
        "A trigger stands at the end of an input, and makes a response of one compaction.",
    ),
)
CONVERSATIONS = rules(
    "1.10",
    (
        "conversations.create",
        "POST /conversations",
        "A conversation is made of up to 20 items and metadata, or of nothing.",
    ),
    (
        "conversations.retrieve",
        "GET /conversations/{id}",
        "A conversation is returned as it was made.",
    ),
    (
        "conversations.update",
        "POST /conversations/{id}",
        "Its metadata is set by a key that must be there.",
    ),
    (
        "conversations.delete",
        "DELETE /conversations/{id}",
        "Deleting says so; the items of stored responses stay with these.",
    ),
    (
        "conversations.items.create",
        "POST /conversations/{id}/items",
        "1 to 20 items are added, and returned as a list.",
    ),
    (
        "conversations.items.list",
        "GET /conversations/{id}/items",
        "Its items are paged like those of a response.",
    ),
    (
        "conversations.items.retrieve",
        "GET /conversations/{id}/items/{item_id}",
        "An item is returned by its id.",
    ),
    (
        "conversations.items.delete",
        "DELETE /conversations/{id}/items/{item_id}",
        "Deleting an item returns the conversation.",
    ),
    (
        "conversations.parts",
        "Items in a conversation",
        "Every documented kind of part is accepted, and of every item that a response may have.",
    ),
    (
        "conversations.locked",
        "One writer",
        "While a response will be added, another one and changes by hand are refused with 400.",
    ),
    (
        "conversations.appended-once",
        "Append",
        "A response is added once, when it is over, and not at all when it failed.",
    ),
    (
        "conversations.kept",
        "No TTL",
        "A conversation is not deleted with the responses that have expired.",
    ),
)
MODELS = rules(
    "1.11",
    ("models.list", "GET /models", "Models are listed with id, object, time, owner and shutdown."),
    ("models.retrieve", "GET /models/{model}", "One model is returned as in the list, or is 404."),
    (
        "models.slashes",
        "Model ids contain slashes",
        "A name with a slash is found, plain and encoded.",
    ),
)
SERVICES = (*COUNTING, *COMPACTION, *CONVERSATIONS, *MODELS)
