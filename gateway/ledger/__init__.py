"""The ledger: usage lines are queried, added up, exported to sinks, and reconciled."""
