"""Every object of a process, built once from the settings, and the order in which they live."""
