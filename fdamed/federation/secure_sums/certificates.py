"""Who a public key belongs to: over a network, hospitals sign their keys with the certificates of the study's kits."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding, rsa
from cryptography.x509.oid import NameOID

from fdamed.core.errors import FdamedError

PADDING = padding.PSS(padding.MGF1(hashes.SHA256()), padding.PSS.DIGEST_LENGTH)


@dataclass(frozen=True)
class Certificates:
    """A hospital's own key and certificate, the study's authority, and the names of the study's clients."""

    key: rsa.RSAPrivateKey
    certificate: x509.Certificate
    authority: x509.Certificate
    clients: frozenset[str]

    @classmethod
    def of(cls, kit: Path, clients: Collection[str]) -> Certificates:
        """Those of a hospital's kit."""
        startup = kit / "startup"
        key = serialization.load_pem_private_key((startup / "client.key").read_bytes(), None)
        if not isinstance(key, rsa.RSAPrivateKey):
            raise FdamedError("the kit's key is not an RSA key", str(kit), "Ask the study's lead for a new invitation.")
        own, root = (
            x509.load_pem_x509_certificate((startup / name).read_bytes()) for name in ("client.crt", "rootCA.pem")
        )
        return cls(key, own, root, frozenset(clients))

    def sign(self, content: bytes) -> dict[str, str]:
        """The signature of this hospital, and the certificate that it is checked with."""
        signature = self.key.sign(content, PADDING, hashes.SHA256()).hex()
        return {"signature": signature, "certificate": self.certificate.public_bytes(serialization.Encoding.PEM).hex()}

    def check(self, name: str, content: bytes, proof: Mapping[str, str]) -> None:
        """Raise unless this client of the study has signed the content."""
        try:
            found = x509.load_pem_x509_certificate(bytes.fromhex(proof["certificate"]))
            found.verify_directly_issued_by(self.authority)
            (owner,) = found.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
            valid = found.not_valid_before_utc <= datetime.now(UTC) <= found.not_valid_after_utc
            key = found.public_key()
            if name not in self.clients or owner.value != name or not valid or not isinstance(key, rsa.RSAPublicKey):
                raise ValueError("another name or time")
            key.verify(bytes.fromhex(proof["signature"]), content, PADDING, hashes.SHA256())
        except (KeyError, TypeError, ValueError, InvalidSignature):
            raise FdamedError(
                f"the key of {name} is not signed with the certificate of {name} in this study",
                "secure aggregation",
                "Nothing was sent. Ask the study's lead; a server that changes keys must not be trusted.",
            ) from None
