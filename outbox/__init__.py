"""Outbox delivers: the relay publishes hints and keeps time."""

if __name__ != "brainhands.outbox":
    raise ImportError("this package is brainhands.outbox")
