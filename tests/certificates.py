"""Certificates that vouch for themselves, and keys as text, for servers of the tests.

Here: the making. Not here: who trusts them (kafka.py, gcs.py).
"""

from datetime import UTC, datetime, timedelta
from ipaddress import ip_address

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa

Key = ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey


def certificate_of(key: Key, host: str) -> x509.Certificate:
    """Return a certificate of a host, a name or an IP address, for today."""
    name, now = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, host)]), datetime.now(UTC)
    try:
        stands_for: x509.GeneralName = x509.IPAddress(ip_address(host))
    except ValueError:
        stands_for = x509.DNSName(host)
    return (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([stands_for]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )


def as_pem(
    made: Key | x509.Certificate, form: serialization.PrivateFormat = serialization.PrivateFormat.PKCS8
) -> str:
    """Return a certificate as PEM, or a key, in a form that is not encrypted."""
    if isinstance(made, x509.Certificate):
        return made.public_bytes(serialization.Encoding.PEM).decode()
    return made.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption()).decode()
