"""TLS, client certificates and API keys: who gets in, who does not, and whether they are told why."""

from __future__ import annotations

import asyncio
import datetime
import socket
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
import trustme
from grpc_health.v1 import health_pb2, health_pb2_grpc
from support.bigrams import far_pair
from support.devices import request
from support.edges import running_edge

from covspec.common.clock import MonotonicClock
from covspec.common.errors import InvalidRequest, Unauthenticated
from covspec.common.models.table import TableModel
from covspec.common.protocol.access import Access
from covspec.common.protocol.tls import Tls, speaks_tls
from covspec.device.alone import edge_only
from covspec.device.line.edge_link import EdgeLink
from covspec.device.record.meters import Meters
from covspec.edge.server import EdgeServer
from covspec.edge.settings import EdgeSettings

TARGET = TableModel(far_pair(1)[0])


@dataclass(frozen=True)
class Files:
    """An authority's certificate and what it has signed for 127.0.0.1."""

    authority: trustme.CA
    folder: Path

    def tls(
        self,
        name: str,
        *hosts: str,
        trust: trustme.CA | None = None,
        not_after: datetime.datetime | None = None,
    ) -> Tls:
        certfile, keyfile, ca = (self.folder / f"{name}.{end}" for end in ("pem", "key", "ca"))
        issued = self.authority.issue_cert(*hosts, not_after=not_after)
        certfile.write_bytes(b"".join(blob.bytes() for blob in issued.cert_chain_pems))
        keyfile.write_bytes(issued.private_key_pem.bytes())
        (trust or self.authority).cert_pem.write_to_path(ca)
        return Tls(certfile, keyfile, ca)


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(trustme.CA(), tmp_path)


def files_of(tls: Tls) -> dict[str, Any]:
    """The settings of these files."""
    return {
        "ssl_certfile": tls.certfile,
        "ssl_keyfile": tls.keyfile,
        "ssl_ca_certs": tls.ca_certs,
    }


@asynccontextmanager
async def edge(**config: object) -> AsyncIterator[EdgeServer]:
    async with running_edge(TARGET, **config) as server:
        yield server


async def ask(server: EdgeServer, access: Access) -> None:
    async with EdgeLink(server.address, timeout_s=5.0, access=access) as link:
        await link.model_info()
        done = await edge_only(
            request(max_new_tokens=4),
            TARGET.tokenizer,
            link,
            Meters(MonotonicClock(), lambda _: None),
        )
        assert len(done.token_ids) == 4


async def refusal(server: EdgeServer, access: Access) -> str:
    with pytest.raises(Unauthenticated) as caught:
        await ask(server, access)
    assert caught.value.exit_code == 10
    return str(caught.value)


async def test_tls_serves_who_trusts_the_authority(files: Files) -> None:
    server_side = replace(files.tls("edge", "127.0.0.1"), ca_certs=None)
    async with edge(**files_of(server_side)) as server:
        await ask(server, Access(Tls(ca_certs=files.folder / "edge.ca")))
        assert "say --tls" in await refusal(server, Access())
        assert "self-signed" in (text := await refusal(server, Access(Tls()))) or "issuer" in text
        other = files.folder / "other.ca"
        trustme.CA().cert_pem.write_to_path(other)
        assert "not accepted" in await refusal(server, Access(Tls(ca_certs=other)))
        await ask(server, Access(Tls(ca_certs=files.folder / "edge.ca")))


@pytest.mark.parametrize(
    ("host", "not_after", "why"),
    [
        ("edge.example", None, "IP address mismatch"),
        ("127.0.0.1", datetime.datetime(2020, 1, 1), "expired"),
    ],
)
async def test_a_bad_certificate_is_named(
    files: Files, host: str, not_after: datetime.datetime | None, why: str
) -> None:
    shown = replace(files.tls("edge", host, not_after=not_after), ca_certs=None)
    async with edge(**files_of(shown)) as server:
        text = await refusal(server, Access(Tls(ca_certs=files.folder / "edge.ca")))
        assert why in text


async def test_client_certificates_are_asked_for(files: Files) -> None:
    async with edge(**files_of(files.tls("edge", "127.0.0.1"))) as server:
        trusting = Tls(ca_certs=files.folder / "edge.ca")
        await ask(server, Access(files.tls("device", "device.example")))
        assert "wants a certificate" in await refusal(server, Access(trusting))
        stranger = Files(trustme.CA(), files.folder).tls("stranger", "x", trust=files.authority)
        assert "does not trust" in await refusal(server, Access(stranger))


async def test_tls_to_an_edge_without_it(files: Files) -> None:
    async with edge() as server:
        assert "does not speak TLS" in await refusal(server, Access(files.tls("d", "x")))
        assert not speaks_tls("127.0.0.1", server.port)


