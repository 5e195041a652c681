"""uvicorn with bounds on what clients send, and a drain."""
