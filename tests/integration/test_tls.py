"""Redis by TLS: each part speaks nothing else to a `rediss://` address, and only with whom an authority vouches for."""

from __future__ import annotations

import asyncio
import socketserver
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import redis
from flower.utils.broker import Broker
from kombu import pools

from brainhands.outbox.publisher import Publisher
from brainhands.shared.bus import census, transport
from brainhands.shared.bus import health as redis_health
from brainhands.shared.bus.bell import Bell, RelayBell
from brainhands.shared.bus.celery_app import celery_app
from brainhands.shared.doors.watch import Hub, result
from brainhands.shared.errors import ServerUnavailable
from brainhands.shared.local.servers import free_port
from brainhands.shared.model.ids import new_session_id
from brainhands.shared.runtime.address import redis_address, shown
from brainhands.shared.store.database import Database
from brainhands.shared.store.past import NO_END, LogPart
from tests.instruments.certificates import Certificate, make_certificate
from tests.instruments.fleet import Fleet, wait_until
from tests.instruments.processes import Child
from tests.instruments.proxy import LOOPBACK, Proxy
from tests.integration.test_flower import Page, answers

NOT_TRUSTED = "its certificate is not trusted: self-signed certificate"
TLS_HELLO = b"\x16\x03\x01"


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    return make_certificate(tmp_path_factory.mktemp("certificates"))


@contextmanager
def secured(redis_url: str, certificate: Certificate, *, asks_clients: bool = False) -> Iterator[str]:
    """The address of this Redis by TLS, without options."""
    address = urlsplit(redis_url)
    assert address.port is not None
    with Proxy(LOOPBACK, address.port, tls=certificate.of_server(asks_clients=asks_clients)) as proxy:
        yield f"rediss://:{address.password}@localhost:{proxy.port}/0"


class Listener(socketserver.ThreadingTCPServer):
    """A server without TLS, which hangs up; `heard` is what came first on each connection."""

    daemon_threads = True

    def __init__(self) -> None:
        self.heard: list[bytes] = []
        super().__init__((LOOPBACK, 0), Hearing)
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"rediss://:secret@localhost:{self.server_address[1]}/0"

    def hears_only_tls(self) -> bool:
        return all(first.startswith(TLS_HELLO) for first in self.heard)


class Hearing(socketserver.BaseRequestHandler):
    server: Listener

    def handle(self) -> None:
        with suppress(OSError):
            if first := self.request.recv(1024):
                self.server.heard.append(first)


@pytest.fixture
def listener() -> Iterator[Listener]:
    with Listener() as listening:
        yield listening
        listening.shutdown()


# --- each part's own way to Redis, given an address; what goes wrong is raised --------------------------------------


def rings(url: str) -> None:
    with closing(Bell(url)) as bell:
        bell.ring(new_session_id(), hints=True, ended=False)


def relay_listens(url: str) -> None:
    RelayBell(url).wait(0.1, threading.Event())


def observer_listens(url: str) -> None:
    """While Postgres is away, too."""
    with closing(Hub(Database("postgresql://nobody@127.0.0.1:9/none"), url)) as hub:
        result(hub.page([LogPart(session_id=new_session_id(), up_to=NO_END)], 0), 0.5)


def publishes(url: str) -> None:
    with closing(Publisher(url)) as publisher:
        session = new_session_id()
        publisher.publish("brain.default", [{"task_id": session, "session_id": session, "requires_name": "agent:a"}])


def counts(url: str) -> None:
    with closing(Publisher(url)) as publisher:
        publisher.waiting(["brain.default"])


def worker_reads(url: str) -> None:
    app = celery_app("brain", redis_url=url, queue="brain.default", pool="threads")
    transport.use(app)
    with app.connection_for_read() as connection:
        connection.ensure_connection(max_retries=1, timeout=3)
        ping(connection.default_channel)


def ping(channel: Any) -> None:
    channel.client.ping()


