"""Validation of directions and replays on ordinary answers."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fdamed.config.loader import load, parse
from fdamed.config.train import Directions, Validation
from fdamed.core.counts import write_counts
from fdamed.federation.messages import Count, message
from fdamed.federation.method import Model
from fdamed.federation.server import Server
from fdamed.federation.validation.directions import (
    DirectionHistory,
    Similarity,
    layer_cosines,
    limits,
    peers,
    similarities,
    total_variation,
)
from fdamed.federation.validation.robust import FEWEST
from fdamed.federation.validation.validator import Replays, Validator, digest
from fdamed.methods import scaffold
from fdamed.methods._shared.local_training import Moved, Trained, compute_update, train_locally
from fdamed.models.flat import Layout, layout_of
from fdamed.pipeline.clients import declare
from tests.support import federation as hospitals
from tests.support.attackers import ROBUST, SOURCES, TARGET
from tests.unit.test_privacy_policy import STUDY

ROOT = Path(__file__).resolve().parents[2]
LIMIT = -0.2
COMMON = torch.ones(6)
ROWS = [COMMON + 0.5 * torch.eye(6)[i] for i in range(4)]


def against(rows: list[Tensor], limit: float = LIMIT) -> list[str]:
    names = [str(i) for i in range(len(rows))]
    found = {names[i]: b for i, b in similarities(layer_cosines(rows, ()), peers(names, {}, None)).items()}
    return DirectionHistory().excluded(1, "step", "x", found, torch.tensor([limit]))


def test_a_source_that_points_against_all_others_is_found_only_where_these_agree() -> None:
    flipped = [*ROWS[:3], -ROWS[3]]
    assert against(ROWS) == []
    assert against(flipped) == ["3"]
    assert against(flipped[1:]) == []  # two others are no majority
    assert against(list(torch.eye(4))) == []
    assert against([*ROWS[:3], torch.zeros(6)]) == []  # who stands still points nowhere


def test_a_similarity_is_the_cosine_with_the_sum_of_the_directions_of_the_others() -> None:
    rows = [torch.tensor([1.0, 0.0]), torch.tensor([0.0, 2.0]), torch.tensor([3.0, 0.0]), torch.tensor([-1.0, 0.0])]
    found = similarities(layer_cosines(rows, ()), peers(list("abcd"), {}, None))
    assert found[3].cosine.tolist() == pytest.approx([-2 / 5**0.5])  # the others' directions add up to (2, 1)
    assert found[1].cosine.tolist() == pytest.approx([0.0], abs=1e-9)
    # Of (1, 0), (0, 1), (1, 0), each beside the other two: 1/sqrt(2), 0, 1/sqrt(2).
    assert found[3].agreement.tolist() == pytest.approx([0.5**0.5])


def test_layers_have_cosines_of_their_own_and_make_up_the_whole() -> None:
    a, b, x = torch.tensor([2.0, 1.0, 1.0, 5.0]), torch.tensor([2.0, 1.0, 3.0, 1.0]), torch.ones(4)
    cos = layer_cosines([a, b], [(0, 2), (2, 4)], x)
    # a - x = (1, 0 | 0, 4) and b - x = (1, 0 | 2, 0): one product of 1, norms sqrt(17) and sqrt(5).
    assert cos[:, 0, 1].tolist() == pytest.approx([1 / 85**0.5, 1.0, 0.0])
    assert torch.allclose(cos.diagonal(dim1=1, dim2=2), torch.ones(3, 2, dtype=torch.float64))
    assert layer_cosines([x, torch.zeros(4)], [])[0, 0, 1] == 0.0


def test_clients_are_compared_only_with_clients_of_similar_label_rates() -> None:
    shares = {"a": (0.5, 0.5), "b": (0.4, 0.6), "c": (0.3, 0.7), "d": (0.5, 0.5)}
    assert peers(["a", "b", "c", "d", "e"], shares, 0.1) == [[1, 3], [0, 2, 3], [1], [0, 1], []]
    assert peers(["a", "e"], shares, None) == [[1], [0]]


def test_two_classes_of_ten_at_each_client_make_nobody_alike() -> None:
    shares = {str(i): tuple(0.5 if k // 2 == i else 0.0 for k in range(10)) for i in range(5)}
    assert total_variation(shares["0"], shares["1"]) == 1.0
    assert peers(list(shares), shares, 0.1) == [[]] * 5


def excluded(*along: float, agreement: float = 0.5) -> list[list[str]]:
    known, limit = DirectionHistory(), torch.tensor([LIMIT])
    return [known.excluded(r, "step", "x", {"north": similarity(a, agreement)}, limit) for r, a in enumerate(along, 1)]


def similarity(along: float, agreement: float) -> Similarity:
    return Similarity(torch.tensor([along], dtype=torch.float64), torch.tensor([agreement], dtype=torch.float64))


def test_one_odd_round_of_an_honest_hospital_costs_it_nothing_and_a_second_does() -> None:
    assert excluded(0.3, -0.6, 0.3) == [[], [], []]
    assert excluded(0.3, -0.6, -0.6) == [[], [], ["north"]]


def test_a_source_that_is_opposed_from_the_first_round_is_excluded_at_once_and_returns_when_it_points_along() -> None:
    assert excluded(-0.5, -0.5, 0.4, 0.4) == [["north"], ["north"], ["north"], []]  # means -0.5, -0.5, -0.05, 0.175
    assert excluded(-0.1, -0.1) == [[], []]
    assert excluded(-0.5, agreement=0.1) == [[]]


def test_norms_and_directions_are_checked_only_where_a_study_asks_for_it() -> None:
    assert Validation().directions is None and Validation().norms is None
    assert (Directions().reject_below, Directions().label_rate_gap) == (-0.2, 0.1)


# --- layer by layer --------------------------------------------------------------------------------------------------


class Wide(nn.Module):
    """Many parameters in which honest hospitals have nothing in common, and a head."""

    def __init__(self, features: int = 256) -> None:
        super().__init__()
        self.body = nn.Linear(200, features)
        self.head = nn.Linear(features, 2)


def left_after(turned: slice | None, features: int = 256) -> set[str]:
    """Who is let in of four, all with a body of their own and much of a common head, one with a part turned round."""
    layout, generator = layout_of(Wide(features)), torch.Generator().manual_seed(1)
    common = torch.zeros(layout.size)
    common[200 * features + features :] = torch.randn(2 * features + 2, generator=generator)
    sent = {p: common + torch.randn(layout.size, generator=generator) for p in SOURCES}
    if turned is not None:
        sent["lyon"][turned] *= -1.0
    return accepted(validator(layout), {p: Moved(g=g, n=10, nominal_step=1.0, loss=0.5) for p, g in sent.items()})


def validator(layout: Layout) -> Validator:
    out = Validator(layout, TARGET, ROBUST)
    out.class_shares = dict.fromkeys(SOURCES, (0.5, 0.5))
    return out


def accepted(checks: Validator, answers: dict[str, Moved], round: int = 1) -> set[str]:
    question = Model(x=torch.full((checks.layout.size,), float(round)))
    return set(checks.check(round, compute_update, dict.fromkeys(answers, question), answers).accepted)


def test_where_whole_updates_have_nothing_in_common_a_layer_shows_who_points_the_other_way() -> None:
    everybody, others, head = set(SOURCES), set(SOURCES) - {"lyon"}, 256 * 201
    assert left_after(None) == everybody
    assert left_after(slice(None)) == others
    assert left_after(slice(head, None)) == others
    assert left_after(slice(0, head)) == everybody  # where nobody agrees nobody is against the others


def test_in_a_layer_of_a_few_numbers_random_opposition_is_tolerated() -> None:
    assert left_after(slice(None), features=4) == set(SOURCES)
    found = limits(LIMIT, [(0, 100), (100, 104), (104, 10_000)], 10_000).tolist()
    assert found == pytest.approx([LIMIT, -0.3, -1.5, LIMIT])


def test_an_excluded_source_stays_excluded_while_there_is_nobody_to_compare_with() -> None:
    layout, generator = layout_of(Wide()), torch.Generator().manual_seed(1)
    checks, common = validator(layout), torch.randn(layout.size, generator=generator)

    def round(number: int, *clients: str) -> set[str]:
        noise = {p: torch.randn(layout.size, generator=generator) for p in SOURCES}
        sent = {p: (common + noise[p]) * (-1.0 if p == "lyon" else 1.0) for p in clients}
        return accepted(checks, {p: Moved(g=g, n=10, nominal_step=1.0, loss=0.5) for p, g in sent.items()}, number)

    few = ("genoa", "lyon", "mallory")
    assert round(1, *few) == set(few)  # never compared, never excluded
    assert round(2, *SOURCES) == set(SOURCES) - {"lyon"}
    assert round(3, *few) == {"genoa", "mallory"}
    assert round(4, "lyon") == set()


def test_models_that_a_method_compares_as_a_whole_may_differ_in_a_layer() -> None:
    """SCAFFOLD's c - c_k turns single layers of honest models apart."""
    layout, generator = layout_of(Wide()), torch.Generator().manual_seed(1)
    common = torch.randn(layout.size, generator=generator)
    sent = {p: common + 0.1 * torch.randn(layout.size, generator=generator) for p in SOURCES}
    sent["lyon"][256 * 201 :] *= -1.0  # the head alone
    start, dc = torch.zeros(layout.size), torch.ones(layout.trainable)
    replies = {p: scaffold.Answer(x=x, dc=dc, n=10, loss=0.5) for p, x in sent.items()}
    ask = scaffold.Ask(x=start, c=dc, option=1, round=1, taken=0)
    verdict = validator(layout).check(1, scaffold.train_corrected, dict.fromkeys(SOURCES, ask), replies)
    assert set(verdict.accepted) == set(SOURCES)
    trained = {p: Trained(x=x, n=10, loss=0.5) for p, x in sent.items()}
    verdict = validator(layout).check(1, train_locally, dict.fromkeys(SOURCES, Model(x=start)), trained)
    assert set(verdict.accepted) == set(SOURCES) - {"lyon"}


