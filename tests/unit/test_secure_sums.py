"""Secure aggregation: what is added up, what the server sees of one client, who may be missing, whose keys count."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any

import numpy as np
import pytest
import torch
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.x509.oid import NameOID

from fdamed.core.errors import FdamedError
from fdamed.federation.absences import DroppedOut, Reason
from fdamed.federation.client import STEPS, Client, Step, check_policy, step
from fdamed.federation.messages import Average, Check, Images, Scalar, Statistic, Weights, message, sizes
from fdamed.federation.method import REGISTRY, Model
from fdamed.federation.runner import run
from fdamed.federation.secure_sums import secret_sharing
from fdamed.federation.secure_sums.certificates import Certificates
from fdamed.federation.secure_sums.client_steps import (
    SESSION,
    content,
    masked,
    send_keys,
    send_shares,
    send_unmasking,
    text,
    threshold,
)
from fdamed.federation.secure_sums.fixed_point import LARGEST, decode, encode, parts_of
from fdamed.federation.secure_sums.masks import add_mask, new_key, pair_key, public
from fdamed.federation.secure_sums.transport import SecureSums
from fdamed.federation.server import Server
from fdamed.methods._shared.local_training import train_locally
from tests.support.federation import Altered, clients_of, in_process, live_theta, no_judge, theta

NAMES = ("north", "east", "south", "target")
SOURCES = NAMES[:3]


@message
class Answer:
    """Three numbers, one number, and the images behind them."""

    v: Annotated[Statistic, Check(shape=lambda _, __: (3,))]
    loss: Scalar
    n: Images


@message
class Counted:
    """A model after tau steps, which count as its images, too."""

    x: Annotated[Weights, Average(per="tau")]
    tau: Images


VALUES = {
    "north": Answer(v=torch.tensor([1.0, -2.0, 0.5]), loss=0.5, n=1),
    "east": Answer(v=torch.tensor([4.0, 1.0, 0.25]), loss=1.0, n=3),
    "south": Answer(v=torch.tensor([-1.0, 0.0, 8.0]), loss=2.0, n=4),
}


@pytest.fixture(scope="module")
def tell() -> Step:
    """A step that answers with the values above."""

    @step("test_secure_sums.tell")
    def tell(client: Client, ask: Model) -> Answer:
        return VALUES[client.name]

    return tell


def secure(answer: Callable[..., Any] | None = None, weighting: Any = "samples", names: Any = NAMES) -> Server:
    """A server behind masks; `answer(inner, client, step, nth, msg)` may meddle with single messages."""
    server = in_process(names)
    if answer:
        inner = server.transport
        server.transport = Altered(inner, lambda *given: answer(inner, *given))
    server.transport = SecureSums(server.transport, server.target, weighting)
    server.begin(1, 1)
    return server


# --- by hand ----------------------------------------------------------------------------------------------------------


def test_the_server_gets_the_weighted_mean_in_the_place_of_each_answer(tell: Step) -> None:
    found = secure().ask_all(SOURCES, tell, Model(x=theta()))
    # (1 * 1 + 3 * 4 + 4 * -1) / 8, (-2 + 3 + 0) / 8, (0.5 + 0.75 + 32) / 8; (0.5 + 3 + 8) / 8
    for name in SOURCES:
        assert found[name].v.tolist() == [1.125, 0.125, 4.15625] and found[name].loss == 1.4375
        assert found[name].n == VALUES[name].n


def test_uniform_weights_are_the_same_for_everybody_but_a_loss_is_weighed_by_images(tell: Step) -> None:
    found = secure(weighting="uniform").ask_all(SOURCES, tell, Model(x=theta()))["east"]
    assert torch.allclose(found.v, torch.tensor([4 / 3, -1 / 3, 8.75 / 3]), atol=2**-26, rtol=2**-24)
    assert found.loss == 1.4375


def test_a_change_per_step_is_weighed_by_images_per_step_and_buffers_by_images() -> None:
    layout = in_process().layout

    one, two = (Counted(x=torch.full((layout.size,), v), tau=n) for v, n in ((1.0, 2), (4.0, 4)))
    parts = parts_of(Counted, None, layout)
    total = sum(encode(r, parts, "samples", layout, 2) for r in (one, two))
    mean = decode(total, Counted, parts, {"a": one, "b": two}, "samples", layout)["x"]
    assert isinstance(mean, torch.Tensor)
    assert set(mean[: layout.trainable].tolist()) == {2.5} and set(mean[layout.trainable :].tolist()) == {3.0}


def test_a_secret_is_found_with_the_threshold_of_shares_and_not_with_fewer() -> None:
    # The line 5 + 3 x has the values 8, 11 and 14 at 1, 2 and 3.
    assert secret_sharing.join({1: 8, 3: 14}) == (5).to_bytes(32, "big")
    secret = bytes(range(224, 256))
    shares = dict(enumerate(secret_sharing.split(secret, 5, 3), 1))
    assert secret_sharing.join({k: shares[k] for k in (5, 1, 4)}) == secret
    assert secret_sharing.join({k: shares[k] for k in (5, 1)}) != secret


def test_the_masks_of_a_pair_cancel_and_no_two_sessions_share_one() -> None:
    one, two = new_key(), new_key()
    key = pair_key(one, public(two), "1 train", "a", "b")
    assert key == pair_key(two, public(one), "1 train", "b", "a") != pair_key(one, public(two), "2 train", "a", "b")
    words = np.arange(300_000, dtype=np.uint64)
    add_mask(words, key, 1)
    assert not np.array_equal(words[:10], np.arange(10))
    add_mask(words, key, -1)
    assert np.array_equal(words, np.arange(300_000))


def test_the_sum_of_the_largest_numbers_with_the_most_images_does_not_overflow() -> None:
    layout, below = in_process().layout, float(np.nextafter(np.float32(LARGEST), np.float32(0)))
    for v in (below, -below):
        most = Answer(v=torch.full((3,), v), loss=0.0, n=2**22)
        parts = parts_of(Answer, None, layout)
        total = np.zeros(4, np.uint64)
        for _ in range(4):
            total += encode(most, parts, "samples", layout, 4)
        mean = decode(total, Answer, parts, dict.fromkeys("abcd", most), "samples", layout)["v"]
        assert isinstance(mean, torch.Tensor) and mean.tolist() == [v] * 3


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"v": torch.tensor([1.0, float("nan"), 0.0])}, "not below 16384"),
        ({"v": torch.tensor([1.0, LARGEST, 0.0])}, "not below 16384"),
        ({"v": torch.zeros(4)}, "another shape"),
        ({"n": 2**23}, "too many for a sum over 3 clients"),
    ],
)
def test_what_does_not_fit_a_sum_never_leaves_its_client(changes: dict[str, Any], why: str) -> None:
    layout = in_process().layout
    with pytest.raises(FdamedError, match=why):
        encode(dataclasses.replace(VALUES["north"], **changes), parts_of(Answer, None, layout), "samples", layout, 3)


# --- what the server sees ---------------------------------------------------------------------------------------------


def test_what_one_client_sends_is_uniform_and_another_each_time() -> None:
    seen: list[np.ndarray[Any, Any]] = []

    def look(inner: Any, client: str, asked: Step, nth: int, msg: Any) -> Any:
        reply = inner.deliver(client, asked, nth, msg)
        if asked.inner and client == "north":
            seen.append(reply.words.numpy().view(np.uint8))
            assert set(sizes(reply)) == {"count", "masked"}
        return reply

    for _ in range(40):
        secure(look).ask_all(SOURCES, train_locally, Model(x=theta()))
    counts = np.bincount(np.concatenate(seen), minlength=256)
    expected = counts.sum() / 256
    chi2 = float(((counts - expected) ** 2 / expected).sum())
    assert 150 < chi2 < 380  # 255 degrees of freedom: 1e-7 to 1 - 1e-7
    assert len({s.tobytes() for s in seen}) == len(seen)


def test_only_those_who_are_asked_together_are_added_up_and_the_target_alone_is_not_masked() -> None:
    server = secure()
    alone = server.ask("target", train_locally, Model(x=theta()))
    plain = in_process()
    plain.begin(1, 1)
    assert torch.equal(alone.x, plain.ask("target", train_locally, Model(x=theta())).x)
    with pytest.raises(DroppedOut, match="a sum needs 2"):
        server.ask("north", train_locally, Model(x=theta()))
    both = secure().ask_all(("north", "target"), train_locally, Model(x=theta()))
    assert torch.equal(both["north"].x, both["target"].x)


def test_the_ledger_counts_masked_bytes_and_every_message_of_the_protocol(tell: Step) -> None:
    server = secure()
    server.ask_all(SOURCES, tell, Model(x=theta()))
    lines = server.ledger.lines()
    sent = {(r["step"], r["kind"]): r["bytes"] for r in lines if r["from"] == "north"}
    assert sent["test_secure_sums.tell", "masked"] == 8 * 4 and sent["test_secure_sums.tell", "count"] == 8
    assert ("test_secure_sums.tell", "statistic") not in sent
    steps = {"secure_sums.keys", "secure_sums.shares", "secure_sums.unmask"}
    assert steps == {step for step, kind in sent if kind == "key"} and all(r["bytes"] > 0 for r in lines)


# --- drop-outs --------------------------------------------------------------------------------------------------------


def absent_from(*missing: tuple[str, str]) -> Callable[..., Any]:
    """These clients answer these steps (the last part of the name) no more."""

    def answer(inner: Any, client: str, asked: Step, nth: int, msg: Any) -> Any:
        if (client, asked.name.rpartition(".")[2]) in missing:
            raise DroppedOut(client, "gone", Reason.DISCONNECTED)
        return inner.deliver(client, asked, nth, msg)

    return answer


@pytest.mark.parametrize("stage", ["keys", "shares", "masked"])
def test_a_client_that_is_gone_before_its_answer_is_left_out_of_the_sum(tell: Step, stage: str) -> None:
    server = secure(absent_from(("east", stage)))
    found = server.ask_all(SOURCES, tell, Model(x=theta()))
    assert sorted(found) == ["north", "south"]
    assert torch.equal(found["north"].v, torch.tensor([(1 - 4) / 5, -2 / 5, 32.5 / 5]))
    assert [(a["client"], a["reason"]) for a in server.absences] == [("east", "disconnected")]


def test_a_client_that_is_gone_after_its_answer_is_still_in_the_sum(tell: Step) -> None:
    server = secure(absent_from(("east", "unmask")))
    found = server.ask_all(SOURCES, tell, Model(x=theta()))
    assert sorted(found) == sorted(SOURCES) and found["north"].v.tolist() == [1.125, 0.125, 4.15625]


@pytest.mark.parametrize("stage", ["masked", "unmask"])
def test_with_fewer_than_the_threshold_the_round_is_lost_with_one_clear_reason(tell: Step, stage: str) -> None:
    server = secure(absent_from(("east", stage), ("south", stage)))
    with pytest.raises(DroppedOut, match=r"1 of 3 .*, 2 are needed") as lost:
        server.ask_all(SOURCES, tell, Model(x=theta()))
    assert lost.value.reason is Reason.QUORUM


def test_the_threshold_is_a_majority_and_at_least_two() -> None:
    assert [threshold(n) for n in (2, 3, 4, 5, 10)] == [2, 2, 3, 3, 6]


def test_garbage_in_the_place_of_masked_numbers_loses_the_round_and_strikes_nobody() -> None:
    def spoil(inner: Any, client: str, asked: Step, nth: int, msg: Any) -> Any:
        reply = inner.deliver(client, asked, nth, msg)
        if asked.inner and client == "east":
            return dataclasses.replace(reply, words=torch.randint_like(reply.words, 2**62))
        return reply

    server = secure(spoil)
    with pytest.raises(DroppedOut, match="the sum of the answers has impossible numbers"):
        server.ask_all(SOURCES, train_locally, Model(x=theta()))
    assert not server.quarantined and not any(Reason(a["reason"]).strikes for a in server.absences)


def test_masked_numbers_of_another_size_are_rejected_before_anything_is_added(tell: Step) -> None:
    def cut(inner: Any, client: str, asked: Step, nth: int, msg: Any) -> Any:
        reply = inner.deliver(client, asked, nth, msg)
        short = asked.inner and client == "east"
        return dataclasses.replace(reply, words=reply.words[:-1]) if short else reply

    server = secure(cut)
    assert sorted(server.ask_all(SOURCES, tell, Model(x=theta()))) == ["north", "south"]
    assert [a["reason"] for a in server.absences] == ["malformed"]


def test_a_client_with_a_wrong_count_loses_the_round_that_its_answer_is_in(tell: Step) -> None:
    server = secure()
    server.validator.images = {"south": 3}
    with pytest.raises(DroppedOut, match="their sum has the answer of south, which was rejected"):
        server.ask_all(SOURCES, tell, Model(x=theta()))
    assert [(a["client"], a["reason"]) for a in server.absences] == [("south", "count")]


# --- a client's own rules ---------------------------------------------------------------------------------------------


def session(*names: str) -> dict[str, Client]:
    """Clients that have exchanged keys and shares for the first round's training."""
    clients = {name: client for name, client in clients_of(in_process()).items() if name in names}
    begin = text({"label": "1 train_locally", "weighting": "samples"})
    keys = {name: content(send_keys.run(client, begin)) for name, client in clients.items()}
    shares = {name: content(send_shares.run(client, text(keys)))["shares"] for name, client in clients.items()}
    for name, client in clients.items():
        client.round = 1
        client.shares = {c: s.get(name) for c, s in shares.items()}  # type: ignore[attr-defined]
    return clients


