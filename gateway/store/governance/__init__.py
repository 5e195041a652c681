"""Rows of what is kept of whom: the audit log, erasure, exports, sealing anew."""
