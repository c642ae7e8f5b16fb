"""What a turn costs, measured: `python -m tests.bench`.

__main__   what is measured, in which order
turns      the closed loop of callers, and the hand-off times
floor      the same commits with nothing around them
counts     round trips, commits and messages of single turns, by `wire` and `messages`
history    a session with many earlier turns
report     medians, ratios, table and file
"""
