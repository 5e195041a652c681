"""Audit log: its entries and their chain. The rows are in `gateway.store`."""
