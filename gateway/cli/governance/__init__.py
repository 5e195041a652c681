"""Commands about what is kept: `audit`, `data`, `encryption`."""
