"""The kits of NVIDIA FLARE: certificates and addresses, with closed policies in place of FLARE's open ones."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml

from fdamed.core.errors import FdamedError
from fdamed.core.files import private, write_json, write_text
from fdamed.pipeline.hospitals.authority import Authority, requested

LEAD = "lead@fdamed.local"
"""The name of the study's lead in its certificate."""
MINUTE = "%Y-%m-%d %H:%M"
GONE = 60
"""Seconds without a sign of a hospital after which the server counts it as gone."""
ALLOWED = {
    "client": ["fdamed.federation.transport.flare.forwarder.Forwarder"],
    "server": ["fdamed.cli.flare_loop.Loop"],
}
"""What a job may name: FLARE builds no other class, neither here nor there."""
CLIENT_COMPONENTS = [
    {
        "id": "resource_manager",
        "path": "nvflare.app_common.resource_managers.gpu_resource_manager.GPUResourceManager",
        "args": {"num_of_gpus": 0, "mem_per_gpu_in_GiB": 0},
    },
    {
        "id": "resource_consumer",
        "path": "nvflare.app_common.resource_consumers.gpu_resource_consumer.GPUResourceConsumer",
        "args": {},
    },
    {
        "id": "process_launcher",
        "path": "nvflare.app_common.job_launcher.client_process_launcher.ClientProcessJobLauncher",
        "args": {},
    },
]
RIGHTS = {
    "format_version": "1.0",
    "permissions": {"lead": {"submit_job": "any", "manage_job": "n:submitter", "view": "any"}},
}
"""What the lead may do: submit, list and stop its own jobs. No code of its own, no shell, no operation of hospitals."""


def provision(study: str, host: str, port: int, requests: Mapping[str, Path], folder: Path) -> Path:
    """Make a kit for the server, the lead and every hospital that has requested a certificate; the folder with them."""
    keys = {client: requested(path, client) for client, path in requests.items()}
    people: list[dict[str, Any]] = [{"name": host, "type": "server", "org": "fdamed", "fed_learn_port": port}]
    people += [{"name": client, "type": "client", "org": "fdamed"} for client in requests]
    people.append({"name": LEAD, "type": "admin", "org": "fdamed", "role": "lead"})
    builder = "nvflare.lighter.impl"
    project = {
        "api_version": 3,
        "name": study,
        "description": "a study of fdamed",
        "participants": people,
        "builders": [
            {"path": f"{builder}.workspace.WorkspaceBuilder", "args": {"template_file": ["master_template.yml"]}},
            {"path": f"{builder}.static_file.StaticFileBuilder", "args": {"config_folder": "config", "scheme": "tcp"}},
        ],
    }
    private(folder)
    write_text(folder / "project.yml", yaml.safe_dump(project, sort_keys=False))
    command = [str(Path(sys.executable).with_name("nvflare")), "provision", "-p", "project.yml", "-w", "."]
    if not Path(command[0]).exists():
        fix = "Install it: pip install 'fdamed[network]', or `make network` in the clone."
        raise FdamedError("NVIDIA FLARE is not installed", command[0], fix)
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    made = sorted((folder / study).glob("prod_*"))
    if done.returncode or not made:
        why = " ".join((done.stderr or done.stdout).split())[-300:]
        raise FdamedError(f"NVIDIA FLARE made no kits: {why}", str(folder), "Remove the folder and try again.")
    authority = Authority(study)
    authority.certify(made[-1] / host / "startup", "server", host)
    authority.certify(made[-1] / LEAD / "startup", "client", LEAD, title="lead")
    for client, key in keys.items():
        authority.certify(made[-1] / client / "startup", "client", client, key)
    return made[-1]


def close_kit(kit: Path) -> None:
    """Write the closed policies into a kit: what FLARE ships lets the lead run code and read logs of a hospital."""
    role = "server" if (kit / "startup" / "fed_server.json").exists() else "client"
    local = private(kit / "local")
    resources: dict[str, Any] = {
        "format_version": 2,
        "class_list_enforcement_mode": "enforce",
        "class_allow_list": ALLOWED[role],
        "allow_log_streaming": False,
    }
    write_json(local / "authorization.json", RIGHTS)
    if role == "client":
        write_json(
            local / "resources.json", resources | {"client": {"retry_timeout": 30}, "components": CLIENT_COMPONENTS}
        )
        return
    default = json.loads((local / "resources.json.default").read_text(encoding="utf-8"))
    shared = "/tmp/nvflare"  # noqa: S108  (FLARE's own default, which other users can enter)
    text = json.dumps(default | resources).replace(shared, str(kit.resolve() / "store"))
    closed = json.loads(text)
    closed["servers"][0]["heart_beat_timeout"] = GONE
    closed["components"] = [c for c in closed["components"] if c["id"] != "log_receiver"]
    write_json(local / "resources.json", closed)


def fingerprint_of(certificate: Path) -> str:
    """SHA-256 of a certificate's file."""
    if not certificate.is_file():
        fix = "Ask the study's lead for the invitation again."
        raise FdamedError("the kit has no such certificate", str(certificate), fix)
    return hashlib.sha256(certificate.read_bytes()).hexdigest()


def check_kit(kit: Path, client: str, authority: str) -> None:
    """Raise unless a hospital's kit is its own, and of the study that it has agreed to."""
    if fingerprint_of(kit / "startup" / "rootCA.pem") != authority:
        raise FdamedError(
            "the kit's server is signed by another authority than the one this hospital has agreed to",
            str(kit),
            "Do not connect. Ask the study's lead; `fdamed join` agrees to a new invitation.",
        )
    check_valid(kit / "startup" / "client.crt")
    owner = common_name(kit / "startup" / "client.crt")
    if owner != client:
        raise FdamedError(
            f"the kit's certificate is that of {owner!r}, not of {client!r}", str(kit), "Use your own kit."
        )


def check_valid(certificate: Path, now: datetime | None = None) -> None:
    """Raise unless a certificate is valid by this machine's clock."""
    now, found = now or datetime.now(UTC), _certificate(certificate)
    begin, end = found.not_valid_before_utc, found.not_valid_after_utc
    if not begin <= now <= end:
        raise FdamedError(
            f"the certificate is valid from {begin:{MINUTE}} to {end:{MINUTE}} UTC, and it is {now:{MINUTE}} by this "
            "machine's clock",
            str(certificate),
            "Set the clock (a time server), or ask the study's lead for a new invitation.",
        )


def common_name(certificate: Path) -> str:
    """Whose certificate it is."""
    from cryptography.x509.oid import NameOID

    found = _certificate(certificate).subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    return str(found[0].value) if found else ""


def certified_key(certificate: Path) -> Any:
    """The public key that a certificate is for."""
    return _certificate(certificate).public_key()


def _certificate(path: Path) -> Any:
    from cryptography import x509

    fingerprint_of(path)
    return x509.load_pem_x509_certificate(path.read_bytes())
