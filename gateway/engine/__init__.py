"""One run: its turns, what guards its output, what is done when a backend fails, how it ends."""
