"""The cryptography of masks, all of it from the library `cryptography`.

Keys are agreed on with X25519, derived with HKDF-SHA256, and expanded to a mask with AES-256 in counter mode; shares
travel under ChaCha20-Poly1305. A key belongs to one session (`label`) and to its two clients, and is used once.
"""

from __future__ import annotations

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from fdamed.core.errors import FdamedError
from fdamed.federation.secure_sums.fixed_point import Words

NAME = "fdamed secure sums 1"
BLOCK = 1 << 17
"""Numbers of a mask that are made at a time: 1 MiB."""
ONCE = bytes(12)
"""The nonce of a key that encrypts one message."""


def new_key() -> bytes:
    """A new secret key, from the operating system's generator."""
    return X25519PrivateKey.generate().private_bytes_raw()


def public(secret: bytes) -> bytes:
    """Its public key."""
    return X25519PrivateKey.from_private_bytes(secret).public_key().public_bytes_raw()


def agreed(secret: bytes, other: bytes, label: str, *purpose: str) -> bytes:
    """The key that one's secret key and the other's public key give, for one session and purpose."""
    try:
        shared = X25519PrivateKey.from_private_bytes(secret).exchange(X25519PublicKey.from_public_bytes(other))
    except ValueError:  # a point of small order, or no point
        fix = "Use the same version of fdamed everywhere; a server that changes keys must not be trusted."
        raise FdamedError("a public key is not valid", "secure aggregation", fix) from None
    info = "\0".join((NAME, label, *purpose)).encode()
    return HKDF(hashes.SHA256(), 32, salt=None, info=info).derive(shared)


def pair_key(secret: bytes, other: bytes, label: str, one: str, two: str) -> bytes:
    """The key of the mask that two clients have in common."""
    return agreed(secret, other, label, "mask", *sorted((one, two)))


def add_mask(words: Words, key: bytes, sign: int) -> None:
    """Add the mask of a key (sign 1), or subtract it (sign -1), in place and modulo 2**64."""
    stream = Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor()
    zeros, made = bytes(8 * BLOCK), bytearray(8 * BLOCK)
    for start in range(0, len(words), BLOCK):
        part = words[start : start + BLOCK]
        stream.update_into(memoryview(zeros)[: 8 * len(part)], made)
        mask = np.frombuffer(made, "<u8", len(part))
        (np.add if sign > 0 else np.subtract)(part, mask, out=part)


def sealed(key: bytes, content: bytes) -> bytes:
    """The content, encrypted and authenticated."""
    return ChaCha20Poly1305(key).encrypt(ONCE, content, None)


def opened(key: bytes, content: bytes, sender: str) -> bytes:
    """What was sealed with this key."""
    try:
        return ChaCha20Poly1305(key).decrypt(ONCE, content, None)
    except InvalidTag:
        fix = "Nothing was unmasked. A server that changes shares must not be trusted."
        raise FdamedError(f"the share of {sender} was changed on its way", "secure aggregation", fix) from None
