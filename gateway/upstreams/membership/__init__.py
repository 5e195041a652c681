"""Which backends there are: sources say so, and the pool follows."""
