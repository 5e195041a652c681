"""The ledger: what lines of usage are asked, added up, handed on to others, and held against."""
