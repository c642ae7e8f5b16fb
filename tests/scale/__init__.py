"""What a large store costs, against an empty one: `python -m tests.scale`.

__main__   what is measured, in which order, and the report
fill       rows by the million, copies of what really happened in one session
"""
