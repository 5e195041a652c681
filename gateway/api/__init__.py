"""The HTTP edge: requests in, envelopes and frames out. The only Starlette code but the app."""
