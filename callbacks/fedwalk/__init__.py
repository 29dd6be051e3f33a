"""FedWalk, its leash, and the choice of the leash's classes."""
