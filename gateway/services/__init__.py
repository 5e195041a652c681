"""What the edge may ask for: one function is one use case."""
