"""The admin API of tenants (OpenAI's `/v1/organization`) and that of operators (`/admin/v1`)."""
