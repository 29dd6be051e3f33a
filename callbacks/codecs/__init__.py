"""Codecs: everything that clients send, and the model that the server sends, in fewer bytes."""
