"""The command line: ``flcog fit`` and its siblings."""
