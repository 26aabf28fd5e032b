"""Recomputes the sums of a recorded round from its messages.

Usage: `python3 check.py round.json`. It follows proto/secagg.proto and the module documentation, shares
no code with the crate and needs only the standard library. It repeats the server's work after the last
message of a slot: recover secrets from shares, check them against the commitments, derive the masks and
remove them.
"""

import hashlib
import hmac
import json
import struct
import sys

PRIME = 2**61 - 1
# The length of the X25519 and ML-KEM-768 keys and of the commitment to the nonce.
KEYS_LEN = 32 + 1184 + 32
PROTOCOL = b"deltafl-secagg/2/"


# Protobuf: only varints and length-delimited fields occur.

def varint(data, at):
    value, shift = 0, 0
    while True:
        byte = data[at]
        value |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return value, at


def fields(data):
    found, at = {}, 0
    while at < len(data):
        key, at = varint(data, at)
        value, at = varint(data, at)
        if key & 7 == 2:
            length = value
            value, at = data[at:at + length], at + length
        found[key >> 3] = value
    return found


def ids(data):
    return list(struct.unpack(f"<{len(data) // 4}I", data))


def records(data):
    found = fields(data)
    who, flat = ids(found.get(1, b"")), found.get(2, b"")
    each = len(flat) // len(who) if who else 0
    return {device: flat[i * each:(i + 1) * each] for i, device in enumerate(who)}


# Hashes: the purpose first, and every part of variable length after its length.

def number(value):
    return struct.pack("<Q", value)


def part(data):
    return number(len(data)) + data


def digest(purpose, *parts):
    return hashlib.sha256(part(PROTOCOL) + part(purpose) + b"".join(parts)).digest()


def params_digest(session, round_number, invite):
    suite, cohort, slots = invite[1], invite[2], invite[3]
    graph = [invite.get(field, 0) for field in (4, 5, 6, 7, 8)]
    return digest(b"params", number(2), part(session), number(round_number), number(suite), number(cohort),
                  *map(number, graph), number(slots), part(invite.get(9, b"")))


def slot_digest(slot, ring, length, context):
    context = digest(b"context", part(context))
    return digest(b"slot-spec", number(slot), number(ring), number(length), part(context))


# Secrets: Lagrange interpolation at zero, in five limbs.

def recover(shares):
    limbs = [0] * 5
    for x, share in shares.items():
        weight = 1
        for other in shares:
            if other != x:
                weight = weight * other * pow(other - x, -1, PRIME) % PRIME
        for limb, value in enumerate(struct.unpack("<5Q", share)):
            limbs[limb] = (limbs[limb] + value * weight) % PRIME
    lengths = (7, 7, 7, 7, 4)
    return b"".join(limb.to_bytes(length, "little") for limb, length in zip(limbs, lengths))


# HKDF-SHA-256, RFC 5869, one block.

def hkdf(secret, info):
    key = hmac.new(PROTOCOL, secret, hashlib.sha256).digest()
    return hmac.new(key, info + b"\x01", hashlib.sha256).digest()


def mask_key(secret, purpose, params, slot, a, b):
    return hkdf(secret, purpose + params + slot + struct.pack("<II", min(a, b), max(a, b)))


# AES-128, FIPS 197, starting from the field of 256 elements.

def times(a, b):
    product = 0
    while b:
        if b & 1:
            product ^= a
        a = a << 1 ^ (0x11B if a & 128 else 0)
        b >>= 1
    return product


def sbox():
    table = []
    for value in range(256):
        inverse = next((i for i in range(256) if times(value, i) == 1), 0)
        rotated = inverse
        for shift in range(1, 5):
            rotated ^= (inverse << shift | inverse >> 8 - shift) & 255
        table.append(rotated ^ 0x63)
    return table


SBOX = sbox()


def aes_round_keys(key):
    words, constant = [list(key[i:i + 4]) for i in range(0, 16, 4)], 1
    for i in range(4, 44):
        word = list(words[-1])
        if i % 4 == 0:
            word = [SBOX[byte] for byte in word[1:] + word[:1]]
            word[0] ^= constant
            constant = times(constant, 2)
        words.append([a ^ b for a, b in zip(words[-4], word)])
    return [sum(words[i:i + 4], []) for i in range(0, 44, 4)]


