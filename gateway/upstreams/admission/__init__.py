"""When a request goes to a backend: slots of each backend, and the queue of those that wait.

policy     what is decided, as numbers; which class a request belongs to
slots      how many requests a backend is sent at once, and how that is learned
queue      who goes next
admission  what the pool asks: may this one go, and if not, wait for it
"""