# --- repeated answers ------------------------------------------------------------------------------------------------


@message
class Begin:
    """A question without a model."""

    frequencies: Count


def moved(*g: float) -> Moved:
    return Moved(g=torch.tensor(g).repeat(FEWEST), n=3, nominal_step=1.0, loss=0.5)


def asked(number: float) -> Model:
    return Model(x=torch.full((FEWEST,), number))


def test_an_old_answer_from_another_model_is_found_whatever_else_was_changed() -> None:
    known = Replays()
    assert known.fault(1, "north", "s", asked(1.0), moved(1.0, 2.0)) is None
    assert known.fault(2, "north", "s", asked(2.0), moved(1.0, 2.5)) is None
    again = dataclasses.replace(moved(1.0, 2.0), n=2, loss=0.1)
    assert known.fault(3, "north", "s", asked(3.0), again).why == "g is that of an earlier round, bit for bit"
    assert known.fault(3, "south", "s", asked(3.0), again) is None  # of another hospital
    assert known.fault(3, "north", "t", asked(3.0), again) is None  # to another step


def test_the_same_answer_from_the_same_model_is_no_fault() -> None:
    known = Replays()
    for round in (1, 2):  # a lost round is asked again
        assert known.fault(round, "north", "s", asked(1.0), moved(1.0, 2.0)) is None


