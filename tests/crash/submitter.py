"""`python -m tests.crash.submitter REQUEST_ID INPUT`: a backend that submits, and prints the receipt's submission."""

from __future__ import annotations

import sys

from shared.client import Client

if __name__ == "__main__":
    client = Client()
    receipt = client.submit(agent="notices", input=sys.argv[2], request_id=sys.argv[1])
    print(receipt.submission_id)
    client.close()
