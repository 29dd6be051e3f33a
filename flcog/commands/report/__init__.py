"""The command ``flcog report``: one self-contained page about one or several runs."""