def test_a_session_masks_one_answer_and_is_opened_once() -> None:
    clients = session(*SOURCES)
    north = clients["north"]
    for client in clients.values():
        masked(train_locally).run(client, Model(x=theta()))
    with pytest.raises(FdamedError, match="not at the stage 'shares'"):
        masked(train_locally).run(north, Model(x=live_theta()))
    opening = {"arrived": sorted(SOURCES), "shares": north.shares}  # type: ignore[attr-defined]
    assert sorted(content(send_unmasking.run(north, text(opening)))) == sorted(SOURCES)
    assert SESSION not in north.memory
    with pytest.raises(FdamedError, match="not at the stage 'masked'"):
        send_unmasking.run(north, text(opening | {"arrived": ["east", "north"]}))


@pytest.mark.parametrize("arrived", [["north"], ["east", "south"], ["east", "north", "stranger"]])
def test_a_client_opens_no_sum_of_too_few_none_without_its_own_and_none_of_strangers(arrived: list[str]) -> None:
    north = session(*SOURCES)["north"]
    masked(train_locally).run(north, Model(x=theta()))
    with pytest.raises(FdamedError, match="fewer than 2 of 3 answers would be added up, or not its own"):
        send_unmasking.run(north, text({"arrived": arrived, "shares": north.shares}))  # type: ignore[attr-defined]


