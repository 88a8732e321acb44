from __future__ import annotations

import pytest
import torch

from fdamed.federation.messages import (
    Count,
    Features,
    Individual,
    Scalar,
    Update,
    Weights,
    WireError,
    decode,
    encode,
    kinds,
    message,
    sizes,
)
from fdamed.federation.server import Ledger


@message
class Reply:
    x: Weights
    g: Update
    n: Count
    loss: Scalar


@message
class Rows:
    f: Features


@message
class Passed:
    models: Individual


REPLY = Reply(x=torch.arange(3.0), g=torch.tensor([1.5, -2.0, 0.25]), n=7, loss=0.125)


def test_a_message_survives_the_wire_bit_by_bit() -> None:
    back = decode(Reply, encode(REPLY), size=3)
    assert torch.equal(back.x, REPLY.x) and torch.equal(back.g, REPLY.g)
    assert (back.n, back.loss) == (7, 0.125)


def test_bytes_are_counted_by_kind_from_shapes() -> None:
    assert sizes(REPLY) == {"weights": 12, "update": 12, "count": 8, "scalar": 8}
    assert len(encode(REPLY)) > 40


def test_a_field_without_a_kind_cannot_be_sent() -> None:
    with pytest.raises(TypeError, match=r"Leak.secret has no kind, such as Weights or Count: it cannot be sent"):

        @message
        class Leak:
            secret: torch.Tensor


def test_a_message_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        REPLY.n = 8


def test_a_wrong_shape_is_refused() -> None:
    with pytest.raises(WireError, match="shape"):
        decode(Reply, encode(REPLY), size=4)


def test_another_message_is_refused() -> None:
    with pytest.raises(WireError, match="expected a Rows"):
        decode(Rows, encode(REPLY), size=3)


def test_every_cut_of_a_message_is_refused() -> None:
    data = encode(REPLY)
    for end in range(len(data)):
        with pytest.raises(WireError):
            decode(Reply, data[:end], size=3)


def test_bytes_behind_a_message_are_refused() -> None:
    with pytest.raises(WireError, match="too many"):
        decode(Reply, encode(REPLY) + b"x", size=3)


def test_a_pickle_is_refused() -> None:
    with pytest.raises(WireError, match="not a message"):
        decode(Reply, b"\x80\x04\x95" + b"0" * 60, size=3)


def test_features_may_have_any_number_of_rows() -> None:
    f = torch.rand(5, 2)
    assert torch.equal(decode(Rows, encode(Rows(f=f)), size=3).f, f)


def test_models_of_single_hospitals_are_whole_models_of_a_kind_of_their_own() -> None:
    models = torch.rand(2, 3)
    passed = Passed(models=models)
    assert kinds(Passed) == {"models": "individual"}
    assert sizes(passed) == {"individual": 24}
    assert torch.equal(decode(Passed, encode(passed), size=3).models, models)
    for wrong in (torch.rand(2, 4), torch.rand(3), torch.rand(2, 3, dtype=torch.float64)):
        with pytest.raises(WireError, match="rows of 3"):
            decode(Passed, encode(Passed(models=wrong)), size=3)


def test_the_ledger_adds_up_and_forgets_the_order_of_hospitals() -> None:
    one, other = Ledger(), Ledger()
    one.note(1, "a", "server", "s", {"weights": 4})
    one.note(1, "b", "server", "s", {"weights": 8})
    other.note(1, "b", "server", "s", {"weights": 8})
    other.note(1, "a", "server", "s", {"weights": 4})
    assert one.lines() == other.lines()
    assert one.total(receiver="server") == 12
    assert one.total(sender="a", kind="weights") == 4
    assert one.settle() == other.lines() == one.lines()
    one.note(2, "a", "server", "s", {"weights": 4})
    assert one.total(sender="a") == 8 and [line["round"] for line in one.settle()] == [2]
