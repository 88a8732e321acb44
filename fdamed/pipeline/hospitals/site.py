"""The file of one hospital in a study over a network (site.yaml): its data, its policy and its keys."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, ValidationError

from fdamed import __version__
from fdamed.config.base import Name, Strict, without_defaults
from fdamed.config.cross_checks import FIX
from fdamed.config.datasets import Data
from fdamed.config.error_texts import explain
from fdamed.config.loader import NO_DATA, catalog, load, parse, read
from fdamed.config.privacy import Privacy
from fdamed.config.split import Split
from fdamed.config.study import Config
from fdamed.config.train import Network
from fdamed.core.errors import FdamedError
from fdamed.core.files import digest

SHARED = ("study", "split", "image", "model", "train", "runs", "seeds", "audit")
"""Sections of a configuration that every hospital of a study must have the same."""


class Site(Strict):
    """One hospital in a study over a network. It stays there; nobody else reads it."""

    study: str
    """The study's configuration, as it came with the invitation."""
    client: Name
    """Which of the study's hospitals this is."""
    digest: str
    """The digest of the study that this hospital has agreed to; questions of another one are refused."""
    kit: str
    """Folder with this hospital's certificate, key and the address of the server, from the invitation."""
    authority: str
    """SHA-256 of the certificate that signed those of the server and of all hospitals."""
    data: Data
    """This hospital's images: the same section as in a study."""
    privacy: Privacy = Privacy()
    """This hospital's policy. It holds here, whatever the study's says."""
    methods: tuple[str, ...] | None = Field(None, examples=[["fedavg", "gp"]])
    """Methods that this hospital takes part in. Default: all that its policy allows."""
    results: str = "results"
    """Folder of this hospital's files."""
    threads: Annotated[int, Field(ge=1)] | None = None
    """CPU threads of its training. Default: the study's; another number gives other bits."""


def load_site(path: Path) -> Site:
    """Read and check the file of a hospital; relative paths in it begin at the file."""
    try:
        site = Site.model_validate(read(path))
    except ValidationError as error:
        raise FdamedError(explain(error), str(path), FIX) from None
    unknown = [name for name in site.methods or () if name not in catalog()]
    if unknown:
        fix = "`fdamed methods` lists the methods."
        raise FdamedError(f"there is no method {', '.join(unknown)}", f"{path}: methods", fix)
    return site.model_copy(update={key: str(path.parent / getattr(site, key)) for key in ("study", "kit", "results")})


def shared_study(path: Path) -> Config:
    """The study of an invitation: what all hospitals share, which is everything but the data."""
    return parse(read(path) | {"data": NO_DATA}, str(path))


def study_of(site: Site) -> Config:
    """The study's configuration, if it is the one that the hospital has agreed to."""
    study = shared_study(Path(site.study))
    found = study_digest(study)
    if found != site.digest:
        raise FdamedError(
            f"the study's digest is {found}, this hospital has agreed to {site.digest}",
            site.study,
            "Get the study's file again from its lead, or `fdamed join` to agree to the new one.",
        )
    if site.client not in study.split.clients:
        known = ", ".join(study.split.clients)
        raise FdamedError(f"the study has no hospital {site.client}", "client", f"Choose one of: {known}.")
    return study


def network_study(path: Path) -> tuple[Config, Network]:
    """The lead's study and its `network` section."""
    config = load(path)
    if config.network is None or config.train.transport != "network":
        fix = "Add `network: {host: ...}` and `train: {transport: network}` to the study."
        raise FdamedError("this is not a study over a network", str(path), fix)
    return config, config.network


def study_digest(config: Config) -> str:
    """Twelve hex digits of what all hospitals of a study must have the same, and of fdamed's version."""
    sections = without_defaults(config)
    return digest([__version__, *(sections.get(name) for name in SHARED)])


def own_config(site: Site, study: Config) -> Config:
    """The study as this hospital runs it: with its own data and policy."""
    raw: dict[str, Any] = without_defaults(study, exclude={"phantom", "tracking", "advise"})
    raw |= {"data": without_defaults(site.data), "results": site.results, "privacy": without_defaults(site.privacy)}
    return Config.model_validate(raw)


def own_split(config: Config, client: str) -> Split:
    """The study's split for one hospital, whose patients are all its own."""
    if not isinstance(config.split, Split):
        fix = "Public sets are partitioned in one place: run them in process."
        raise FdamedError("a study over a network is of radiographs", "split", fix)
    return config.split.model_copy(update={"clients": {client: config.split.clients[client]}})
