"""FedDisco, its bound and the command that minimises it."""
