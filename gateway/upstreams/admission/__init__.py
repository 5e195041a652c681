"""Admission of requests to backends: slots of each backend, and the queue of waiting requests.

policy     the numbers of admission, and the classes of requests
slots      how many requests a backend is sent at once, and how that is learned
order      waiting requests, and the order of a line
fair       the order among tenants
recall     which requests give way when one tenant has most of the slots
queue      the next request of all lines
admission  the interface for the pool: send a request now, or wait until it may go
"""