def test_keys_are_for_one_step_of_one_round() -> None:
    north = session(*SOURCES)["north"]
    north.round = 2
    with pytest.raises(FdamedError, match="for another step"):
        masked(train_locally).run(north, Model(x=theta()))


def test_a_changed_share_is_not_believed() -> None:
    clients = session(*SOURCES)
    for client in clients.values():
        masked(train_locally).run(client, Model(x=theta()))
    north = clients["north"]
    shares = north.shares | {"east": north.shares["east"][:-2] + "00"}  # type: ignore[attr-defined]
    with pytest.raises(FdamedError, match="the share of east was changed on its way"):
        send_unmasking.run(north, text({"arrived": sorted(SOURCES), "shares": shares}))


def test_a_source_whose_policy_lets_out_sums_answers_no_question_in_the_clear(tell: Step) -> None:
    north = clients_of(in_process())["north"]
    north.sums_only = True
    with pytest.raises(FdamedError, match="would show the answer of north alone"):
        check_policy(north, train_locally, Model(x=theta()))
    check_policy(north, masked(train_locally), Model(x=theta()))
    check_policy(north, STEPS["report_privacy_cost"], None)


def test_the_kinds_behind_a_mask_are_still_those_that_a_policy_must_release() -> None:
    north = clients_of(in_process())["north"]
    north.release = frozenset({"count", "scalar"})
    with pytest.raises(FdamedError, match="for weights, which it does not release"):
        check_policy(north, masked(train_locally), Model(x=theta()))


