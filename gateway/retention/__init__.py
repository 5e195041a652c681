"""How long what is stored is kept: swept, erased, removed with its tenant, exported."""
