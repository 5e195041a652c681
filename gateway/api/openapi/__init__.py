"""The OpenAPI document of the served routes, and a page that shows it."""