def test_values_that_compare_single_sources_are_not_logged() -> None:
    server = secure()
    method = REGISTRY["fediir"]()
    server.unlogged = frozenset(method.compares)
    _, record = run(method, server, live_theta(), 1, no_judge)
    assert "train/loss" in record.metrics[0] and "head/variance" not in record.metrics[0]


# --- whose keys -------------------------------------------------------------------------------------------------------


def certificate(name: str, issuer: tuple[x509.Certificate, rsa.RSAPrivateKey] | None = None) -> Any:
    """A certificate of this name and its key, signed by the issuer or by itself."""
    key = rsa.generate_private_key(65537, 2048)
    own = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.now(UTC)
    made = x509.CertificateBuilder().subject_name(own).issuer_name(issuer[0].subject if issuer else own)
    made = made.public_key(key.public_key()).serial_number(x509.random_serial_number())
    made = made.not_valid_before(now - timedelta(days=1)).not_valid_after(now + timedelta(days=1))
    return made.sign(issuer[1] if issuer else key, hashes.SHA256()), key


@pytest.fixture(scope="module")
def identities() -> dict[str, Certificates]:
    root = certificate("the study")
    made = {name: certificate(name, root) for name in SOURCES}
    out = {name: Certificates(key, own, root[0], frozenset(SOURCES)) for name, (own, key) in made.items()}
    foreign, key = certificate("east", certificate("another study"))
    return out | {"foreign": Certificates(key, foreign, root[0], frozenset(SOURCES))}


