"""A scripted stand-in for a gpt-oss server: vLLM's token API in front of rules, not of a model.

For the demo, for tests and for load, on machines without a GPU. What it says is a pure function of
the conversation it is shown, and of the shape that the output is to have.

    app → completions → wire         requests and events, as vLLM or SGLang speaks them
                      → engine       what the requests of one instance share
                      → continuation → scripting    what is said next

Grammars have no effect here. The server of the tests obeys them, and misbehaves:
`tests/fakes/wayward_engine`.
"""
