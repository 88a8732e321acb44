"""The report in a real browser, under its own content security policy: sorting, zoom, filters, dark mode, a phone."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

from fdamed.cli.main import main
from tests.support.browser import CHROMIUM, Page, browser
from tests.support.run_folders import CLIENTS, note_by_round, write_absences, write_predictions, write_study

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")
ACCESSIBLE = (Path(__file__).parents[1] / "support" / "accessible.js").read_text(encoding="utf-8")
SHOW_ALL = (
    "document.querySelectorAll('details').forEach((d) => { d.open = true; });"
    "document.querySelectorAll('section').forEach((s) => { s.style.contentVisibility = 'visible'; });"
)
"""Sections out of sight are not laid out; an inspector wants all of them."""


@pytest.fixture(scope="module")
def tab() -> Iterator[Page]:
    with browser() as opened:
        yield opened


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twelve runs at three targets."""
    cut = {"by": "condition", "clients": dict(list(CLIENTS.items())[:3]), "target": "each"}
    runs = {f"run{i:02}": {"method": "fedavg"} for i in range(12)}
    config = write_study(tmp_path_factory.mktemp("study"), runs=runs, split=cut, train={"rounds": 4}, seeds=[0, 1])
    assert main(["report", "--config", str(config)]) == 0
    return config.parent / "report/index.html"


