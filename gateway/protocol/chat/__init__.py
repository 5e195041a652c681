"""Chat Completions and Completions, as two more ways to ask for a response and to be shown one.

A request is converted to one of the Responses API (`to_responses`), and whatever is wrong with it
is told in its own words (`to_responses.ParameterPaths`). The answer is made from what every client
gets: from events or from the Response object (`adapters`), so the two cannot disagree.
"""
