"""Lines of usage of all tenants: added up, read by time, sent on, and compared."""
