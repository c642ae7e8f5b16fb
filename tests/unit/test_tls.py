"""What errors say of TLS, however deep the cause is."""

from __future__ import annotations

import socket
import ssl
import threading
from contextlib import suppress
from pathlib import Path

import pytest

from brainhands.shared.runtime.tls import tls_fault
from tests.instruments.certificates import make_certificate


def test_who_must_show_a_certificate_is_told_so(tmp_path: Path) -> None:
    made = make_certificate(tmp_path)
    near, far = socket.socketpair()

    def serve() -> None:
        with far, suppress(ssl.SSLError):
            made.of_server(asks_clients=True).wrap_socket(far, server_side=True)

    server = threading.Thread(target=serve)
    server.start()
    context = ssl.create_default_context(cafile=made.certificate)
    with context.wrap_socket(near, server_hostname="localhost") as secure, pytest.raises(ssl.SSLError) as refused:
        secure.recv(1)
    server.join()

    fault = tls_fault(refused.value)
    assert fault is not None
    assert "certificate required" in fault.problem
    assert "ssl_certfile" in fault.next_step
    assert not fault.of_certificate


def test_an_error_of_another_kind_says_nothing_of_tls() -> None:
    assert tls_fault(ConnectionRefusedError("refused")) is None
