"""What a tenant, a project and a key may use, and what it costs: rules and numbers without I/O.

terms    limits and budgets, as they are looked up with a key
bucket   this process's slice of a bucket that all replicas share
estimate how many tokens an answer is expected to have
charge   what one request is charged ahead, and settled for once
gates    the two gates of a request, and all that this process counts for them
figures  what is left, for whoever asks
refusal  what a refused request is told
pacing   buckets of one process: reads, and what was refused
storage  what is stored, since it was measured
money    prices in integer nano-dollars, and intervals of budgets
"""
