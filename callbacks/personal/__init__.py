"""Methods with a model of each client's own."""
