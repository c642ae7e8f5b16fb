"""Certificates that vouch for themselves: nobody trusts one, but who names its file as an authority."""

from __future__ import annotations

import ssl
import subprocess
from dataclasses import dataclass
from pathlib import Path


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
    """One for a host, and for 127.0.0.1 where that is this machine, which ends in a day."""
    made = Certificate(certificate=folder / f"{name}.pem", key=folder / f"{name}.key")
    names = f"DNS:{name},IP:127.0.0.1" if name == "localhost" else f"DNS:{name}"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"),
            *("-days", "1", "-subj", f"/CN={name}", "-addext", f"subjectAltName={names}"),
            *("-keyout", str(made.key), "-out", str(made.certificate)),
        ],
        check=True,
        capture_output=True,
    )
    return made
