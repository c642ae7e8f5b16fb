"""Instruments of the tests: fleets, child processes, proxies."""
