"""Messages between clients and server: what an envelope holds, the stages it passes, its bytes, and the ledger that counts them."""
