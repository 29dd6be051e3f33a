"""The clients' side of a round: it receives tasks and sends replies, while the clients' data and state stay here."""
