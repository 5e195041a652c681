"""The Responses API on the wire: requests as they are read, Response objects as they are shown."""
