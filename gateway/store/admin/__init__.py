"""Tables of the admin API: projects, service accounts, keys. Rows of one tenant, no content."""
