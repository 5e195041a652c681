"""How a response gets generated, independent of who is listening."""
