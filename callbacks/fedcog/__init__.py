"""FedCOG, its generation of inputs, and the observers that look at it."""
