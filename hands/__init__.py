"""Hands act: they run tool calls and business flows, and never call the model."""

if __name__ != "brainhands.hands":
    raise ImportError("this package is brainhands.hands")
