"""The OpenAPI document of what is served, and a page that shows it."""
