"""Every object of a process, built once from the settings."""
