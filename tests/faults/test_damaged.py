"""Truncated, changed or missing checkpoints, client states and records: the one before is used, and no bit changes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.faults import studies
from tests.faults.interrupted import finish, single

RUN = "scaffold"
Damage = Callable[[bytes], bytes]
DAMAGES: dict[str, Damage] = {
    "half": lambda b: b[: len(b) // 2],
    "empty": lambda b: b"",
    "one bit": lambda b: b[: len(b) // 3] + bytes([b[len(b) // 3] ^ 4]) + b[len(b) // 3 + 1 :],
}


def state(folder: Path) -> Path:
    return studies.place_of(folder, RUN) / "state"


def memories(folder: Path, round: int) -> list[Path]:
    found = sorted((folder / "results").rglob(f"memory/{RUN}/**/{round:05d}.safetensors"))
    assert found
    return found


def hurt(path: Path, damage: Damage) -> None:
    path.write_bytes(damage(path.read_bytes()))


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_checkpoint_gives_way_to_the_one_before(cut: Path, expected, capfd, damage: Damage) -> None:
    hurt(state(cut) / "checkpoint.bin", damage)
    assert finish(cut, RUN) == expected
    stderr = capfd.readouterr().err
    assert (
        "checkpoint.bin is damaged (checksum); trying the one before" in stderr
        and "resumed after round 2 of 5" in stderr
    )


def test_a_draft_that_was_left_behind_is_removed_and_never_read(cut: Path, expected, capfd) -> None:
    draft = state(cut) / ".checkpoint.bin.abcdefgh.part"
    draft.write_bytes((state(cut) / "checkpoint.bin").read_bytes()[:100])
    memory = memories(cut, 3)[0]
    memory.with_name(f".{memory.name}.abcdefgh.part").write_bytes(b"half")
    assert finish(cut, RUN) == expected
    assert "resumed after round 3 of 5" in capfd.readouterr().err


@pytest.mark.parametrize("damage", [*DAMAGES.values(), None], ids=[*DAMAGES, "gone"])
def test_a_damaged_memory_of_a_hospital_gives_way_to_the_checkpoint_before(
    cut: Path, expected, capfd, damage: Damage | None
) -> None:
    memory = memories(cut, 3)[0]
    hurt(memory, damage) if damage else memory.unlink()
    assert finish(cut, RUN) == expected
    stderr = capfd.readouterr().err
    assert "damaged (a client's state)" in stderr and "resumed after round 2 of 5" in stderr


@pytest.mark.parametrize("what", ["checkpoints", "memories", "record"])
def test_where_both_generations_are_damaged_the_run_begins_anew_and_comes_to_the_same(
    cut: Path, expected, capfd, what: str
) -> None:
    files = {
        "checkpoints": list(state(cut).glob("checkpoint*.bin")),
        "memories": [*memories(cut, 2), *memories(cut, 3)],
        "record": list((cut / "results").rglob(f"memory/{RUN}/**/record.jsonl")),
    }[what]
    for file in files:
        hurt(file, DAMAGES["one bit"] if what != "record" else DAMAGES["empty"])
    assert finish(cut, RUN) == expected
    stderr = capfd.readouterr().err
    assert stderr.count("trying the one before") == 2 and "resumed after" not in stderr and "round 1/5" in stderr


def test_a_damaged_checkpoint_never_takes_the_place_of_the_sound_one_before(cut: Path, expected, capfd) -> None:
    from tests.faults.interrupted import cut_after

    newest, previous = state(cut) / "checkpoint.bin", state(cut) / "checkpoint.previous.bin"
    sound = previous.read_bytes()
    hurt(newest, DAMAGES["half"])
    cut_after(cut, 3, RUN)
    assert previous.read_bytes() == sound
    hurt(newest, DAMAGES["half"])
    capfd.readouterr()
    assert finish(cut, RUN) == expected
    assert "resumed after round 2 of 5" in capfd.readouterr().err


def test_a_finished_run_keeps_no_state(cut: Path) -> None:
    assert studies.fdamed(cut, *single(RUN)) == 0
    assert not [p for p in state(cut).rglob("*") if p.is_file()]
    assert not list((cut / "results").rglob("memory/**/*.safetensors"))
