"""The server: plans each round, sends tasks to clients, combines their replies, and steps the global model."""
