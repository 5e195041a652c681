"""Usage lines of all tenants: added up, read by time, and sent on."""
