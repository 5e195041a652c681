"""What operators see: log events and metrics, and nothing of what users say."""
