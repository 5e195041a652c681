"""The HTTP edge: the only Starlette code but the app."""
