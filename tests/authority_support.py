"""Authorities as institutions have them, made on the spot, and what they issue."""

from datetime import UTC, datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from vpem.engines.tls.trust import Identity

DAY = timedelta(days=1)
BOTH = (ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH)
SIGNS, SEALS = ("digital_signature",), ("key_encipherment",)
USES = ("digital_signature", "content_commitment", "key_encipherment", "data_encipherment",
        "key_agreement", "key_cert_sign", "crl_sign", "encipher_only", "decipher_only")  # fmt: skip


def usage(*names):
    """Return a key usage with these uses alone."""
    return x509.KeyUsage(**{name: name in names for name in USES})


class Authority:
    """An authority with a key; with an ``above`` it is below another."""

    def __init__(self, name, above=None, key=None, constraints=None, begin=-DAY, end=3650 * DAY):
        self.key = key or ec.generate_private_key(ec.SECP256R1())
        self.name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        self.above = above
        more = [] if constraints is None else [(constraints, True)]
        self.certificate = (above or self).make(
            self.name, self.key, begin, end,
            (x509.BasicConstraints(True, None), True), (usage("key_cert_sign", "crl_sign"), True),
            *more,
        )  # fmt: skip

    @property
    def chain(self):
        """Certificates below the root."""
        return [] if self.above is None else [self.certificate, *self.above.chain]

    @property
    def der(self):
        return self.certificate.public_bytes(serialization.Encoding.DER)

    @property
    def pem(self):
        return self.certificate.public_bytes(serialization.Encoding.PEM)

    def make(self, name, key, begin, end, *extensions):
        """Sign a certificate."""
        now = datetime.now(UTC)
        made = (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(self.name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now + begin)
            .not_valid_after(now + end)
        )
        identifiers = (
            (x509.SubjectKeyIdentifier.from_public_key(key.public_key()), False),
            (x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key()), False),
        )
        for extension, critical in (*extensions, *identifiers):
            made = made.add_extension(extension, critical)
        return made.sign(self.key, hashes.SHA256())

    def issue(
        self, folder, name, *hosts, begin=-DAY, end=90 * DAY, uses=BOTH, signs=SIGNS, key=None,
        passphrase=None, ca=False, more=(),
    ):  # fmt: skip
        """Write NAME.key and NAME.crt, with authorities below the root behind it."""
        key = key or ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"vpem of {name}")])
        extensions = [(x509.BasicConstraints(ca, None), True), (usage(*signs), True), *more]
        kinds = [(x509.RFC822Name if "@" in host else x509.DNSName)(host) for host in hosts]
        if kinds:
            extensions.append((x509.SubjectAlternativeName(kinds), False))
        if uses:
            extensions.append((x509.ExtendedKeyUsage(list(uses)), False))
        made = self.make(subject, key, begin, end, *extensions)
        self.last = made
        folder.mkdir(parents=True, exist_ok=True)
        pem, plain = serialization.Encoding.PEM, serialization.NoEncryption()
        sealed = plain if not passphrase else serialization.BestAvailableEncryption(passphrase)
        identity = Identity(name, folder / f"{name}.crt", folder / f"{name}.key")
        whole = [made, *self.chain]
        identity.certificate.write_bytes(b"".join(one.public_bytes(pem) for one in whole))
        identity.key.write_bytes(key.private_bytes(pem, serialization.PrivateFormat.PKCS8, sealed))
        identity.key.chmod(0o600)
        return identity

    def revoke(self, *certificates, until=7 * DAY, more=()):
        """Return the list (DER) of what is revoked."""
        now = datetime.now(UTC)
        made = x509.CertificateRevocationListBuilder().issuer_name(self.name)
        made = made.last_update(now - 30 * DAY).next_update(now + until)
        for extension in more:
            made = made.add_extension(extension, False)
        for one in certificates:
            entry = x509.RevokedCertificateBuilder().serial_number(one.serial_number)
            made = made.add_revoked_certificate(entry.revocation_date(now - DAY).build())
        return made.sign(self.key, hashes.SHA256()).public_bytes(serialization.Encoding.DER)


def rsa_key(bits=2048):
    return rsa.generate_private_key(65537, bits)