def flower_watches(url: str) -> None:
    app = celery_app("brain", redis_url=url, queue="brain.default", pool="threads")
    with app.connection() as connection:
        ping(connection.default_channel)


def flower_counts(url: str) -> None:
    app = celery_app("brain", redis_url=url, queue="brain.default", pool="threads")
    with app.connection() as connection:
        address = connection.as_uri(include_password=True)
    conf = app.conf
    broker = Broker(address, broker_options=conf.broker_transport_options, broker_use_ssl=conf.broker_use_ssl)
    found = asyncio.run(broker.queues(["brain.default"]))
    assert [queue["name"] for queue in found] == ["brain.default"]


def doctor_looks(url: str) -> None:
    assert list(redis_health.findings(url, shown(url), [])) == []


PARTS: dict[str, Callable[[str], object]] = {
    each.__name__: each
    for each in (
        *(rings, relay_listens, observer_listens, publishes, counts, worker_reads),
        *(flower_watches, flower_counts, doctor_looks, census.readers),
    )
}


@pytest.fixture
def unasked(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where a certificate is changed once the part runs: nothing but its connections refuses it."""
    monkeypatch.setattr("brainhands.shared.bus.celery_app.require_trust", lambda _: None)


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.usefixtures("unasked")
def test_no_part_speaks_plain_text_to_a_secure_address(part: str, listener: Listener) -> None:
    for options in ("", "?ssl_cert_reqs=none"):
        with suppress(Exception):
            PARTS[part](redis_address(listener.url + options))
        assert listener.heard
        assert listener.hears_only_tls()
        listener.heard.clear()


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.usefixtures("unasked")
def test_a_part_gets_to_redis_only_where_the_certificate_is_vouched_for_and_names_the_host(
    part: str, redis_url: str, certificate: Certificate, tmp_path: Path
) -> None:
    elsewhere = make_certificate(tmp_path, "elsewhere.example")
    with redis.Redis.from_url(redis_url) as client:

        def reached(url: str) -> bool:
            """Whether the part's connection got as far as Redis itself."""
            pools.reset()  # kombu takes addresses that differ in their TLS alone for one
            before = connections_of(client)
            with suppress(Exception):
                PARTS[part](redis_address(url))
            return connections_of(client) > before

        def comes_to_reach(url: str) -> None:
            """The bell has a third of a second, which is short for a handshake on a busy machine."""
            wait_until(lambda: reached(url), 20, f"{part} at {url}")

        with secured(redis_url, certificate) as url:
            assert not reached(url)
            assert not reached(f"{url}?ssl_ca_certs={elsewhere.certificate}")
            comes_to_reach(f"{url}?ssl_ca_certs={certificate.certificate}")
            comes_to_reach(f"{url}?ssl_cert_reqs=none")
        with secured(redis_url, elsewhere) as url:
            assert not reached(f"{url}?ssl_ca_certs={elsewhere.certificate}")
            comes_to_reach(f"{url}?ssl_ca_certs={elsewhere.certificate}&ssl_check_hostname=false")
        with secured(redis_url, certificate, asks_clients=True) as url:
            trusting = f"{url}?ssl_ca_certs={certificate.certificate}"
            assert not reached(trusting)
            comes_to_reach(f"{trusting}&ssl_certfile={certificate.certificate}&ssl_keyfile={certificate.key}")


def connections_of(client: redis.Redis) -> int:
    info: Any = client.info("stats")
    return int(info["total_connections_received"])


def test_what_is_wrong_with_tls_is_told_with_what_to_do_about_it(
    redis_url: str, certificate: Certificate, tmp_path: Path, listener: Listener, caplog: pytest.LogCaptureFixture
) -> None:
    elsewhere = make_certificate(tmp_path, "elsewhere.example")
    with (
        secured(redis_url, certificate) as untrusted,
        secured(redis_url, elsewhere) as other,
    ):
        for url, problem, next_step in (
            (untrusted, NOT_TRUSTED, "ssl_ca_certs"),
            (f"{other}?ssl_ca_certs={elsewhere.certificate}", "Hostname mismatch", "as its certificate does"),
            (listener.url, "TLS was not agreed on", "where it speaks TLS"),
        ):
            address = redis_address(url)
            pools.reset()
            for ask in (lambda at: list(redis_health.findings(at, shown(at), [])), census.readers):
                with pytest.raises(ServerUnavailable) as refused:
                    ask(address)
                assert problem in str(refused.value)
                assert next_step in refused.value.next_step
            caplog.clear()
            rings(address)
            (away,) = [record for record in caplog.records if record.getMessage() == "bell_away"]
            fields = vars(away)["fields"]
            assert problem in fields["problem"]
            assert next_step in fields["next_step"]
    assert str(urlsplit(redis_url).password) not in caplog.text
    with pytest.raises(ServerUnavailable) as no_answer:
        list(redis_health.findings(redis_address(redis_url.replace("redis://", "rediss://")), "here", []))
    assert "rediss:// where Redis speaks TLS" in no_answer.value.next_step


@pytest.mark.slow
@pytest.mark.parametrize("command", ["relay", "brain", "hands", "flower", "doctor", "celery brain", "celery hands"])
def test_a_part_does_not_start_with_a_certificate_that_nobody_vouches_for_and_says_what_to_do(
    fleet: Fleet, certificate: Certificate, command: str
) -> None:
    with secured(fleet.redis_url, certificate) as url:
        fleet.environment["REDIS_URL"] = url
        part = start(fleet, command)

        assert part.wait() == 3
        assert NOT_TRUSTED in part.output
        assert "rediss://...?ssl_ca_certs=" in part.output
        assert "Traceback" not in part.output


@pytest.mark.slow
@pytest.mark.parametrize("command", ["relay", "brain", "hands", "flower"])
def test_a_part_that_finds_no_tls_goes_on_asking_for_it(fleet: Fleet, listener: Listener, command: str) -> None:
    fleet.environment["REDIS_URL"] = listener.url
    fleet.submit("hello")  # so that the relay has something to publish
    part = start(fleet, command, *((f"--port={free_port()}",) if command == "flower" else ()))

    wait_until(lambda: len(listener.heard) > 5, 30, "tries to connect")
    assert listener.hears_only_tls()
    assert part.returncode is None
    if command != "flower":
        part.wait_for_line("TLS was not agreed on")


@pytest.mark.slow
def test_a_fleet_works_by_tls_and_flower_sees_it(fleet: Fleet, certificate: Certificate) -> None:
    with secured(fleet.redis_url, certificate) as url:
        fleet.environment["REDIS_URL"] = f"{url}?ssl_ca_certs={certificate.certificate}"
        port = free_port()
        flower = start(fleet, "flower", f"--port={port}")
        fleet.everything()
        receipt = fleet.script({"calls": [{"name": "note", "arguments": {"text": "private"}}]}, {"text": "done"})

        assert fleet.wait(receipt).output == "done"
        doctor = start(fleet, "doctor")
        assert doctor.wait() == 0, doctor.output
        wait_until(lambda: answers(port), 60, f"Flower's answer; it wrote {flower.output[-2000:]}")
        page = Page(port, (home_of(fleet) / "flower-password").read_text())
        wait_until(lambda: len(page.json("/api/workers?refresh=1")) == 2, 30, f"both in Flower: {flower.output}")
        queues = {each["name"] for each in page.json("/api/queues/length")["active_queues"]}
        assert queues == {"brain.default", "hands.default"}


def start(fleet: Fleet, command: str, *options: str) -> Child:
    """Start a part by our command line, or a worker by Celery's."""
    if command.startswith("celery "):
        return fleet.brain() if command.endswith("brain") else fleet.hands()
    environment = {"BRAINHANDS_HOME": str(home_of(fleet))}
    return fleet._start(command, "-m", "brainhands.shared.cli.main", command, *options, environment=environment)


def home_of(fleet: Fleet) -> Path:
    return fleet.effects_file.parent / "home"
