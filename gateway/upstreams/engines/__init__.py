"""The inference engines that backends may run: a module each, and a line in `registry`."""
