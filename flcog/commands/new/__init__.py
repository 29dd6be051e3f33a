"""The command ``flcog new``: writes the first files of a user's own method to the working directory."""
