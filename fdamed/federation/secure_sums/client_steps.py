"""At a client: the steps of secure aggregation (Bonawitz et al. 2017, figure 4), between a method and its server.

1. keys: a fresh pair of keys for masks and one for shares, signed where the client has certificates.
2. shares: a seed for a mask of its own; shares of it and of the secret key, one for each client, encrypted for it.
3. The method's own step: the answer in fixed point, plus its own mask, plus or minus the mask with each other client.
4. unmask: of each client whose answer arrived the share of the seed, of each other one that of the secret key, never
   both. The session then ends.

A session is for one step and is used once; its secrets are in the client's state until it ends.
"""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import replace
from functools import cache
from typing import Any, get_type_hints

import numpy as np
import torch

from fdamed.core.errors import FdamedError
from fdamed.federation.client import Client, Step, remembered_or_computed, step
from fdamed.federation.messages import Key, Masked, message
from fdamed.federation.secure_sums import secret_sharing
from fdamed.federation.secure_sums.fixed_point import counts_in, encode, parts_of
from fdamed.federation.secure_sums.masks import add_mask, agreed, new_key, opened, pair_key, public, sealed

SESSION = "secure_sums.session"
"""In a client's state: its session, as text."""
MASKED = ".masked"
"""Behind the name of a step: its answer is masked."""
DIGITS = 65
"""Of a share, in hexadecimal: messages have one size."""
FEWEST = 2
"""A sum over fewer clients is the answer of one."""


@message
class Text:
    """An object as JSON: keys, names, encrypted shares."""

    text: Key


def text(content: Any) -> Text:
    """An object as a message."""
    return Text(text=torch.frombuffer(bytearray(json.dumps(content).encode()), dtype=torch.uint8))


def content(given: Text) -> Any:
    """The object in a message; raises ValueError if there is none."""
    return json.loads(given.text.numpy().tobytes())


