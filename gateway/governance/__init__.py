"""What is kept of whom, for how long, and who did what. The rows are in `gateway.store`."""
