"""Selection of the clients of each round."""
