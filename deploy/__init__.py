"""How it is run."""
