"""Brain thinks: it turns a session's events into the model's next step, and never runs a tool."""

if __name__ != "brainhands.brain":
    raise ImportError("this package is brainhands.brain")
