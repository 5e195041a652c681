"""Services of what is kept of whom: retention, encryption, erasure, exports and the audit log."""
