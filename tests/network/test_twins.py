"""Two machines that serve under one hospital's name: the study goes on with one of them, or ends with a clear line."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.network.conftest import free_port
from tests.support.networks import HOSPITALS, TARGET, Federation

pytest.importorskip("nvflare", reason="the extra `network` is not installed: make test-network")
pytestmark = pytest.mark.network


@pytest.fixture(scope="module")
def twins(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    """Three hospitals, and a copy of north's file, kit and data in another folder."""
    made = Federation(tmp_path_factory.mktemp("twins"), free_port())
    made.prepare()
    north, twin = made.folder / "north", made.folder / "twin"
    shutil.copytree(north, twin)
    site = yaml.safe_load((twin / "site.yaml").read_text(encoding="utf-8"))
    shutil.copytree(twin / site["kit"], twin / "kit")
    site |= {"kit": "kit"}
    site["data"]["root"] = str(twin / "data")
    (twin / "site.yaml").write_text(yaml.safe_dump(site), encoding="utf-8")
    try:
        for name in (*HOSPITALS, "twin"):
            made.serve(name)
        yield made
    finally:
        made.stop()


def test_a_second_hospital_of_the_same_name(twins: Federation) -> None:
    lead = twins.lead("--runs", f"fedavg/{TARGET}/0")
    end = time.monotonic() + 400
    while lead.poll() is None and time.monotonic() < end:
        time.sleep(0.5)
    print(lead.poll(), twins.log("lead"), twins.log("north"), twins.log("twin"), sep="\n=====\n")
    for kit in (twins.folder / "kits" / "server", twins.folder / "twin" / "kit", twins.folder / "kits" / "invitations" / "north" / "kit"):
        print(kit, Path(kit / "engine.log").read_text()[-3000:])
    raise AssertionError
