"""Keys, invitations and kits: what `fdamed join` and `fdamed serve` refuse before they connect, and closed policies."""

from __future__ import annotations

import json
import shutil
import socket
import ssl
import stat
from base64 import b64encode
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from fdamed.cli.commands.lead import started
from fdamed.core.errors import FdamedError
from fdamed.pipeline.hospitals.authority import Authority, make_request, public_key, requested, shown
from fdamed.pipeline.hospitals.kits import check_kit, check_valid, fingerprint_of
from tests.network.test_flare import wait
from tests.support.networks import HOSPITALS, Federation, fdamed

pytest.importorskip("nvflare", reason="the extra `network` is not installed: make test-network")
pytestmark = pytest.mark.network


@pytest.fixture(scope="module")
def invited(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    """Hospitals that have joined, and none that runs."""
    made = Federation(tmp_path_factory.mktemp("kits"), 18999)
    made.prepare()
    yield made


def kit_of(federation: Federation, name: str) -> Path:
    return federation.folder / name / "invitation" / "kit"


def key_of(federation: Federation, name: str) -> Path:
    return federation.folder / name / "keys" / f"{name}.key"


def refused(federation: Federation, folder: Path, **changes: Any) -> str:
    """What `fdamed serve` says to north's file with these changes."""
    site = yaml.safe_load((federation.folder / "north" / "site.yaml").read_text(encoding="utf-8"))
    for key in ("study", "kit"):
        site[key] = str((federation.folder / "north" / site[key]).resolve())
    (folder / "site.yaml").write_text(yaml.safe_dump(site | {"results": str(folder)} | changes), encoding="utf-8")
    done = fdamed("serve", "--site", folder / "site.yaml", cwd=folder)
    assert done.returncode == 2
    return done.stderr


def test_the_kit_of_another_hospital_is_refused(invited: Federation, tmp_path: Path) -> None:
    text = refused(invited, tmp_path, kit=str(kit_of(invited, "east")))
    assert "the kit's certificate is that of 'east', not of 'north'" in text


def test_a_server_of_another_authority_is_refused(invited: Federation, tmp_path: Path) -> None:
    assert "signed by another authority" in refused(invited, tmp_path, authority="0" * 64)
    kit = tmp_path / "kit"
    shutil.copytree(kit_of(invited, "north"), kit)
    authority = fingerprint_of(kit / "startup" / "rootCA.pem")
    check_kit(kit, "north", authority)
    (kit / "startup" / "rootCA.pem").write_text("another", encoding="ascii")
    with pytest.raises(FdamedError, match="another authority"):
        check_kit(kit, "north", authority)


def test_a_certificate_is_refused_before_and_after_its_time(invited: Federation) -> None:
    """A hospital whose clock is slow, right after the invitation was made; and one ten years later."""
    certificate = kit_of(invited, "north") / "startup" / "client.crt"
    now = datetime.now(UTC)
    check_valid(certificate, now)
    for apart in (timedelta(minutes=-15), timedelta(days=3660)):
        with pytest.raises(FdamedError, match="by this machine's clock"):
            check_valid(certificate, now + apart)


def test_a_study_that_changed_after_the_hospital_joined_is_refused(invited: Federation, tmp_path: Path) -> None:
    study = yaml.safe_load((kit_of(invited, "north").parent / "study.yaml").read_text(encoding="utf-8"))
    study["train"]["rounds"] += 1
    (tmp_path / "study.yaml").write_text(yaml.safe_dump(study), encoding="utf-8")
    assert "this hospital has agreed to" in refused(invited, tmp_path, study=str(tmp_path / "study.yaml"))


def test_join_says_no_to_each_item_that_is_not_right(invited: Federation, tmp_path: Path) -> None:
    own = tmp_path / "own.yaml"
    policy = {"privacy": {"public": True, "release": ["scalar", "count"]}}
    own.write_text(yaml.safe_dump({"data": {"layout": "chexpert", "root": "."}} | policy), encoding="utf-8")
    words = (
        "--invitation",
        kit_of(invited, "north").parent,
        "--digest",
        "000000000000",
        "--key",
        key_of(invited, "east"),
    )
    done = fdamed("join", *words, "--data", own, "--out", tmp_path / "site.yaml", cwd=tmp_path)
    lines = [line.split()[0] for line in done.stdout.splitlines()]
    assert done.returncode == 2 and lines == ["no", "yes", "yes", "no", "yes", "no"]
    assert "`runs.fedavg` may ask for weights" in done.stdout and not (tmp_path / "site.yaml").exists()


def test_the_lead_has_no_key_of_a_hospital(invited: Federation) -> None:
    """Nor one of the authority, with which it could sign another certificate later."""
    lead = {path.relative_to(invited.folder / "kits").parts[0] for path in (invited.folder / "kits").rglob("*.key")}
    assert lead == {"server", "lead@fdamed.local"}
    secrets = [key_of(invited, name).read_bytes() for name in HOSPITALS]
    files = [p.read_bytes() for p in (invited.folder / "kits").rglob("*") if p.is_file()]
    assert not any(secret in content for secret in secrets for content in files)
    signers = [content for content in files if b"PRIVATE KEY" in content]
    assert len(signers) == len(lead) and all(
        stat.S_IMODE(key_of(invited, n).stat().st_mode) == 0o600 for n in HOSPITALS
    )
    assert stat.S_IMODE((kit_of(invited, "north") / "startup" / "client.key").stat().st_mode) == 0o600


def test_a_request_of_another_hospital_or_without_its_own_signature_is_refused(
    invited: Federation, tmp_path: Path
) -> None:
    request = invited.folder / "requests" / "north.csr"
    assert shown(requested(request, "north")) == shown(public_key(key_of(invited, "north")))
    with pytest.raises(FdamedError, match="not that of east: O=fdamed,CN=north"):
        requested(request, "east")
    with pytest.raises(FdamedError, match="there is no request of west"):
        requested(tmp_path / "west.csr", "west")
    for name, content in {"text": b"no request", "forged": _with_another_key(request)}.items():
        (tmp_path / f"{name}.csr").write_bytes(content)
        with pytest.raises(FdamedError, match=r"no request|not signed with"):
            requested(tmp_path / f"{name}.csr", "north")


def test_a_key_is_made_once_and_its_digits_are_shown(tmp_path: Path) -> None:
    done = fdamed("request", "--client", "west", cwd=tmp_path)
    assert done.returncode == 0 and shown(public_key(tmp_path / "west.key")) in done.stdout
    again = fdamed("request", "--client", "west", cwd=tmp_path)
    assert again.returncode == 2 and "there is a key already" in again.stderr


def _with_another_key(request: Path) -> bytes:
    """The request with one bit of its public key changed: nobody has that private key."""
    content = bytearray(x509.load_pem_x509_csr(request.read_bytes()).public_bytes(Encoding.DER))
    content[200] ^= 1
    return b"-----BEGIN CERTIFICATE REQUEST-----\n" + b64encode(content) + b"\n-----END CERTIFICATE REQUEST-----\n"


def test_the_policies_of_every_kit_are_closed(invited: Federation) -> None:
    """FLARE's own let the lead bring code, read logs and stop a hospital's client."""
    for kit in (*(kit_of(invited, name) for name in ("north", "east", "south")), invited.folder / "kits" / "server"):
        resources, rights = (
            json.loads((kit / "local" / f"{n}.json").read_text()) for n in ("resources", "authorization")
        )
        assert resources["class_list_enforcement_mode"] == "enforce" and resources["allow_log_streaming"] is False
        assert all(path.startswith("fdamed.") for path in resources["class_allow_list"])
        assert rights["permissions"] == {"lead": {"submit_job": "any", "manage_job": "n:submitter", "view": "any"}}
        assert not any("log_stream" in c["id"] or "log_receiver" in c["id"] for c in resources["components"])


def test_an_invitation_has_nothing_of_the_leads_folders_and_of_other_hospitals(invited: Federation) -> None:
    folder = invited.folder / "kits" / "invitations" / "north"
    texts = [p.read_text(encoding="utf-8") for p in folder.rglob("*") if p.is_file()]
    assert not any(str(invited.folder) in text for text in texts)
    page = (folder / "what_leaves.md").read_text(encoding="utf-8")
    assert "| fedavg | FedAvg | train_locally | count, scalar, weights |" in page
    assert "Its private key\nwas made there and stays there" in page


def test_the_servers_port_answers_nobody_without_the_studys_certificate(invited: Federation, tmp_path: Path) -> None:
    server, kit = invited.folder / "kits" / "server", kit_of(invited, "north") / "startup"
    make_request("north", tmp_path)
    Authority("apart").certify(tmp_path, "client", "north", public_key(tmp_path / "north.key"))
    with started(server):
        wait(lambda: _answered(invited.port, kit / "client.crt", kit / "client.key"), "the server did not start")
        assert not _answered(invited.port, tmp_path / "client.crt", tmp_path / "north.key")
        assert not _answered(invited.port)


def _answered(port: int, *certificate: Path) -> bool:
    """Whether the server goes on after the handshake; with TLS 1.3 it refuses a certificate only then."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    if certificate:
        context.load_cert_chain(*certificate)
    try:
        with socket.create_connection(("localhost", port), 2) as plain, context.wrap_socket(plain) as line:
            return line.recv(1) != b""
    except TimeoutError:
        return True
    except OSError:
        return False
