"""Chat Completions and Completions, as two more ways to ask for a response and to be shown one.

A request is respelled as one of the Responses API (`conversation`, `controls`), and whatever is
wrong with it is told in its own words (`places`). The answer is made from what every client gets:
from events (`chunks`) or from the Response object (`bodies`), so the two cannot disagree.
"""
