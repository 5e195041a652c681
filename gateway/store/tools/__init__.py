"""Tables of hosted tools."""
