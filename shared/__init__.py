"""What brain, hands and outbox agree on; imports none of them."""

if __name__ != "brainhands.shared":
    raise ImportError("this package is brainhands.shared")
