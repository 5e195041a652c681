"""Providers that wrap data keys: keys in a file, Vault's transit engine, AWS KMS."""
