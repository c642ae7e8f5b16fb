"""What was stored by released code, kept to be read for ever; `python -m tests.golden` adds what is not there yet."""
