"""Stores that are reached by a proxy alone, and whose certificate is of an authority of one's own."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from fetch import gcs, hub, outside, s3
from fetch.conftest import Initializer

MODEL = {"config.json": b"{}", "model.safetensors": os.urandom(20 * 2**20)}
# What `outbound` of both charts sets for a bundle.
BUNDLE = ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "AWS_CA_BUNDLE")
STORE = f"https://{outside.STORE}"
Make = Callable[..., Initializer]


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> outside.Certificate:
    """The certificate of every store here."""
    return outside.certified(tmp_path_factory.mktemp("authority"))


@contextmanager
def a_hub(certificate: outside.Certificate, folder: Path, clients: Path) -> Iterator[tuple[str, dict[str, str]]]:
    with hub.serving(tls=certificate.tls()) as serving:
        serving.repositories["models/shelf/tiny"] = hub.Repository(MODEL)
        yield serving.address, {"HF_ENDPOINT": STORE}


@contextmanager
def a_bucket(certificate: outside.Certificate, folder: Path, clients: Path) -> Iterator[tuple[str, dict[str, str]]]:
    (buckets := folder / "buckets").mkdir()
    with s3.serving(buckets, certificate) as address:
        s3.put(clients, address, "shelf/tiny", MODEL, folder / "scratch", {"AWS_CA_BUNDLE": str(certificate.chain)})
        yield address, {"ENDPOINT": STORE, "ACCESS_KEY_ID": s3.ACCESS_KEY, "SECRET_ACCESS_KEY": s3.SECRET_KEY}


@contextmanager
def a_google_bucket(
    certificate: outside.Certificate, folder: Path, clients: Path
) -> Iterator[tuple[str, dict[str, str]]]:
    with gcs.serving(certificate.tls()) as serving:
        serving.objects = {f"shelf/tiny/{name}": data for name, data in MODEL.items()}
        yield serving.address, {"STORAGE_EMULATOR_HOST": STORE}


@contextmanager
def behind_a_proxy(
    certificate: outside.Certificate, clients: Path, folder: Path, scheme: str
) -> Iterator[tuple[outside.Proxy, dict[str, str]]]:
    """Serve a store; yield the only way to it, and what its initializer is told."""
    folder.mkdir()
    a_store = {"hf": a_hub, "s3": a_bucket, "gs": a_google_bucket}[scheme]
    with (
        a_store(certificate, folder, clients) as (address, env),
        outside.proxying(urlsplit(address).port or 0) as proxy,
    ):
        yield proxy, {**env, "HTTPS_PROXY": proxy.address}


@pytest.mark.parametrize("scheme", ["hf", "s3", "gs"])
def test_a_proxy_leads_to_a_store_of_an_authority_that_the_bundle_names(
    certificate: outside.Certificate, clients: Path, initializer: Make, tmp_path: Path, scheme: str
) -> None:
    with behind_a_proxy(certificate, clients, tmp_path / "store", scheme) as (proxy, env):
        container = initializer(**env, **dict.fromkeys(BUNDLE, str(certificate.chain)))
        code, output = container.run("model", f"{scheme}://shelf/tiny")
        assert (code, container.files("model")) == (0, MODEL), output
        assert proxy.asked == {f"{outside.STORE}:443"}


@pytest.mark.parametrize(
    "scheme",
    ["hf", "s3", pytest.param("gs", marks=pytest.mark.full)],  # Google's client tries for half a minute by itself
)
def test_an_authority_that_the_bundle_lacks_is_answered_with_what_to_do(
    certificate: outside.Certificate, clients: Path, initializer: Make, tmp_path: Path, scheme: str
) -> None:
    with behind_a_proxy(certificate, clients, tmp_path / "store", scheme) as (_, env):
        code, output = initializer(**env).run("model", f"{scheme}://shelf/tiny")
        assert (code, "to the bundle of `outbound.caBundle`" in output) == (78, True), output
        assert "trying again" not in output


@pytest.mark.parametrize(
    ("flaw", "remedy"),
    [
        ({"days": ("240101000000Z", "240102000000Z")}, "renew the certificate of the server, or of the proxy"),
        ({"name": "another.invalid"}, "ask the server by a name that its certificate has"),
    ],
)
def test_a_trusted_certificate_that_has_expired_or_is_of_another_host_is_told_apart(
    clients: Path, initializer: Make, tmp_path: Path, flaw: dict[str, Any], remedy: str
) -> None:
    certificate = outside.certified(tmp_path, **flaw)
    with behind_a_proxy(certificate, clients, tmp_path / "store", "hf") as (_, env):
        container = initializer(**env, **dict.fromkeys(BUNDLE, str(certificate.chain)))
        code, output = container.run("model", "hf://shelf/tiny")
        assert (code, remedy in output) == (78, True), output
        assert "outbound.caBundle" not in output
        assert "trying again" not in output
