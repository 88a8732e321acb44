"""Shamir's secret sharing: any `threshold` of the shares give the secret, fewer say nothing about it."""

from __future__ import annotations

import secrets
from collections.abc import Mapping

PRIME = 2**256 + 297
"""The smallest prime above every secret of 32 bytes."""


def split(secret: bytes, holders: int, threshold: int) -> list[int]:
    """One share for each of the holders 1, 2, ...: values of a random polynomial whose constant term is the secret."""
    polynomial = [int.from_bytes(secret, "big"), *(secrets.randbelow(PRIME) for _ in range(threshold - 1))]
    return [sum(c * pow(x, power, PRIME) for power, c in enumerate(polynomial)) % PRIME for x in range(1, holders + 1)]


def join(shares: Mapping[int, int]) -> bytes:
    """The secret of these shares, holder -> share: the polynomial at 0, by Lagrange's formula."""
    total = 0
    for x, share in shares.items():
        above = below = 1
        for other in shares.keys() - {x}:
            above = above * other % PRIME
            below = below * (other - x) % PRIME
        total = (total + share * above * pow(below, -1, PRIME)) % PRIME
    return (total % 2**256).to_bytes(32, "big")