@pytest.fixture(scope="module")
def rich(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sweeps over one and two options, auxiliary tasks, absences, weights, cosines, an audit."""
    heads: dict[str, object] = {h: {"method": "finetune", "auxiliary": {"heads": [h]}} for h in ("sex", "age")}
    runs: dict[str, object] = {
        "fedavg": {},
        "finetune": {},
        "gp": {},
        "oracle": {},
        "a_run_with_quite_a_long_name_for_a_phone": {"method": "gp", "sweep": {"beta": [0, 0.2, 0.4, 0.6, 0.8, 1]}},
        "two": {"method": "gp", "sweep": {"beta": [0.2, 0.5, 0.8], "labeled": [10, 20, 50, 100]}},
    }
    settings = {"model": {"heads": ["sex", "age"]}, "train": {"rounds": 4}, "seeds": [0, 1]}
    config = write_study(tmp_path_factory.mktemp("rich"), runs=runs | heads, **settings)
    write_absences(config.parent / "runs/gp/NC/0", (2, "LO", "update rejected: g has entries that are not finite"))
    note_by_round(config.parent / "runs/gp/NC/0", weight__LO=0.4, weight__CO=0.6)
    for run in ("fedavg", "finetune", "gp", "oracle"):
        for seed in (0, 1):
            write_predictions(config.parent, run, "NC", seed)
    assert main(["audit", "--config", str(config), "--target", "NC"]) == 0
    assert main(["report", "--config", str(config)]) == 0
    return config.parent / "report/index.html"


def views(tab: Page) -> list[str]:
    """Targets of which something is shown."""
    shown = "[...new Set([...document.querySelectorAll('.view')].filter((v) => !v.hidden).map((v) => v.dataset.view))]"
    return list(tab.see(shown))


@pytest.mark.parametrize("which", ["page", "rich"])
@pytest.mark.parametrize("dress", ["light", "dark"])
def test_a_screen_reader_a_keyboard_and_weak_eyes_find_their_way(
    which: str, dress: str, tab: Page, request: pytest.FixtureRequest
) -> None:
    tab.open(request.getfixturevalue(which), prefers_color_scheme=dress)
    assert tab.complaints == []
    tab.see(SHOW_ALL)
    assert tab.see(ACCESSIBLE) == []


@pytest.mark.parametrize("which", ["page", "rich"])
def test_no_part_is_wider_than_a_phone(which: str, tab: Page, request: pytest.FixtureRequest) -> None:
    tab.open(request.getfixturevalue(which), width=390, height=844)
    tab.see(SHOW_ALL)
    assert tab.see("document.documentElement.scrollWidth") <= 390
    assert tab.complaints == []


CUT_OFF = """[...document.querySelectorAll('main .scroll, header, .cards, main pre')]
  .filter((e) => e.scrollWidth > e.clientWidth + 1).map((e) => e.outerHTML.slice(0, 200))"""


@pytest.mark.parametrize("dress", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 1000, 400])
@pytest.mark.parametrize("which", ["page", "rich"])
def test_nothing_is_cut_off_at_any_width(
    which: str, width: int, dress: str, tab: Page, request: pytest.FixtureRequest
) -> None:
    tab.open(request.getfixturevalue(which), width=width, prefers_color_scheme=dress)
    tab.see(SHOW_ALL)
    tab.see("new Promise((done) => setTimeout(done, 200))")  # tables are fitted when they are laid out
    assert tab.see(CUT_OFF) == []
    assert tab.see("document.documentElement.scrollWidth") <= width


def test_a_table_that_is_too_wide_folds_its_last_columns_and_shows_them_when_asked(page: Path, tab: Page) -> None:
    tab.open(page, width=400, height=844)
    heads = "[...document.querySelectorAll('#scores .view:not([hidden]) thead th')].filter((h) => h.offsetWidth)"
    few = tab.see(f"{heads}.map((h) => h.textContent.trim())")
    text = tab.see("document.querySelector('#scores .columns').textContent")
    assert few[:2] == ["Run", "AUC"] and "more column" in text and "MB sent" in text
    tab.click("#scores .columns button")
    every = tab.see(f"{heads}.map((h) => h.textContent.trim())")
    assert every[: len(few)] == few and every[-1] == "MB sent"
    assert tab.see("document.querySelector('#scores .columns')") is None
    tab.open(page, width=1280)
    assert tab.see("document.querySelector('#scores .columns')") is None, "there is room for all"


def test_the_policy_lets_drawings_have_their_paint_and_nothing_foreign_in(page: Path, tab: Page) -> None:
    tab.open(page)
    tab.see(SHOW_ALL)
    strokes = tab.see("[...document.querySelectorAll('#rounds figure .line')].map((l) => getComputedStyle(l).stroke)")
    assert strokes[0] == "rgb(0, 114, 178)" and len(set(strokes)) == 8
    inserted = (
        "const s = document.createElement('script'); s.textContent = 'window.ran = 1'; document.body.append(s);"
        "document.body.insertAdjacentHTML('beforeend', '<p id=foreign style=\"color:red\">x</p><img src=\"x.png\">');"
        "[window.ran ?? 0, getComputedStyle(document.getElementById('foreign')).color]"
    )
    ran, color = tab.see(inserted)
    assert ran == 0 and color != "rgb(255, 0, 0)"
    tab.see("new Promise((done) => setTimeout(done, 50))")
    assert sum("Content Security Policy" in text for text in tab.complaints) >= 2


def test_a_table_sorts_by_click_and_by_key(page: Path, tab: Page) -> None:
    tab.open(page)
    names = "[...document.querySelectorAll('#scores .view:not([hidden]) tbody th')].map((t) => t.dataset.value)"
    sorts = "[...document.querySelectorAll('#scores .view:not([hidden]) th')].map((t) => t.getAttribute('aria-sort'))"
    best_first = tab.see(names)
    tab.click("#scores thead button")
    assert tab.see(names) == sorted(best_first)
    assert [s for s in tab.see(sorts) if s] == ["ascending"]
    tab.press("Enter")
    assert tab.see(names) == sorted(best_first, reverse=True)
    assert [s for s in tab.see(sorts) if s] == ["descending"]
    tab.see("document.querySelectorAll('#scores thead button')[2].focus()")
    tab.press(" ")
    assert tab.see(names) == best_first


def test_tables_without_hidden_values_sort_by_the_numbers_they_show(rich: Path, tab: Page) -> None:
    tab.open(rich)
    tab.click("#cohort thead th:nth-child(2) button")
    images = tab.see(
        "[...document.querySelectorAll('#cohort tbody td:nth-child(2)')].map((t) => parseInt(t.textContent))"
    )
    assert images == sorted(images, reverse=True) and len(set(images)) == 5
    tab.click("#cohort thead th:nth-child(2) button")
    assert tab.see("parseInt(document.querySelector('#cohort tbody td:nth-child(2)').textContent)") == min(images)


def test_runs_are_switched_on_and_off_in_every_drawing(page: Path, tab: Page) -> None:
    tab.open(page)
    off = "[...new Set([...document.querySelectorAll('g.off')].map((g) => g.dataset.run))].length"
    pressed = "document.querySelectorAll('[data-toggle][aria-pressed=false]').length"
    assert tab.see(off) == tab.see(pressed) == 4
    tab.click("[data-toggle][aria-pressed=true]")
    assert tab.see(off) == tab.see(pressed) == 5
    tab.click("[data-all=true]")
    assert tab.see(off) == tab.see(pressed) == 0


def test_one_target_is_shown_at_a_time(page: Path, tab: Page) -> None:
    tab.open(page)
    assert views(tab) == ["0"]
    tab.click('.tabs [data-view="2"]')
    assert views(tab) == ["2"]
    assert tab.see("document.querySelector('.tabs [aria-pressed=true]').textContent") == "CO"


def test_a_figure_is_enlarged_moved_and_closed_with_the_keyboard(rich: Path, tab: Page) -> None:
    tab.open(rich)
    box = "document.querySelector('#stage svg').getAttribute('viewBox').split(' ').map(Number)"
    tab.see("document.querySelector('#rounds .enlarge').focus()")
    tab.press("Enter")
    assert tab.see("document.getElementById('lens').open && document.activeElement.id") == "stage"
    assert tab.see("document.getElementById('lens-title').textContent") == "AUC at NC by round"
    whole = tab.see(box)
    tab.press("+")
    near = tab.see(box)
    assert near[2] == pytest.approx(whole[2] / 1.4, rel=0.01)
    assert near[0] + near[2] / 2 == pytest.approx(whole[0] + whole[2] / 2, abs=0.1), "the middle stays where it is"
    tab.press("ArrowRight")
    assert tab.see(box)[0] == pytest.approx(near[0] + near[2] / 10, abs=0.1)
    tab.press("0")
    assert tab.see(box) == whole
    tab.press("Escape")
    assert tab.see("document.getElementById('lens').open") is False
    assert tab.see("document.activeElement.className") == "enlarge"


def test_a_figure_is_enlarged_by_a_click_and_zoomed_with_the_wheel(rich: Path, tab: Page) -> None:
    tab.open(rich)
    tab.click("#efficiency svg.chart")
    assert tab.see("document.getElementById('lens').open") is True
    box = "document.querySelector('#stage svg').getAttribute('viewBox').split(' ').map(Number)[2]"
    before = tab.see(box)
    tab.ask("Input.dispatchMouseEvent", type="mouseWheel", x=600, y=500, deltaX=0, deltaY=-120)
    assert tab.see(f"new Promise((done) => setTimeout(() => done({box}), 100))") < before
    tab.click("[data-zoom=close]")
    assert tab.see("document.getElementById('lens').open") is False
    assert tab.complaints == []


def test_the_dress_follows_the_machine_until_the_reader_chooses(page: Path, tab: Page) -> None:
    ground = "getComputedStyle(document.body).backgroundColor"
    tab.open(page, prefers_color_scheme="dark")
    tab.see("localStorage.clear()")
    tab.open(page, prefers_color_scheme="dark")
    assert tab.see(ground) == "rgb(20, 23, 27)"
    tab.click("#theme")
    assert (tab.see("theme.textContent"), tab.see(ground)) == ("Theme: light", "rgb(255, 255, 255)")
    tab.open(page, prefers_color_scheme="dark")
    assert tab.see(ground) == "rgb(255, 255, 255)", "the choice is remembered"
    tab.click("#theme")
    tab.click("#theme")
    assert tab.see("theme.textContent") == "Theme: automatic"
    tab.open(page, prefers_color_scheme="light")
    assert tab.see(ground) == "rgb(255, 255, 255)"


def test_the_contents_fold_away_on_a_phone_and_lead_to_their_sections(rich: Path, tab: Page) -> None:
    tab.open(rich)
    assert tab.see("document.querySelector('nav details').open") is True
    tab.open(rich, width=390, height=844)
    assert tab.see("document.querySelector('nav details').open") is False
    tab.click("nav summary")
    tab.click('nav a[href="#communication"]')
    assert tab.see("document.querySelector('nav details').open") is False
    top = "document.getElementById('communication').getBoundingClientRect().top"
    assert 0 <= tab.see(f"new Promise((done) => setTimeout(() => done({top}), 100))") < 100


def test_long_tables_are_cut_short_and_can_be_searched(rich: Path, tab: Page) -> None:
    tab.open(rich)
    tab.see("document.querySelector('#communication details').open = true")
    shown = "[...document.querySelectorAll('#communication tbody tr')].filter((r) => !r.hidden).length"
    every = tab.see("document.querySelectorAll('#communication tbody tr').length")
    assert every > 25 and tab.see(shown) == 25
    tab.click("#communication .search button")
    assert tab.see(shown) == every
    tab.click("#communication .search input")
    for letter in "fedavg":
        tab.press(letter)
    assert tab.see(shown) == 2
    assert tab.see("document.querySelector('#communication [role=status]').textContent") == "2 of 2 that match"


def test_on_paper_nothing_is_folded_and_everything_is_light(page: Path, tab: Page, tmp_path: Path) -> None:
    tab.open(page, prefers_color_scheme="dark")
    folded = "document.querySelectorAll('main details:not([open])').length"
    tab.see(f"addEventListener('beforeprint', () => {{ window.folded = {folded}; }})")
    tab.printed(tmp_path / "page.pdf")
    assert (tmp_path / "page.pdf").read_bytes().startswith(b"%PDF")
    assert tab.see("window.folded") == 0
    tab.ask("Emulation.setEmulatedMedia", media="print")
    assert tab.see("getComputedStyle(document.querySelector('nav')).display") == "none"
    assert tab.see("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    hidden = "[...document.querySelectorAll('.view')].filter((v) => getComputedStyle(v).display === 'none').length"
    assert tab.see(hidden) == 0, "paper has no switches: all targets are there"
    tab.ask("Emulation.setEmulatedMedia", media="")
