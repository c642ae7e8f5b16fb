"""Certificates that only their own authority vouches for: nobody trusts one, but who names its file as that."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path

import trustme


@dataclass(frozen=True, kw_only=True)
class Certificate:
    """Two files in PEM form."""

    certificate: Path
    key: Path

    def of_server(self, *, asks_clients: bool = False) -> ssl.SSLContext:
        """What a server shows; with `asks_clients` it takes only those who show the same one."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.certificate, self.key)
        if asks_clients:
            context.load_verify_locations(self.certificate)
            context.verify_mode = ssl.CERT_REQUIRED
        return context


def make_certificate(folder: Path, name: str = "localhost") -> Certificate:
    """One for a host, and for 127.0.0.1 where that is this machine, with the authority that is its own."""
    authority = trustme.CA()
    issued = authority.issue_cert(name, *(["127.0.0.1"] if name == "localhost" else []))
    made = Certificate(certificate=folder / f"{name}.pem", key=folder / f"{name}.key")
    made.certificate.write_bytes(issued.cert_chain_pems[0].bytes() + authority.cert_pem.bytes())
    made.key.write_bytes(issued.private_key_pem.bytes())
    return made
