"""Damaged caches, invalid labels and nearly empty clients: reported, repaired or trained on, never guessed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from fdamed.config.study import Recipe
from fdamed.core.errors import FdamedError
from fdamed.core.rng import stream
from fdamed.data.loader import Labeled
from fdamed.data.vocabulary import lenient, parse_label
from fdamed.federation.runner import run
from fdamed.methods.fedavg import FedAvg
from fdamed.training.local import fit, predict
from tests.support import federation as hospitals
from tests.support.federation import clients_of
from tests.unit.test_cache import SIZE, cached, make, manifest, new_image

WORDS = """
7 2 3 -2 9 10 99 0.5 1.5 -0.5 0.99 1.01 2.0 -1.5 1e1 1e-1 1_0 0x1 0b1 +-1 --1 nan NaN inf -inf Infinity none None
NULL null N/A true false True yes no positive negative pos neg x abc ? - . , 1,5 1.0.0 １ ١
"""


def test_fifty_words_are_no_labels() -> None:
    words = WORDS.split()
    assert len(words) == 50
    assert [word for word in words if lenient(parse_label, word) is not None] == []


BATCH = 4


@pytest.mark.parametrize("images", [1, 2, BATCH - 1, BATCH, BATCH + 1])
def test_a_hospital_with_hardly_an_image_trains_to_finite_weights(images: int) -> None:
    whole = hospitals.images("north")
    data = Labeled(whole.images[:images], whole.y[:images], {})
    model = hospitals.model()
    before = model.read()
    outcome = fit(model, data, Recipe(lr=0.01, batch=BATCH), stream(0, "few"))
    assert np.isfinite(outcome.loss) and torch.isfinite(model.theta).all()
    assert not torch.equal(model.read(), before)
    assert np.isfinite(predict(model, data)).all()


def test_a_hospital_without_an_image_says_so() -> None:
    whole = hospitals.images("north")
    with pytest.raises(FdamedError, match="nothing to train on"):
        fit(hospitals.model(), Labeled(whole.images[:0], whole.y[:0], {}), Recipe(lr=0.01), stream(0, "none"))


def test_a_hospital_of_one_class_takes_part_and_leaves_a_finite_model() -> None:
    server = hospitals.in_process()
    client = clients_of(server)["east"]
    client.data = Labeled(client.data.images, np.ones_like(client.data.y), {})
    theta, record = run(FedAvg(), server, hospitals.theta(), 3, hospitals.no_judge)
    assert torch.isfinite(theta).all() and record.absences == []


@pytest.mark.faults
def test_of_a_thousand_cached_images_the_hundred_damaged_ones_are_made_again(tmp_path: Path) -> None:
    root = tmp_path / "data"
    (root / "deep").mkdir(parents=True)
    for number in range(1000):
        Image.fromarray(new_image(number)).save(root / "deep" / f"{number:02}.png")
    assert make(manifest(1000), root).decoded == 1000
    good = cached(root)
    store = root.parent / "client" / ".cache" / "store.npy"
    raw = bytearray(store.read_bytes())
    rng = np.random.default_rng(5)
    for row in rng.choice(1000, 100, replace=False):
        raw[128 + row * SIZE * SIZE + int(rng.integers(SIZE * SIZE))] ^= 1 << int(rng.integers(8))
    store.write_bytes(raw)
    assert make(manifest(1000), root).decoded == 100
    again = cached(root)
    assert all(np.array_equal(again[name], image) for name, image in good.items()) and len(again) == 1000
