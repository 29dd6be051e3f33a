"""Messages between clients and server: envelopes, their bytes, facts about the population, and the ledger that counts bytes."""
