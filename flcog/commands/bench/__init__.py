"""The command ``flcog bench``: the time of a round, compared with a bare PyTorch loop and other frameworks."""
