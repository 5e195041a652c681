"""Commands over the services of the admin API: projects, service accounts, keys of operators."""
