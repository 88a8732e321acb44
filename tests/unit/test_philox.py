"""Philox4x32-10 against Random123's known answers, and the streams that training draws from it."""

from __future__ import annotations

import pytest
import torch
from scipy.stats import chisquare, kstest

from fdamed.core.rng import Stream, stream
from fdamed.ops.philox import normal, philox, words
from fdamed.training.input import jitter

ONES = 0xFFFFFFFF
KNOWN = {  # Random123, tests/kat_vectors: philox4x32 with 10 rounds
    (0, 0, 0, 0, 0, 0): (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8),
    (ONES,) * 6: (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD),
    (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344, 0xA4093822, 0x299F31D0): (
        0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1,
    ),
}  # fmt: skip


@pytest.mark.parametrize("given", KNOWN)
def test_it_gives_the_published_answers(given: tuple[int, ...]) -> None:
    counter = tuple(torch.tensor([word]) for word in given[:4])
    assert tuple(int(word) for word in philox(counter, given[4:])) == KNOWN[given]  # type: ignore[arg-type]


def test_the_key_is_the_stream_and_the_counter_is_block_and_row() -> None:
    rng = Stream(0x299F31D0_A4093822)
    found = words(rng, torch.tensor([7, 3]), 6)
    for place, row in enumerate((7, 3)):
        for block in (0, 1):
            counter = tuple(torch.tensor([word]) for word in (block, row, 0, 0))
            expected = [int(word) for word in philox(counter, (0xA4093822, 0x299F31D0))]  # type: ignore[arg-type]
            assert found[place, 4 * block : 4 * block + 4].tolist() == expected[: 4 if block == 0 else 2]


def test_a_rows_numbers_do_not_depend_on_the_other_rows_nor_on_how_many_are_drawn_at_a_time() -> None:
    rng, many = stream(1), torch.arange(40)
    together = normal(rng, many, 5000)  # more than one chunk
    assert torch.equal(normal(rng, torch.tensor([31]), 5000)[0], together[31])
    assert torch.equal(normal(rng, torch.tensor([31]), 9)[0], together[31, :9])


def test_normal_numbers_are_normal_and_words_are_uniform() -> None:
    drawn = normal(stream(2), torch.arange(50), 2000).flatten()
    assert kstest(drawn.numpy(), "norm").pvalue > 1e-3
    assert torch.isfinite(drawn).all()
    counts = torch.bincount(words(stream(3), torch.arange(50), 2000).flatten() >> 28, minlength=16)
    assert chisquare(counts.numpy()).pvalue > 1e-3


def test_the_smallest_and_the_largest_word_give_finite_normal_numbers() -> None:
    from fdamed.ops.philox import box_muller

    extreme = torch.tensor([0, ONES])
    assert torch.isfinite(box_muller((extreme, extreme, extreme.flip(0), extreme))).all()


def test_jitter_shifts_with_the_border_repeated_and_reaches_every_shift() -> None:
    side, reach = 32, 2
    x = (torch.arange(side * side, dtype=torch.float32) / side**2).view(1, 1, side, side).expand(600, 1, side, side)
    moved, rows = jitter(x, torch.arange(600), stream(4)), set()
    gains = (moved[:, 0, 16, 17] - moved[:, 0, 16, 16]) * side**2
    assert 0.9 <= float(gains.min()) < 0.905 and 1.095 < float(gains.max()) <= 1.1
    padded = torch.nn.functional.pad(x[:1], (reach,) * 4, mode="replicate")[0, 0]
    for image, gain in zip(moved[:, 0], gains, strict=True):
        plain = (image - 0.5) / gain + 0.5
        found = [
            (i, j)
            for i in range(2 * reach + 1)
            for j in range(2 * reach + 1)
            if torch.allclose(padded[i : i + side, j : j + side][8:24, 8:24], plain[8:24, 8:24], atol=1e-4)
        ]
        assert len(found) == 1
        rows.add(found[0])
    assert len(rows) == (2 * reach + 1) ** 2
