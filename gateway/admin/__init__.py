"""The admin API of tenants (OpenAI's `/v1/organization`) and that of operators (`/admin/v1`).

Fields that OpenAI's bodies and objects lack stand under `harmony`.
"""
