"""What an error of a connection to Redis says of its TLS: the problem, and what to do about it."""

from __future__ import annotations

import ssl
from dataclasses import dataclass

ANOTHER_HOST = (62, 64)
"""What OpenSSL verifies last: the name and the number of the host."""

AUTHORITY = "name the file of the authority that vouches for it in REDIS_URL: rediss://...?ssl_ca_certs=/path/ca.pem"
HOST = "name the host in REDIS_URL as its certificate does"
PORT = "check that REDIS_URL names a port of Redis where it speaks TLS; where it speaks none, write redis://"
CLIENT = (
    "name a certificate that the server takes in REDIS_URL: rediss://...?ssl_certfile=/path/cert.pem&ssl_keyfile=..."
)


@dataclass(frozen=True, kw_only=True)
class TlsFault:
    """Why two ends did not agree on a secure connection."""

    problem: str
    next_step: str
    of_certificate: bool
    """Whether it is the server's certificate, which no further try makes better."""


def tls_fault(error: BaseException) -> TlsFault | None:
    """What is wrong with TLS by this error, or by one that it came from; None where it is something else."""
    found: BaseException | None = error
    while found is not None and not isinstance(found, ssl.SSLError):
        found = found.__cause__ or found.__context__
    if found is None:
        return None
    if isinstance(found, ssl.SSLCertVerificationError):
        problem = f"its certificate is not trusted: {found.verify_message.rstrip('.')}"
        next_step = HOST if found.verify_code in ANOTHER_HOST else AUTHORITY
        return TlsFault(problem=problem, next_step=next_step, of_certificate=True)
    reason = (found.reason or "the other end hung up").replace("_", " ").lower()
    next_step = CLIENT if "alert" in reason and "certificate" in reason else PORT
    return TlsFault(problem=f"TLS was not agreed on: {reason}", next_step=next_step, of_certificate=False)
