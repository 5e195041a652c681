"""Admission of requests to backends: slots of each backend, and the queue of waiting requests.

slots  how many requests a backend is sent at once, and how that is learned
queue  the waiting requests, and the order among tenants
admit  the interface for the pool: send a request now, wait until it may go, or call it back
"""
