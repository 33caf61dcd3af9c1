# SPDX-License-Identifier: MIT
"""Tests which servers a download may contact if a request or a redirect names the server."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any

import pytest

from eaglecpp.store import DownloadError, Stores
from eaglecpp.store.errors import HostRefusedError
from eaglecpp.store.remote import reach
from eaglecpp.store.remote.download import get
from eaglecpp.store.remote.pull import pull
from eaglecpp.store.remote.reach import HttpSession
from helpers.hub_server import HubServer

ONLY_PUBLIC = "127.0.0.1"
"""The only address that counts as the Internet here; other addresses of this machine are its own network."""


@pytest.fixture
def internet(hub: HubServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    monkeypatch.setattr(reach, "is_public", lambda address: address == ONLY_PUBLIC)
    yield hub


def redirect(hub: HubServer, to: str) -> str:
    """Returns an address of the registry that redirects to `to`."""
    hub.redirects["/away"] = to
    return f"{hub.url}/away"


def ask(session: HttpSession, url: str) -> bytes:
    return get(session, url, "someone", "")


@pytest.mark.parametrize(
    "address",
    ["127.0.0.1", "10.1.2.3", "192.168.1.1", "172.16.0.1", "169.254.169.254", "100.64.0.1", "0.0.0.0",
     "224.0.0.1", "255.255.255.255", "198.18.0.1", "::", "::1", "fe80::1", "fe80::1%eth0", "fc00::1",
     "fd00:ec2::254", "fec0::1", "ff02::1", "::ffff:127.0.0.1", "::ffff:10.0.0.1", "::127.0.0.1",
     "64:ff9b::a00:1", "2002:a00:1::", "2002:7f00:1::", "2001:0:4136:e378:8000:63bf:3fff:fdd2"],
)  # fmt: skip
def test_addresses_outside_the_internet(address: str) -> None:
    assert not reach.is_public(address)
    for public in ("1.1.1.1", "2606:4700::6810:84e5", "64:ff9b::101:101", "::ffff:1.1.1.1", "2002:101:101::"):
        assert reach.is_public(public)


@pytest.mark.parametrize("name", ["127.0.0.1:8443/x/y", "10.0.0.1/x/y", "127.1/x/y", "0x7f000001:80/x/y",
                                  "localhost:11434/x/y", "example.org/x/y", "registry.ollama.ai:22/x/y",
                                  "registry.ollama.ai.example.org/x/y"])  # fmt: skip
def test_a_request_may_not_name_any_server(
    name: str, stores: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(socket, "getaddrinfo", lambda *args: pytest.fail("a name was resolved"))
    with (
        reach.named_by_a_request([]),
        pytest.raises(HostRefusedError, match=r"may not download from.*--allow-registry"),
    ):
        pull(name, stores=stores)


def test_a_known_registry_in_this_network_is_refused(stores: Stores, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests that a known registry is refused if its name resolves to an address in this network. A name
    server may answer with any address.
    """
    address = (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("10.0.0.1", 443))
    monkeypatch.setattr(socket, "getaddrinfo", lambda *args: [address])
    with reach.named_by_a_request([]), pytest.raises(HostRefusedError, match=r"network of this.*--allow-reg"):
        pull("library/x", stores=stores)


@pytest.mark.parametrize("target", ["http://[::1]:{port}/secret", "http://intern.example:{port}/secret"])
@pytest.mark.parametrize("asked_by_request", [False, True])
def test_no_server_of_the_internet_redirects_into_this_network(
    target: str, asked_by_request: bool, internet: HubServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tests that no redirect leads from the Internet into this network. The address of the second server
    decides, not its name. This also applies to the user's own downloads, because the user did not name the
    second server.
    """
    real = socket.getaddrinfo

    def found(host: str, *args: Any) -> Any:
        return real("::1" if host == "intern.example" else host, *args)

    monkeypatch.setattr(socket, "getaddrinfo", found)
    url = redirect(internet, target.format(port=internet.port))
    with (
        HttpSession() as session,
        pytest.raises(HostRefusedError, match=r"127.0.0.1 redirects to .*machine \(::1\)"),
    ):
        if not asked_by_request:
            ask(session, url)
        with reach.named_by_a_request([internet.host]):
            ask(session, url)
    assert [request.path for request in internet.log] == ["/away"]


def test_a_registry_of_this_network_may_redirect_within_it(hub: HubServer) -> None:
    url = redirect(hub, f"http://localhost:{hub.port}/there")
    hub.redirects["/there"] = "/nowhere"
    with HttpSession() as session, pytest.raises(DownloadError, match="404"):
        ask(session, url)
    assert [request.path for request in hub.log] == ["/away", "/there", "/nowhere"]


def test_the_checked_address_is_contacted(internet: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests that a download contacts the address that was checked. The host name first resolves to an address
    of the Internet, and then to an address of this network.
    """
    real, asked = socket.getaddrinfo, []

    def found(host: str, *args: Any) -> Any:
        if host == "rebound.example":
            asked.append(host)
            host = ONLY_PUBLIC if len(asked) == 1 else "::1"
        return real(host, *args)

    monkeypatch.setattr(socket, "getaddrinfo", found)
    url = redirect(internet, f"http://rebound.example:{internet.port}/there")
    with HttpSession() as session, pytest.raises(DownloadError, match="404"):
        ask(session, url)
    assert asked == ["rebound.example"]
    assert [request.path for request in internet.log] == ["/away", "/there"]


def test_with_a_proxy_literal_addresses_are_checked(hub: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", hub.url)
    hub.redirects["http://registry.ollama.ai/x"] = "http://10.0.0.1/secret"
    with (
        reach.named_by_a_request([]),
        HttpSession() as session,
        pytest.raises(HostRefusedError, match=r"redirects to 10\.0\.0\.1"),
    ):
        ask(session, "http://registry.ollama.ai/x")
    assert [request.path for request in hub.log] == ["http://registry.ollama.ai/x"]