def test_the_model_of_an_earlier_question_is_where_a_question_without_one_begins() -> None:
    known, nothing = Replays(), Begin(frequencies=1)
    rounds = [(1.0, 5.0, False), (1.0, 5.0, False), (2.0, 5.0, True), (2.0, 6.0, False)]
    for round, (model, answer, old) in enumerate(rounds, 1):
        known.fault(round, "north", "slope", asked(model), moved(float(round)))
        assert (known.fault(round, "north", "s", nothing, moved(answer)) is not None) == old


def test_a_hospital_that_has_not_moved_repeats_nothing() -> None:
    known = Replays()
    for round in (1, 2, 3):
        question = asked(float(round))
        assert known.fault(round, "north", "s", question, moved(0.0, 0.0)) is None
        assert known.fault(round, "north", "t", question, Trained(x=question.x, n=3, loss=0.5)) is None


def test_a_model_of_few_numbers_may_end_at_its_very_optimum_again_and_again() -> None:
    known = Replays()
    for round in (1, 2):
        answer = Trained(x=torch.ones(FEWEST - 1), n=3, loss=0.5)
        assert known.fault(round, "north", "s", asked(float(round)), answer) is None


def test_a_resumed_run_knows_the_answers_of_before() -> None:
    layout = layout_of(Wide())
    first, second, common = validator(layout), validator(layout), torch.ones(layout.size)
    sent = {p: Moved(g=common * (i + 1), n=10, nominal_step=1.0, loss=0.5) for i, p in enumerate(SOURCES)}
    turned = {**sent, "lyon": dataclasses.replace(sent["lyon"], g=-common)}
    assert accepted(first, turned, 1) == set(SOURCES) - {"lyon"}
    lines: list[dict[str, Any]] = json.loads(json.dumps(first.news()))
    assert len(lines) == 8 and first.news() == []
    second.learn(lines)
    assert accepted(second, {"bern": sent["bern"]}, 2) == set(), "its update of round 1"
    assert accepted(second, {"lyon": dataclasses.replace(sent["lyon"], g=common * 9)}, 2) == set(), "still excluded"


