"""The HTTP client of backends, behind the interface of httpx2."""
