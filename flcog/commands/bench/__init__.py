"""The command ``flcog bench``: how long a round takes, beside a bare loop and beside other frameworks."""