def roster(identities: dict[str, Certificates]) -> tuple[dict[str, Client], dict[str, Any]]:
    clients = {name: client for name, client in clients_of(in_process()).items() if name in SOURCES}
    begin = text({"label": "1 train_locally", "weighting": "samples"})
    for name, client in clients.items():
        client.certificates = identities[name]
    return clients, {name: content(send_keys.run(client, begin)) for name, client in clients.items()}


def test_keys_that_the_studys_certificates_have_signed_are_taken(identities: dict[str, Certificates]) -> None:
    clients, keys = roster(identities)
    assert sorted(content(send_shares.run(clients["north"], text(keys)))["shares"]) == ["east", "south"]


@pytest.mark.parametrize(
    "how", ["replaced", "unsigned", "of another client", "of another authority", "of another step"]
)
def test_a_key_that_its_client_has_not_signed_is_refused(identities: dict[str, Certificates], how: str) -> None:
    clients, keys = roster(identities)
    if how == "replaced":
        keys["east"]["mask"] = public(new_key()).hex()
    elif how == "unsigned":
        keys["east"]["proof"] = {}
    elif how == "of another client":
        keys["east"] = keys["south"]
    else:
        foreign = how == "of another authority"
        clients["east"].certificates = identities["foreign" if foreign else "east"]
        begin = text({"label": "1 train_locally" if foreign else "2 train_locally", "weighting": "samples"})
        keys["east"] = content(send_keys.run(clients["east"], begin))
    with pytest.raises(FdamedError, match="the key of east is not signed with the certificate of east"):
        send_shares.run(clients["north"], text(keys))


def test_a_client_that_is_not_in_the_study_gets_no_share(identities: dict[str, Certificates]) -> None:
    clients, keys = roster(identities)
    own = dataclasses.replace(identities["north"], clients=frozenset({"north", "south"}))
    clients["north"].certificates = own
    with pytest.raises(FdamedError, match="the key of east is not signed"):
        send_shares.run(clients["north"], text(keys))


def test_a_server_that_replaces_a_clients_own_key_is_refused_also_without_certificates() -> None:
    clients = clients_of(in_process())
    begin = text({"label": "1 train_locally", "weighting": "samples"})
    keys = {name: content(send_keys.run(clients[name], begin)) for name in SOURCES}
    keys["north"]["mask"] = public(new_key()).hex()
    with pytest.raises(FdamedError, match="does not have its own as it has sent them"):
        send_shares.run(clients["north"], text(keys))
    keys["south"]["mask"] = bytes(32).hex()
    with pytest.raises(FdamedError, match="public key is not valid"):
        pair_key(new_key(), bytes(32), "1 train_locally", "a", "b")
