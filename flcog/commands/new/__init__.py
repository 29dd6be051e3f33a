"""The command ``flcog new``: the files with which a method of one's own begins, in whatever folder one works in."""
