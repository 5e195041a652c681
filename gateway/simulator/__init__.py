"""A scripted stand-in for a gpt-oss server: vLLM's token API in front of rules, not of a model.

For the demo and for trying a gateway, on machines without a GPU. Its output is a pure function of
the conversation, and of the format that the output is to have.

    simulated_server → completion_wire     requests and events, as vLLM or SGLang speaks them
                     → simulated_engine    the state that the requests of one instance share
                     → scripted_model → script_writer    the text that follows

Grammars have no effect here, and requests are read leniently. The server of the tests obeys
grammars, checks requests as vLLM does, counts and keeps requests, and misbehaves:
`tests/fakes/wayward_engine`.
"""
