"""The data holders' side of a round: tasks come in, and replies go out; data and state stay here."""
