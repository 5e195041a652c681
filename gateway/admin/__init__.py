"""The admin API of tenants (OpenAI's `/v1/organization`) and the plane of operators (`/admin/v1`).

Every route is an `AdminRoute` with the permission that it takes; `resources` has them all.
"""
