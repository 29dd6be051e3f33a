"""The server: it plans each round, sends tasks to clients, combines their replies, and updates the global model."""
