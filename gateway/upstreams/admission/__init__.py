"""When a request goes to a backend: slots of each backend, and the queue of those that wait.

policy     what is decided, as numbers; which class a request belongs to
slots      how many requests a backend is sent at once, and how that is learned
order      what waits, and the order of a line
fair       the order among tenants
recall     who gives way when one tenant has most of the slots
queue      who goes next of all lines
admission  what the pool asks: may this one go, and if not, wait for it
"""
