"""The tests' TCP proxy does to connections what it says."""

import socket
import socketserver
import threading
from collections.abc import Iterator

import pytest

from tests.instruments.proxy import Proxy


class _Echo(socketserver.BaseRequestHandler):
    def handle(self) -> None:
        while data := self.request.recv(65536):
            self.request.sendall(data)


@pytest.fixture
def proxy() -> Iterator[Proxy]:
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), _Echo) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        with Proxy(*server.server_address) as proxy:
            yield proxy
        server.shutdown()
        thread.join()


def _connect(proxy: Proxy) -> socket.socket:
    return socket.create_connection(("127.0.0.1", proxy.port), timeout=10)


def _echoed(connection: socket.socket, text: bytes) -> bytes:
    connection.sendall(text)
    return _received(connection, len(text))


def _received(connection: socket.socket, size: int) -> bytes:
    received = b""
    while len(received) < size and (data := connection.recv(65536)):
        received += data
    return received


def test_bytes_pass_both_ways_and_the_end_is_passed_on(proxy: Proxy) -> None:
    much = bytes(range(256)) * 4096
    with _connect(proxy) as connection:
        sending = threading.Thread(target=connection.sendall, args=(much,))
        sending.start()
        assert _received(connection, len(much)) == much
        sending.join()
        connection.shutdown(socket.SHUT_WR)
        assert connection.recv(1) == b""


def test_a_frozen_proxy_keeps_connections_and_moves_nothing_until_it_thaws(proxy: Proxy) -> None:
    with _connect(proxy) as old:
        assert _echoed(old, b"before") == b"before"
        proxy.freeze()
        with _connect(proxy) as new:
            for connection in (old, new):
                connection.sendall(b"held")
                connection.settimeout(0.2)
                with pytest.raises(TimeoutError):
                    connection.recv(1)
                connection.settimeout(10)
            proxy.thaw()
            assert [_received(connection, 4) for connection in (old, new)] == [b"held", b"held"]


def test_a_stranded_connection_stays_open_and_silent_while_new_ones_work(proxy: Proxy) -> None:
    with _connect(proxy) as old:
        assert _echoed(old, b"before") == b"before"
        proxy.strand()
        old.sendall(b"lost")
        with _connect(proxy) as new:
            assert _echoed(new, b"new") == b"new"
        old.settimeout(0.2)
        with pytest.raises(TimeoutError):
            old.recv(1)


@pytest.mark.parametrize("frozen", [False, True])
def test_a_cut_resets_the_connections_and_the_next_ones_work(proxy: Proxy, frozen: bool) -> None:
    with _connect(proxy) as connection:
        assert _echoed(connection, b"x") == b"x"
        if frozen:
            proxy.freeze()
        proxy.cut()
        with pytest.raises(ConnectionResetError):
            connection.recv(1)
    proxy.thaw()
    with _connect(proxy) as connection:
        assert _echoed(connection, b"y") == b"y"


def test_a_refusing_proxy_keeps_its_port_and_its_open_connections(proxy: Proxy) -> None:
    port = proxy.port
    with _connect(proxy) as old:
        assert _echoed(old, b"x") == b"x"
        proxy.refuse()
        with pytest.raises(ConnectionRefusedError):
            _connect(proxy)
        assert _echoed(old, b"still") == b"still"
    proxy.accept()
    assert proxy.port == port
    with _connect(proxy) as new:
        assert _echoed(new, b"again") == b"again"


def test_a_dead_target_looks_dead_through_the_proxy() -> None:
    nobody = socket.socket()
    nobody.bind(("127.0.0.1", 0))
    with (
        nobody,
        Proxy(*nobody.getsockname()) as proxy,
        pytest.raises(ConnectionResetError),  # by the time it is connected, or soon after
        _connect(proxy) as connection,
    ):
        connection.recv(1)


def test_a_closed_proxy_refuses_and_may_be_closed_again(proxy: Proxy) -> None:
    proxy.close()
    proxy.close()
    with pytest.raises(ConnectionRefusedError):
        _connect(proxy)
