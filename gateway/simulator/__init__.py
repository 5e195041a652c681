"""A scripted stand-in for a gpt-oss server: vLLM's token API in front of rules, not of a model.

For the demo, for tests and for load, on machines without a GPU. What it says is a pure function of
the conversation it is shown.

    app → completions → (requests, reply, sessions, faults)        HTTP, as vLLM speaks it
                      → continuation → alignment → scripting       what is said next
                        transcript, typescript, values, speech     reading and wording
"""
