"""Certificates are known by fingerprints, which people read to each other."""

import hashlib

from mnemonic import Mnemonic

from vpem.engines.tls.trust import Member, Roster, fingerprint, fingerprint_words


def test_words_are_half_of_the_fingerprint():
    words = fingerprint_words(b"a certificate")
    assert len(words.split()) == 12
    found = Mnemonic("english").to_entropy(words)
    assert bytes(found) == hashlib.sha256(b"a certificate").digest()[:16]
    assert fingerprint(b"a certificate").startswith(bytes(found).hex())
    assert fingerprint_words(b"another") != words


def test_members_have_ranks():
    roster = Roster("0" * 32, "heart", 1, (Member("hub", b"h"), Member("lab", b"l")))
    assert [roster.rank_of(name) for name in ("hub", "lab", "clinic")] == [0, 1, None]