def threshold(clients: int) -> int:
    """Clients that must be there to the end: a majority, so that no two lists of who was there are both believed."""
    return max(FEWEST, clients // 2 + 1)


def signed_part(label: str, name: str, keys: dict[str, str]) -> bytes:
    """What the signature of a client's public keys covers."""
    return json.dumps([label, name, keys["mask"], keys["share"]]).encode()


@step("secure_sums.keys", noised=True)
def send_keys(client: Client, ask: Text) -> Text:
    """Begin the session of a step with new keys; one that has not ended is forgotten."""
    asked = content(ask)
    secrets = {"mask": new_key().hex(), "share": new_key().hex()}
    keys = {use: public(bytes.fromhex(key)).hex() for use, key in secrets.items()}
    proof = client.certificates.sign(signed_part(asked["label"], client.name, keys)) if client.certificates else {}
    _keep(client, {"stage": "keys", "label": asked["label"], "weighting": asked["weighting"], "secrets": secrets})
    return text(keys | {"proof": proof})


@step("secure_sums.shares", noised=True)
def send_shares(client: Client, ask: Text) -> Text:
    """Encrypted shares for every other client of the list, whose keys are checked first."""
    session, roster = _session(client, "keys"), content(ask)
    label, secrets = session["label"], session["secrets"]
    names = sorted(roster)
    own = {use: public(bytes.fromhex(key)).hex() for use, key in secrets.items()}
    if len(names) < FEWEST or client.name not in names or any(roster[client.name][use] != own[use] for use in own):
        raise _refused("the list of keys does not have its own as it has sent them, or has no other client")
    if client.certificates:
        for name, entry in roster.items():
            client.certificates.check(name, signed_part(label, name, entry), entry["proof"])
    seed = os.urandom(32)
    split = {
        "seed": secret_sharing.split(seed, len(names), threshold(len(names))),
        "mask": secret_sharing.split(bytes.fromhex(secrets["mask"]), len(names), threshold(len(names))),
    }
    shares = {name: {use: f"{values[i]:0{DIGITS}x}" for use, values in split.items()} for i, name in enumerate(names)}
    keys = {name: {use: roster[name][use] for use in own} for name in names}
    _keep(client, session | {"stage": "shares", "keys": keys, "seed": seed.hex(), "own": shares[client.name]})
    out = {}
    for name in names:
        if name != client.name:
            key = _share_key(secrets, keys[name], label, client.name, name)
            out[name] = sealed(key, json.dumps(shares[name]).encode()).hex()
    return text({"shares": out, "commitment": hashlib.sha256(seed).hexdigest()})


@cache
def masked(inner: Step) -> Step:
    """A method's step with a masked answer, whose counts are sent as they are."""

    def run(client: Client, ask: Any) -> Any:
        session = _session(client, "shares")
        if session["label"] != label_of(client.round, inner):
            raise _refused("its keys are for another step")
        del client.memory[SESSION]  # the method's own state, as without masks: answers are remembered by it
        reply = remembered_or_computed(client, inner, ask, dict(client.memory))
        words = _masked_words(client, inner, ask, reply, session)
        _keep(client, {k: v for k, v in session.items() if k != "seed"} | {"stage": "masked"})
        return answer_type(inner)(
            **{name: getattr(reply, name) for name in counts_in(inner.answer)},
            words=torch.from_numpy(words.view(np.int64)),
        )

    return replace(inner, name=inner.name + MASKED, run=run, answer=answer_type(inner), inner=inner)


@cache
def answer_type(inner: Step) -> Any:
    """The message in the place of a step's answer: its counts, and one vector of masked numbers."""
    hints = get_type_hints(inner.answer, include_extras=True)
    fields = {name: hints[name] for name in counts_in(inner.answer)} | {"words": Masked}
    return message(type(f"Masked{inner.answer.__name__}", (), {"__annotations__": fields, "__module__": __name__}))


def label_of(round: int, inner: Step) -> str:
    """What the keys of a session are for."""
    return f"{round} {inner.name}"


def _masked_words(client: Client, inner: Step, ask: Any, reply: Any, session: dict[str, Any]) -> Any:
    layout, keys, label = client.model.layout, session["keys"], session["label"]
    parts = parts_of(inner.answer, ask, layout)
    words = encode(reply, parts, session["weighting"], layout, len(keys))
    add_mask(words, bytes.fromhex(session["seed"]), 1)
    secret = bytes.fromhex(session["secrets"]["mask"])
    for name in sorted(keys.keys() - {client.name}):
        key = pair_key(secret, bytes.fromhex(keys[name]["mask"]), label, client.name, name)
        add_mask(words, key, sign(client.name, name))
    return words


def sign(client: str, other: str) -> int:
    """Whether a client adds (1) or subtracts (-1) the mask that it has in common with another."""
    return 1 if client < other else -1


@step("secure_sums.unmask", noised=True)
def send_unmasking(client: Client, ask: Text) -> Text:
    """The shares that take the masks off the sum over `arrived`, and off nothing else; the session ends."""
    session, asked = _session(client, "masked"), content(ask)
    keys, arrived = session["keys"], set(asked["arrived"])
    if not arrived <= keys.keys() or client.name not in arrived or len(arrived) < threshold(len(keys)):
        raise _refused(f"fewer than {threshold(len(keys))} of {len(keys)} answers would be added up, or not its own")
    out = {}
    for name in sorted(keys):
        share = session["own"]
        if name != client.name:
            key = _share_key(session["secrets"], keys[name], session["label"], name, client.name)
            share = json.loads(opened(key, bytes.fromhex(asked["shares"][name]), name))
        out[name] = share["seed" if name in arrived else "mask"]
    del client.memory[SESSION]
    return text(out)


def _share_key(secrets: dict[str, str], other: dict[str, str], label: str, sender: str, receiver: str) -> bytes:
    secret, key = bytes.fromhex(secrets["share"]), bytes.fromhex(other["share"])
    return agreed(secret, key, label, "share", sender, receiver)


def _keep(client: Client, session: dict[str, Any]) -> None:
    client.memory[SESSION] = text(session).text


def _session(client: Client, stage: str) -> dict[str, Any]:
    """The session of this client, if it has come so far and no further: nothing of it is ever done twice."""
    found: dict[str, Any] = content(Text(text=client.memory[SESSION])) if SESSION in client.memory else {}
    if found.get("stage") != stage:
        raise _refused(f"its session is not at the stage {stage!r}")
    return found


def _refused(why: str) -> FdamedError:
    fix = "Nothing was sent. If it happens again, use the same version of fdamed everywhere."
    return FdamedError(why, "secure aggregation", fix)
