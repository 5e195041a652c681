"""The secrets of keys: how they are made and hashed, and when they were used."""
