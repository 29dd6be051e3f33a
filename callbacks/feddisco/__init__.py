"""The method FedDisco. ``feddisco`` is the method, ``secure_sum`` the secure aggregation of all clients' label counts."""
