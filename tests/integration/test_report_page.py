"""The report in a real browser: its script runs under its own policy, tables sort, runs toggle, targets switch."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

from run_folders import PARTIES, note_by_round, write_absences, write_study

from fdamed.cli import main

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")

FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update", "--enable-logging=stderr", "--log-level=0"),
)


def browse(page: Path, scratch: Path, *flags: str) -> tuple[str, list[str]]:
    """The page's tree after its script ran, and what the browser complained about."""
    command = [str(CHROMIUM), *FLAGS, f"--user-data-dir={scratch / 'browser'}", *flags, page.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=90, check=True)
    return done.stdout, [line for line in done.stderr.splitlines() if "CONSOLE" in line]


def clicking(page: Path, script: str) -> Path:
    """A copy that clicks by itself: its policy is taken out, for it refuses foreign scripts."""
    text = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", page.read_text(encoding="utf-8"))
    copy = page.with_name("clicked.html")
    copy.write_text(text.replace("</body>", f"<script>{script}</script></body>"), encoding="utf-8")
    return copy


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("study")
    cut = {"by": "condition", "parties": dict(list(PARTIES.items())[:3]), "target": "each"}
    runs = {f"run{i:02}": {"method": "fedavg"} for i in range(12)}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fdamed.report.pictures.pictures", lambda *_: iter(()))
        config = write_study(folder, runs=runs, cut=cut, train={"rounds": 4}, seeds=[0, 1])
        assert main(["report", "--config", str(config)]) == 0
    return config.parent / "report/index.html"


def test_the_script_runs_under_the_pages_own_policy(page: Path, tmp_path: Path) -> None:
    tree, complaints = browse(page, tmp_path, "--dump-dom")
    assert complaints == []
    assert tree.count('class="view" data-view="0" hidden') == 0
    assert tree.count('class="view" data-view="1" hidden') == 3
    off = set(re.findall(r'<g data-run="(\d+)" class="off">', tree))
    pressed = set(re.findall(r'data-toggle="(\d+)" aria-pressed="false"', tree))
    assert off == pressed
    assert len(off) == 4


def test_a_click_sorts_the_table_toggles_a_run_and_switches_the_target(page: Path, tmp_path: Path) -> None:
    script = (
        "document.querySelector('#scores thead button').click();"
        "document.querySelector('[data-toggle][aria-pressed=true]').click();"
        "document.querySelector('.tabs [data-view=\"2\"]').click();"
    )
    before = page.read_text(encoding="utf-8")
    best = re.findall(r'data-toggle="(\d+)"', before)[0]
    tree, complaints = browse(clicking(page, script), tmp_path, "--dump-dom")
    assert complaints == []
    first = tree[tree.index('id="scores"') : tree.index("</table>")]
    names = re.findall(r'<th scope="row" data-value="(run\d+)"', first)
    assert names == sorted(names)
    assert len(names) == 12
    assert 'aria-sort="ascending"' in first and 'aria-sort="descending"' not in first
    assert f'data-toggle="{best}" aria-pressed="false"' in tree
    assert f'<g data-run="{best}" class="off">' in tree
    assert tree.count('class="view" data-view="2" hidden') == 0
    assert tree.count('class="view" data-view="0" hidden') == 3


@pytest.fixture(scope="module")
def rich(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sweeps over one and two options, auxiliary tasks, absences, weights."""
    heads: dict[str, object] = {h: {"method": "finetune", "auxiliary": {"heads": [h]}} for h in ("sex", "age")}
    runs = {
        "fedavg": {},
        "finetune": {},
        "gp": {},
        "a_run_with_quite_a_long_name_for_a_phone": {"method": "gp", "sweep": {"beta": [0, 0.2, 0.4, 0.6, 0.8, 1]}},
        "two": {"method": "gp", "sweep": {"beta": [0.2, 0.5, 0.8], "labelled": [10, 20, 50, 100]}},
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fdamed.report.pictures.pictures", lambda *_: iter(()))
        folder = tmp_path_factory.mktemp("rich")
        settings = {"model": {"heads": ["sex", "age"]}, "train": {"rounds": 4}, "seeds": [0, 1]}
        config = write_study(folder, runs=runs | heads, **settings)
        write_absences(config.parent / "runs/gp/NC/0", (2, "LO", "update rejected: g has entries that are not finite"))
        note_by_round(config.parent / "runs/gp/NC/0", weight__LO=0.4, weight__CO=0.6)
        assert main(["report", "--config", str(config)]) == 0
    return config.parent / "report/index.html"


def test_switches_of_swept_runs_work_inside_their_fold(rich: Path, tmp_path: Path) -> None:
    script = "document.querySelector('.legend details [data-toggle]').click();"
    tree, complaints = browse(clicking(rich, script), tmp_path, "--dump-dom")
    assert complaints == []
    fold = tree[tree.index("<details><summary>18 runs of sweeps") :]
    first = re.search(r'data-toggle="(\d+)" aria-pressed="true"', fold)
    assert first is not None
    assert f'<g data-run="{first[1]}" class="">' in tree
    assert len(re.findall(r'data-toggle="\d+" aria-pressed="false"', tree)) == 17


@pytest.mark.parametrize("which", ["page", "rich"])
def test_no_part_is_wider_than_a_phone(which: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    page: Path = request.getfixturevalue(which)
    frame = f'<iframe src="{page.as_uri()}" style="width:390px;height:900px;border:0"></iframe>'
    host = tmp_path / "phone.html"
    script = (
        "addEventListener('load', () => { const d = document.querySelector('iframe').contentDocument.documentElement;"
        "document.body.dataset.wide = d.scrollWidth; document.body.dataset.seen = d.clientWidth; });"
    )
    host.write_text(f"<body>{frame}<script>{script}</script></body>")
    tree, _ = browse(host, tmp_path, "--allow-file-access-from-files", "--dump-dom")
    found = re.search(r'data-wide="(\d+)" data-seen="(\d+)"', tree)
    assert found is not None
    assert int(found[1]) <= int(found[2])
