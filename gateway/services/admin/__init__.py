"""What owners of a tenant and operators decide: projects, service accounts, keys, tenants."""
