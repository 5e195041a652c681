"""WebSocket mode: one connection, the turns on its lanes, and their frames."""