def test_a_digest_depends_on_every_bit() -> None:
    assert digest(torch.tensor([0.0])) != digest(torch.tensor([-0.0]))
    long = torch.randn(10_001, generator=torch.Generator().manual_seed(0))
    for place in (0, 1, 4_999, 8_191, 8_192, 10_000):
        other = long.clone()
        other[place] = -other[place]
        assert digest(other) != digest(long) == digest(long.clone())
    assert digest(long[1:]) != digest(long[:-1]) and len(digest(long)) == 16
    assert digest(torch.arange(6.0).view(2, 3).t()) == digest(torch.arange(6.0).view(2, 3).t().contiguous())


# --- what the server knows -------------------------------------------------------------------------------------------


def test_rates_are_those_of_the_images_that_a_hospital_trains_on(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    config = parse(STUDY, "test")
    counts = {"train": 30, "adapt": 10, "test": 99}, {"train": 5, "adapt": 5, "test": 99}
    server = _declared(config, *counts, Validation(directions=Directions()))
    assert server.validator.images == {"A": 40, "B": 40}
    assert server.validator.class_shares == {"A": (0.75, 0.25), "B": (0.75, 0.25)}


def test_no_rate_is_declared_where_directions_are_not_checked(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    server = _declared(parse(STUDY, "test"), {"train": 40}, {"train": 10})
    assert server.validator.images == {"A": 40, "B": 40} and server.validator.class_shares == {}


def test_a_public_set_declares_no_rates(tmp_path: Path, monkeypatch: Any) -> None:
    config = load(ROOT / "tests/workflow/tiny_benchmark.yaml")
    monkeypatch.chdir(tmp_path)
    server = _declared(config, {"train": 30}, {"train": 5})
    assert set(server.validator.images.values()) == {30} and server.validator.class_shares == {}


def _declared(
    config: Any, images: dict[str, int], positives: dict[str, int], validation: Validation | None = None
) -> Server:
    folder = Path("results") / config.study
    folder.mkdir(parents=True)
    clients = {p: {"images": images, "positives": positives} for p in config.split.clients}
    write_counts(folder, "cohort.json", {"clients": clients})
    server = Server(hospitals.in_process().transport, "target", "test", validation)
    declare(config, server)
    return server
