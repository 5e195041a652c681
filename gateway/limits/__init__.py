"""Limits, budgets and prices of tenants, projects and keys: rules and numbers without I/O.

terms    limits and budgets, as they are looked up with a key
bucket   this process's slice of a bucket that all replicas share
estimate the expected number of tokens of an answer
charge   the charge of one request in advance, which is settled once
gates    the two gates of a request, and all that this process counts for them
figures  what is left of limits and budgets
refusal  errors for refused requests, and headers of answers
pacing   buckets of one process: reads, and refusals
storage  what is stored: the last measurement, and what came since
money    prices in integer nano-dollars, and intervals of budgets
"""
