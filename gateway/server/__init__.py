"""The ASGI server: uvicorn with bounds on what clients send, and a drain before it stops."""
