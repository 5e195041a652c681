"""A scripted stand-in for a gpt-oss server: vLLM's token API in front of rules, not of a model.

For the demo and for trying a gateway, on machines without a GPU. What it says is a pure function of
the conversation it is shown, and of the shape that the output is to have.

    simulated_server → completion_wire     requests and events, as vLLM or SGLang speaks them
                     → simulated_engine    what the requests of one instance share
                     → scripted_model → script_writer    what is said next

Grammars have no effect here, and requests are read leniently. The server of the tests obeys
grammars, checks requests as vLLM does, counts and keeps what it is sent, and misbehaves:
`tests/fakes/wayward_engine`.
"""