def substituted(state):
    return [SBOX[state[(i + 4 * (i % 4)) % 16]] for i in range(16)]


def aes_round(state, key):
    state, mixed = substituted(state), []
    for column in range(0, 16, 4):
        c = state[column:column + 4]
        mixed += [times(c[i], 2) ^ times(c[(i + 1) % 4], 3) ^ c[(i + 2) % 4] ^ c[(i + 3) % 4] for i in range(4)]
    return xor(mixed, key)


def xor(*blocks):
    return [a ^ b for a, b in zip(*blocks)] if len(blocks) == 2 else xor(blocks[0], xor(*blocks[1:]))


def aes_block(round_keys, block):
    state = xor(block, round_keys[0])
    for key in round_keys[1:10]:
        state = aes_round(state, key)
    return bytes(xor(substituted(state), round_keys[10]))


def aes_stream(key, length):
    round_keys = aes_round_keys(key[:16])
    blocks = (aes_block(round_keys, i.to_bytes(16, "big")) for i in range(length // 16 + 1))
    return b"".join(blocks)[:length]


# AEGIS-128X4 as a stream cipher, RFC 10032, the encryption of zeros. Key and nonce are halves of
# a mask key.

def aegis_step(state, first, second):
    keys = list(state)
    keys[0], keys[4] = xor(keys[0], first), xor(keys[4], second)
    return [aes_round(state[i - 1], keys[i]) for i in range(8)]


def aegis_lane(key, nonce, lane):
    c0 = bytes.fromhex("000101020305080d1522375990e97962")
    c1 = bytes.fromhex("db3d18556dc22ff12011314273b528dd")
    context, zero = bytes([lane, 3]) + bytes(14), bytes(16)
    both = xor(key, nonce)
    state = [both, c1, c0, c1, both, xor(key, c0), xor(key, c1), xor(key, c0)]
    for _ in range(10):
        state[3], state[7] = xor(state[3], context), xor(state[7], context)
        state = aegis_step(state, nonce, key)
    while True:
        s = state
        yield tuple(bytes(xor(s[a], s[b], [c & d for c, d in zip(s[c], s[d])]))
                    for a, b, c, d in ((6, 1, 2, 3), (2, 5, 6, 7)))
        state = aegis_step(state, zero, zero)


def aegis_stream(key, length):
    lanes, stream = [aegis_lane(key[:16], key[16:], lane) for lane in range(4)], b""
    while len(stream) < length:
        blocks = [next(lane) for lane in lanes]
        stream += b"".join(first for first, _ in blocks) + b"".join(second for _, second in blocks)
    return stream[:length]


# ChaCha20, RFC 8439.

def chacha_block(key, counter):
    start = list(struct.unpack("<4I", b"expand 32-byte k")) + list(struct.unpack("<8I", key)) + [counter, 0, 0, 0]
    state = list(start)

    def turn(a, b, c, d):
        for x, y, z, bits in ((a, b, d, 16), (c, d, b, 12), (a, b, d, 8), (c, d, b, 7)):
            state[x] = (state[x] + state[y]) & 0xFFFFFFFF
            mixed = state[z] ^ state[x]
            state[z] = (mixed << bits | mixed >> 32 - bits) & 0xFFFFFFFF

    for _ in range(10):
        for i in range(4):
            turn(i, 4 + i, 8 + i, 12 + i)
        for i in range(4):
            turn(i, 4 + (i + 1) % 4, 8 + (i + 2) % 4, 12 + (i + 3) % 4)
    return struct.pack("<16I", *((a + b) & 0xFFFFFFFF for a, b in zip(state, start)))


def chacha_stream(key, length):
    return b"".join(chacha_block(key, i) for i in range(length // 64 + 1))[:length]


STREAMS = {3: aes_stream, 4: chacha_stream, 5: aegis_stream}


def words(data, ring):
    width = ring // 8
    return [int.from_bytes(data[i:i + width], "little") for i in range(0, len(data), width)]


class Round:
    """The data that the server has after all messages."""

    def __init__(self, messages):
        self.keys, self.deposits, self.inputs, self.active, self.shares = {}, {}, {}, {}, {}
        for message in messages:
            body = fields(bytes.fromhex(message["bytes"]))
            if message["from"] is None:
                self.from_server(body)
            else:
                self.from_device(message["from"], body)

    def from_server(self, body):
        if 4 in body:
            invite = fields(body[4])
            self.params = params_digest(body[2], body[3], invite)
            self.suite = invite[1]
        if 9 in body:
            opened = fields(body[9])
            self.active[opened.get(1, 0)] = ids(opened[4])

    def from_device(self, device, body):
        if 4 in body:
            self.keys[device] = body[4]
        if 7 in body:
            masked = fields(body[7])
            self.inputs[masked.get(1, 0), device] = masked[2]
        if 10 in body:
            self.deposits[device] = records(fields(body[10]).get(2, b""))
        if 9 in body:
            unmask = fields(body[9])
            for kind in (2, 3):
                for owner, share in records(unmask.get(kind, b"")).items():
                    held = self.shares.setdefault((unmask.get(1, 0), owner, kind), {})
                    held[device + 1] = share

    def committed(self, device, slot, which):
        at = KEYS_LEN + 64 * slot + 32 * which
        return self.keys[device][at:at + 32]

    def pair_key(self, key, dropped, device, slot):
        number_digest = digest(b"slot-number", number(slot))
        pad = mask_key(key, b"deposit", self.params, number_digest, device, dropped)
        left = self.deposits[dropped][device][64 * slot:64 * slot + 64]
        opened = bytes(a ^ b for a, b in zip(pad, left))
        low, high = sorted((device, dropped))
        commitment = digest(b"pair-key", part(self.params), number(slot), number(low), number(high), part(opened))
        theirs = self.deposits[device][dropped][64 * slot + 32:64 * slot + 64]
        assert commitment == left[32:] == theirs, f"deposit of device {dropped} about device {device}"
        return opened

    def sum(self, slot, ring, length, context):
        total = [0] * length

        def add(data, sign):
            for i, word in enumerate(words(data, ring)):
                total[i] = (total[i] + sign * word) % 2**ring

        stream = lambda key: STREAMS[self.suite](key, length * ring // 8)
        spec = slot_digest(slot, ring, length, context)
        survivors = [device for device in self.active[slot] if (slot, device) in self.inputs]
        for device in survivors:
            add(self.inputs[slot, device], 1)
            seed = recover(self.shares[slot, device, 2])
            commitment = digest(b"seed", part(self.params), number(device), number(slot), part(seed))
            assert commitment == self.committed(device, slot, 1), f"seed of device {device}"
            add(stream(mask_key(seed, b"self", self.params, spec, device, device)), -1)
        for dropped in set(self.active[slot]) - set(survivors):
            secret = recover(self.shares[slot, dropped, 3])
            commitment = digest(b"deposit-key", part(self.params), number(dropped), number(slot), part(secret))
            assert commitment == self.committed(dropped, slot, 0), f"deposit key of device {dropped}"
            for device in survivors:
                shared = self.pair_key(secret, dropped, device, slot)
                key = mask_key(shared, b"mask", self.params, spec, device, dropped)
                add(stream(key), -1 if device < dropped else 1)
        return survivors, total


def main(file):
    with open(file, encoding="utf-8") as opened:
        published = json.load(opened)
    round_ = Round(published["messages"])
    for slot, expected in enumerate(published["slots"]):
        ring, length = expected["ring"], expected["len"]
        survivors, total = round_.sum(slot, ring, length, bytes.fromhex(expected["context"]))
        assert survivors == expected["survivors"], f"survivors of slot {slot}"
        assert total == expected["sum"], f"sum of slot {slot}"
        inputs = [published["inputs"][f"{slot}/{device}"] for device in survivors]
        plain = [sum(column) % 2**ring for column in zip(*inputs)]
        assert total == plain, f"plain sum of slot {slot}"
        print(f"slot {slot}: the sum of {len(survivors)} devices is correct")


if __name__ == "__main__":
    main(sys.argv[1])
