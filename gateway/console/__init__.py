"""The console: server-rendered pages for operators, over the services of the admin API."""