async def test_an_api_key_opens_every_call_and_health_stays_open() -> None:
    async with edge(api_key=("first", "second")) as server:
        for key in ("first", "second"):
            await ask(server, Access(api_key=key))
        for key in ("", "firs", "first2", "Bearer first"[7:].upper()):
            assert "API key" in await refusal(server, Access(api_key=key))
        async with EdgeLink(server.address, timeout_s=5.0) as link:
            with pytest.raises(Unauthenticated):
                await edge_only(
                    request(), TARGET.tokenizer, link, Meters(MonotonicClock(), lambda _: None)
                )
        async with grpc.aio.insecure_channel(server.address) as channel:
            stub: Any = health_pb2_grpc.HealthStub(channel)
            status = await stub.Check(health_pb2.HealthCheckRequest())
        assert status.status == health_pb2.HealthCheckResponse.SERVING
        assert server.engine is not None
        assert not server.engine.sessions


def test_an_exposed_edge_wants_encryption_and_credentials(files: Files) -> None:
    tls = files.tls("edge", "127.0.0.1")
    both, plain = files_of(tls), files_of(replace(tls, ca_certs=None))
    with pytest.raises(InvalidRequest, match="without encryption"):
        EdgeSettings(host="0.0.0.0", api_key=("k",))
    with pytest.raises(InvalidRequest, match="by everybody"):
        EdgeSettings(host="0.0.0.0", **plain)
    EdgeSettings(host="0.0.0.0", **plain, api_key=("k",))
    EdgeSettings(host="0.0.0.0", **both)
    EdgeSettings(host="0.0.0.0", insecure=True)
    for config in (EdgeSettings(host="0.0.0.0", **both), EdgeSettings()):
        assert config.metrics_host == "127.0.0.1"
    assert EdgeSettings(host="0.0.0.0", insecure=True).metrics_host == "0.0.0.0"
    assert "secret" not in repr(EdgeSettings(api_key=("secret",)))


def test_a_device_does_not_talk_in_the_clear_to_others() -> None:
    for target in ("10.0.0.5:50051", "edge.example:50051", "[2001:db8::1]:50051"):
        with pytest.raises(InvalidRequest, match="unencrypted"):
            Access().check(target)
        Access(insecure=True).check(target)
        Access(Tls()).check(target)
    for target in ("127.0.0.1:1", "localhost:1", "[::1]:1", "unix:/tmp/x"):
        Access().check(target)
    for key in ("two words", "käse", "line\n", "x" * 513):
        with pytest.raises(InvalidRequest, match="API key"):
            Access(api_key=key).check("127.0.0.1:1")


def test_files_are_checked_before_anything_starts(files: Files, tmp_path: Path) -> None:
    one, other = files.tls("one", "a.example"), files.tls("two", "b.example")
    junk = tmp_path / "junk.pem"
    junk.write_text("junk")
    for wrong, match in (
        ({"keyfile": None}, "go together"),
        ({"certfile": tmp_path / "none.pem"}, "cannot be read"),
        ({"keyfile": other.keyfile}, "not a certificate and its"),
        ({"certfile": junk}, "not a certificate and its"),
        ({"ca_certs": junk}, "no certificate"),
    ):
        with pytest.raises(InvalidRequest, match=match):
            replace(one, **wrong)
    with pytest.raises(InvalidRequest, match="needs --ssl-certfile"):
        EdgeSettings(ssl_ca_certs=one.ca_certs)


async def test_garbage_on_a_tls_port_harms_nobody(files: Files) -> None:
    async with edge(**files_of(replace(files.tls("edge", "127.0.0.1"), ca_certs=None))) as server:

        def throw(data: bytes) -> None:
            with socket.create_connection(("127.0.0.1", server.port)) as raw:
                raw.sendall(data)

        for data in (b"", b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01" + bytes(range(256)) * 4):
            await asyncio.to_thread(throw, data)
        await ask(server, Access(Tls(ca_certs=files.folder / "edge.ca")))


def test_the_script_makes_what_both_ends_take(tmp_path: Path) -> None:
    script = Path(__file__).parents[3] / "deploy" / "certificates.sh"
    subprocess.run([script, tmp_path, "127.0.0.1", "edge.example"], check=True)
    pair = (tmp_path / "127.0.0.1.pem", tmp_path / "127.0.0.1.key")
    Tls(*pair, tmp_path / "authority.pem").server_credentials()
    for name, code in (("999.1.1.1", 1), ("../evil", 2), ("two words", 2)):
        done = subprocess.run([script, tmp_path, name], capture_output=True, text=True)
        assert done.returncode == code and done.stderr and not done.stdout
    assert not list(tmp_path.glob("*.csr"))
