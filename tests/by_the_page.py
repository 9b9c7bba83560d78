"""Masked sums as docs/reference/masked-protocol.md describes them, without anything of vpem.

Given private keys and whole numbers, all that parties send and compute in some sums.
"""

from hashlib import sha256

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF, HKDFExpand

NAME, RING, PRIME = b"vpem masked sums 3", 2**64, 2**127 - 1


def numbers(*values):
    return b"".join(value.to_bytes(8, "big") for value in values)


def field(content):
    return numbers(len(content)) + content


def stream(key, nonce, count):
    data = Cipher(algorithms.ChaCha20(key, nonce), None).encryptor().update(bytes(8 * count))
    return [int.from_bytes(data[8 * n : 8 * n + 8], "little") for n in range(count)]


def xor(*keys):
    found = 0
    for key in keys:
        found ^= int.from_bytes(key, "big")
    return found.to_bytes(32, "big")


def sums(facts, private, group, taken):
    """Take sums: of ``taken`` each has its number, and of each party who takes part its values."""
    own = [X25519PrivateKey.from_private_bytes(key) for key in private]
    public = [key.public_key().public_bytes_raw() for key in own]
    parts = [NAME, numbers(len(facts)), *(fact.encode() for fact in facts), *public]
    transcript = sha256(b"".join(map(field, parts))).digest()

    def expand(secret, what, rest):
        return HKDFExpand(SHA256(), 32, field(NAME + what) + rest).derive(secret)

    def of_pair(i, j, what, rest):
        secret = own[i].exchange(X25519PublicKey.from_public_bytes(public[j]))
        return HKDF(SHA256(), 32, transcript, field(NAME + what) + rest).derive(secret)

    def below_prime(key):
        return int.from_bytes(key[:16], "little") % 2**127 % PRIME

    heard, found, vectors = bytes(32), [], {}
    for number, values, opened in taken:
        who = sorted(values)
        count = vectors.get(number, 0)
        tag_nonce, nonce = (
            bytes(4) + (count + n).to_bytes(4, "little") + number.to_bytes(8, "little")
            for n in (0, 1)
        )  # fmt: skip
        vectors[number] = count + 2
        point = below_prime(expand(group, b" point", b""))
        pad = below_prime(expand(group, b" tag", heard + tag_nonce))
        pairs, shares, keys, tags, sent = {}, {}, {}, {}, {}
        for i in who:
            for j in who:
                if i < j:
                    rest = numbers(i, j, *who) + heard
                    pairs[i, j] = of_pair(i, j, b" pad", rest)
                if i != j:
                    shares[i, j] = of_pair(i, j, b" own", numbers(i, j) + nonce)
        for i in who:
            keys[i] = xor(*(shares[i, j] for j in who if j != i))
            n = len(values[i])
            powers = sum(x * pow(point, n - k, PRIME) for k, x in enumerate(values[i]))
            tags[i] = (powers + pad * (i == who[0])) % PRIME
            words = [
                *(x % RING for x in values[i]),
                *(tags[i] >> 32 * k & 0xFFFFFFFF for k in range(4)),
            ]
            pads = [stream(keys[i], nonce, n + 4)]
            for j in who:
                if j != i:
                    sign = 1 if i < j else -1
                    key = pairs[min(i, j), max(i, j)]
                    pads.append([sign * x for x in stream(key, nonce, n + 4)])
            sent[i] = [(x + sum(each)) % RING
                       for x, each in zip(words, zip(*pads, strict=True), strict=True)]  # fmt: skip
        one = {"tag nonce": tag_nonce, "nonce": nonce, "pairs": pairs, "shares": shares,
               "keys": keys, "tags": tags, "sent": sent}  # fmt: skip
        if opened:
            total = [sum(column) % RING for column in zip(*sent.values(), strict=True)]
            for i in who:
                pad = stream(keys[i], nonce, len(total))
                total = [(x - y) % RING for x, y in zip(total, pad, strict=True)]
            one["total"] = total
            ring = b"".join(x.to_bytes(8, "little") for x in total)
            heard = sha256(heard + sha256(ring).digest()).digest()
        found.append(one)
    return {"public": public, "transcript": transcript, "sums": found}
