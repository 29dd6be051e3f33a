"""Certificates and keys for a deployment on loopback: a certificate authority, the SuperLink's certificate, and a key for each node."""

import datetime
import ipaddress
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from flcog.core.files import replacing

DAYS = 30
"""Certificates are valid for this number of days."""


def make_certificates(folder: Path) -> None:
    """Write ``ca.crt``, ``server.pem`` and ``server.key`` for 127.0.0.1 and localhost."""
    authority, key = ec.generate_private_key(ec.SECP384R1()), ec.generate_private_key(ec.SECP384R1())
    issuer = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "flcog loopback")])
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    hosts = x509.SubjectAlternativeName([x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    root = _builder(issuer, issuer, authority).add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
    leaf = _builder(subject, issuer, key).add_extension(hosts, critical=False)
    for name, builder in (("ca.crt", root), ("server.pem", leaf)):
        with replacing(folder / name) as file:
            file.write(builder.sign(authority, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))
    _write_key(folder / "server.key", key, serialization.PrivateFormat.PKCS8)


def make_node_key(path: Path) -> None:
    """Write a node's private key there, and its public key beside it with the suffix ``.pub``."""
    key = ec.generate_private_key(ec.SECP384R1())
    _write_key(path, key, serialization.PrivateFormat.OpenSSH)
    public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    with replacing(path.with_suffix(".pub")) as file:
        file.write(public)


def _builder(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(days=DAYS))
    )


def _write_key(path: Path, key: ec.EllipticCurvePrivateKey, form: serialization.PrivateFormat) -> None:
    with replacing(path, permissions=0o600) as file:
        file.write(key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption()))
