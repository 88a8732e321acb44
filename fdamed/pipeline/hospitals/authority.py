"""Keys and certificates of a study over a network.

A hospital makes its own key and a request for a certificate; the key never leaves it. The study's authority signs the
requests of all hospitals and is then forgotten: nobody can make another certificate later.
"""

from __future__ import annotations

import hashlib
import os
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.x509.oid import NameOID

from fdamed.core.errors import FdamedError
from fdamed.core.files import write_text

DAYS = 1096
"""How long all certificates of a study are valid."""
BITS = 3072
SMALLEST = 2048
PEM = serialization.Encoding.PEM


def make_request(client: str, folder: Path) -> Path:
    """Make a hospital's key and the request for its certificate; the request."""
    path = folder / f"{client}.csr"
    signed = (
        x509.CertificateSigningRequestBuilder()
        .subject_name(_name(client))
        .sign(_new_key(folder / f"{client}.key"), hashes.SHA256())
    )
    write_text(path, signed.public_bytes(PEM).decode())
    return path


def requested(path: Path, client: str) -> rsa.RSAPublicKey:
    """The public key of a hospital's request, which its private key has signed."""
    fix = f"Ask {client} for the file that `fdamed request --client {client}` makes."
    if not path.is_file():
        raise FdamedError(f"there is no request of {client}", str(path), fix)
    try:
        found = x509.load_pem_x509_csr(path.read_bytes())
        key, owner = found.public_key(), found.subject
    except ValueError:
        raise FdamedError("this is no request for a certificate", str(path), fix) from None
    if not isinstance(key, rsa.RSAPublicKey) or key.key_size < SMALLEST or not found.is_signature_valid:
        raise FdamedError("the request is not signed with an RSA key of its own", str(path), fix)
    if owner != _name(client):
        raise FdamedError(f"the request is not that of {client}: {owner.rfc4514_string()}", str(path), fix)
    return key


def shown(key: rsa.RSAPublicKey) -> str:
    """Twelve hex digits of a public key, to compare over the phone."""
    content = key.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    return hashlib.sha256(content).hexdigest()[:12]


def public_key(path: Path) -> rsa.RSAPublicKey:
    """The public half of a private key's file."""
    try:
        key = serialization.load_pem_private_key(path.read_bytes(), None)
    except (OSError, ValueError, TypeError):
        key = None
    if not isinstance(key, rsa.RSAPrivateKey):
        raise FdamedError("there is no such key", str(path), "`fdamed request` has made it at this hospital.")
    return key.public_key()


class Authority:
    """Signs the certificates of one study."""

    def __init__(self, study: str) -> None:
        self._key, self._issuer = rsa.generate_private_key(65537, BITS), x509.Name([_entry(study)])
        rights = dict.fromkeys(("digital_signature", "key_cert_sign", "crl_sign"), True)
        rights |= dict.fromkeys(("content_commitment", "key_encipherment", "data_encipherment"), False)
        rights |= dict.fromkeys(("key_agreement", "encipher_only", "decipher_only"), False)
        ca = x509.BasicConstraints(ca=True, path_length=None), x509.KeyUsage(**rights)
        self.certificate = self._signed(self._issuer, self._key.public_key(), critical=ca)

    def certify(self, folder: Path, role: str, name: str, key: rsa.RSAPublicKey | None = None, title: str = "") -> None:
        """Write a kit's certificate; without a key of its owner, who is the lead, also a new one."""
        known = key or _new_key(folder / f"{role}.key").public_key()
        host: x509.GeneralName = x509.DNSName(name)
        with suppress(ValueError):
            host = x509.IPAddress(ip_address(name))
        made = self._signed(_name(name, title), known, x509.SubjectAlternativeName([host]))
        write_text(folder / f"{role}.crt", made.public_bytes(PEM).decode())
        write_text(folder / "rootCA.pem", self.certificate.public_bytes(PEM).decode())

    def _signed(
        self,
        subject: x509.Name,
        key: rsa.RSAPublicKey,
        *extensions: x509.ExtensionType,
        critical: tuple[x509.ExtensionType, ...] = (),
    ) -> x509.Certificate:
        now = datetime.now(UTC)
        builder = x509.CertificateBuilder(self._issuer, subject, key, x509.random_serial_number())
        builder = builder.not_valid_before(now).not_valid_after(now + timedelta(days=DAYS))
        own = x509.SubjectKeyIdentifier.from_public_key(key)
        issuers = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        for extension in (own, issuers, *extensions, *critical):
            builder = builder.add_extension(extension, critical=extension in critical)
        return builder.sign(self._key, hashes.SHA256())


def _name(name: str, title: str = "") -> x509.Name:
    """A subject as FLARE reads it: the name, the organization, and of the lead its role."""
    titles = [x509.NameAttribute(NameOID.UNSTRUCTURED_NAME, title)] if title else []
    return x509.Name([_entry(name), x509.NameAttribute(NameOID.ORGANIZATION_NAME, "fdamed"), *titles])


def _entry(name: str) -> x509.NameAttribute[str]:
    return x509.NameAttribute(NameOID.COMMON_NAME, name)


def _new_key(path: Path) -> rsa.RSAPrivateKey:
    """Make a private key, which only this user can read."""
    if path.exists():
        raise FdamedError("there is a key already", str(path), "Use it, or remove it if no study needs it.")
    key = rsa.generate_private_key(65537, BITS)
    content = key.private_bytes(PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption())
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)
    return key
