"""The soak: many sessions of random shape under random faults of all parts and servers, then the reckoning."""
