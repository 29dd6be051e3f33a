"""Ways to run the clients of a round: one after another, on threads, or as one batched program."""
