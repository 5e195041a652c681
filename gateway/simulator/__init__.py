"""A scripted stand-in for a gpt-oss server: vLLM's token API in front of rules, not of a model.

For the demo, for tests and for load, on machines without a GPU. What it says is a pure function of
the conversation it is shown, and of the shape that the output is to have.

    app → completions → (requests, demands, reply, faults)         HTTP, as vLLM or SGLang speaks it
                      → continuation → alignment → scripting       what is said next
                        transcript, typescript, values, speech     reading and wording
                        shapes, escapes                            JSON as the prompt shows it
                        attacks, antics                            what no well-meant script says
                      → obedience → walking → guidance             what of it a grammar allows
                        tags, ebnf                                 grammars in the engines' words
"""
