"""The keys of a bed: one authority, one server certificate for all programs, and the key that signs service accounts' tokens."""

import datetime
import ipaddress
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

LIFETIME = datetime.timedelta(days=2)
SERVER_NAMES = ["localhost", "*.kueue-system.svc", "*.jobset-system.svc"]


@dataclass(frozen=True)
class Certificates:
    """Files in one folder. Controllers look for `tls.crt` and `tls.key` by these names.

    Attributes:
        authority: the certificate that clients trust.
        server, server_key: what every server of the bed shows.
        proxy, proxy_key: what the API server shows to Kueue's visibility server, which trusts the user it names.
        accounts, accounts_key: verifies and signs service accounts' tokens.
    """

    folder: Path

    @property
    def authority(self) -> Path:
        return self.folder / "ca.crt"

    @property
    def server(self) -> Path:
        return self.folder / "tls.crt"

    @property
    def server_key(self) -> Path:
        return self.folder / "tls.key"

    @property
    def proxy(self) -> Path:
        return self.folder / "proxy.crt"

    @property
    def proxy_key(self) -> Path:
        return self.folder / "proxy.key"

    @property
    def accounts(self) -> Path:
        return self.folder / "accounts.pub"

    @property
    def accounts_key(self) -> Path:
        return self.folder / "accounts.key"


def make_certificates(folder: Path) -> Certificates:
    """Write fresh keys and certificates, good for two days, into a folder."""
    folder.mkdir(parents=True)
    files = Certificates(folder)
    authority_key = ec.generate_private_key(ec.SECP256R1())
    issuer = _name("bed authority")
    constraint = x509.BasicConstraints(ca=True, path_length=None)
    authority = (
        _builder(issuer, issuer, authority_key.public_key()).add_extension(constraint, critical=True).sign(authority_key, hashes.SHA256())
    )
    files.authority.write_bytes(authority.public_bytes(serialization.Encoding.PEM))

    server_key = ec.generate_private_key(ec.SECP256R1())
    names: list[x509.GeneralName] = [x509.DNSName(name) for name in SERVER_NAMES]
    alternatives = x509.SubjectAlternativeName([*names, x509.IPAddress(ipaddress.IPv4Address("127.0.0.1"))])
    server = _builder(_name("bed server"), issuer, server_key.public_key()).add_extension(alternatives, critical=False)
    files.server.write_bytes(server.sign(authority_key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))
    _write_key(files.server_key, server_key)

    proxy_key = ec.generate_private_key(ec.SECP256R1())
    usage = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH])
    proxy = _builder(_name("bed proxy"), issuer, proxy_key.public_key()).add_extension(usage, critical=False)
    files.proxy.write_bytes(proxy.sign(authority_key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))
    _write_key(files.proxy_key, proxy_key)

    accounts_key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    _write_key(files.accounts_key, accounts_key)
    public = accounts_key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    files.accounts.write_bytes(public)
    return files


def _name(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _builder(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    builder = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(key)
    return (
        builder.serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + LIFETIME)
    )


def _write_key(path: Path, key: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey) -> None:
    path.touch(mode=0o600)
    path.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption())
    )
