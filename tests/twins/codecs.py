"""NumPy twins of the kernels of codecs, masked sums and graphs (`balls`): what they compute.

Names and arguments are the same, and so are bytes and words; ``n_threads`` has no effect.

Messages are rows of bytes. Numbers lie in them lowest byte first, and bits fill each byte from its
lowest; the last byte is filled up by zeros. What is random at index j of a message comes from
``draw(key, j) = stir(stir(key) + (j + 1) g)``, ``stir`` the finaliser of SplitMix64 and ``g`` its
odd constant, modulo 2^64: a uniform number is its upper 53 bits times 2^-53.

``faults (N,)`` is 1 for each row that cannot be packed or unpacked; what is written for such a row
is meaningless.

A *ring vector* has words of 64 bits that are added modulo 2^64. A value ``x`` in units of
``1 / scale`` is the word ``round(x scale) mod 2^64``, halves to even: negative numbers are the
upper half. ``scales`` has one number for all values, or one for each, all powers of two.
"""

import numpy as np

from vpem.network.masks import PRIME

SHORT_BIAS = 895  # of a double's exponent, less that of a short number
LARGEST = {2: 65504.0, 4: float(np.finfo(np.float32).max), 8: float(np.finfo(np.float64).max)}


# ---- random numbers and bits --------------------------------------------------------------------


def _stir(words):
    """Finaliser of SplitMix64."""
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))


def _draw(key, indices):
    """Random 64 bits of each index."""
    counts = indices.astype(np.uint64) + np.uint64(1)
    return _stir(_stir(np.array([key])) + counts * np.uint64(0x9E3779B97F4A7C15))


def _draw_uniform(key, indices):
    """Random multiples of 2^-53 in [0, 1)."""
    return (_draw(key, indices) >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _put_bits(codes, width):
    """Pack codes at ``width`` bits each."""
    bits = (codes[:, None] >> np.arange(width, dtype=np.uint64)) & np.uint64(1)
    return np.packbits(bits.astype(np.uint8).ravel(), bitorder="little")


def _take_bits(packed, count, width):
    """Unpack ``count`` codes of ``width`` bits each."""
    bits = np.unpackbits(packed, count=count * width, bitorder="little").astype(np.uint64)
    codes = (bits.reshape(count, width) << np.arange(width, dtype=np.uint64)).sum(
        axis=1, dtype=np.uint64
    )
    return codes


def _in_buckets(values, bucket):
    """Values as rows of one bucket each, the last filled up by zeros."""
    bucket = min(bucket, len(values))
    filled = np.zeros(-(-len(values) // bucket) * bucket, dtype=values.dtype)
    filled[: len(values)] = values
    return filled.reshape(-1, bucket)


# ---- dithering ----------------------------------------------------------------------------------


def _norms(buckets, order):
    """Norm of each bucket as it is sent, and whether one is not a finite float."""
    # Squares are added in four interleaved runs, as the kernel does.
    runs = -(-buckets.shape[1] // 4)
    padded = np.zeros((len(buckets), 4 * runs))
    padded[:, : buckets.shape[1]] = np.abs(buckets)
    with np.errstate(over="ignore", invalid="ignore"):
        s = np.cumsum((padded**2).reshape(len(buckets), runs, 4), axis=1)[:, -1]
        total = (s[:, 0] + s[:, 1]) + (s[:, 2] + s[:, 3])
    most = padded.max(axis=1)
    norms = most if order == np.inf else np.maximum(most, np.sqrt(total))
    finite = np.isfinite(total).all()
    if order not in (2, np.inf) and finite:  # by the same library's powers, one after the other
        for row in np.flatnonzero(most > 0):
            powers = sum(pow(one / most[row], order) for one in padded[row].tolist())
            norms[row] = max(most[row], most[row] * pow(powers, 1 / order))
    if not finite or (norms > LARGEST[4]).any():
        return np.zeros(len(buckets), dtype=np.float32), True
    sent = norms.astype(np.float32)
    return np.where(sent < norms, np.nextafter(sent, np.float32(np.inf)), sent), False


def dither_encode(values, keys, levels, bucket, order, messages, faults, n_threads):
    """Pack every row by random dithering: QSGD, and with one level block-p quantization.

    ``Q(v)_j = sign(v_j) (norm / l) (floor(l |v_j| / norm) + 1{u_j < frac(l |v_j| / norm)})`` in
    each bucket, u_j uniform at index j. ``norm`` is the bucket's norm of this order (at least 1;
    infinity: its largest magnitude), rounded up to float32. A message holds all norms, then ``1 +
    ceil(log2(l + 1))`` bits a value: the sign (0 for level 0), then the level.
    """
    n_values = values.shape[1]
    width = int(levels).bit_length() + 1
    place = np.arange(n_values)
    for row, key in enumerate(keys):
        buckets = _in_buckets(values[row].astype(np.float64), bucket)
        norms, failed = _norms(buckets, order)
        faults[row] = failed
        if failed:
            continue
        wide = norms.astype(np.float64)
        scale = np.divide(levels, wide, out=np.zeros_like(wide), where=wide > 0)
        scaled = (np.abs(buckets) * scale[:, None]).ravel()[:n_values]
        floor = np.floor(scaled)
        level = np.minimum(floor + (_draw_uniform(key, place) < scaled - floor), levels)
        sign = (values[row] < 0) & (level > 0)
        codes = level.astype(np.uint64) << np.uint64(1) | sign.astype(np.uint64)
        sent = norms.astype("<f4").view(np.uint8)
        messages[row] = np.concatenate([sent, _put_bits(codes, width)])


def dither_decode(messages, levels, bucket, values, faults, n_threads):
    """Unpack every row of `dither_encode`: ``sign (norm / l) level``.

    A norm that is not finite or is negative, or a level above l, is a fault.
    """
    n_values = values.shape[1]
    width = int(levels).bit_length() + 1
    split = 4 * -(-n_values // bucket)
    for row, message in enumerate(messages):
        norms = message[:split].view("<f4").astype(np.float64)
        codes = _take_bits(message[split:], n_values, width)
        level = codes >> np.uint64(1)
        faults[row] = not (np.isfinite(norms) & (norms >= 0)).all() or (level > levels).any()
        if not faults[row]:
            steps = np.repeat(norms / levels, bucket)[:n_values]
            sizes = steps * level.astype(np.float64)
            values[row] = np.where(codes & np.uint64(1), -sizes, sizes) + 0.0  # no -0.0


# ---- natural compression ------------------------------------------------------------------------


def natural_encode(values, keys, mantissa, messages, faults, n_threads):
    """Pack every row as short floating point numbers, rounded at random.

    With m mantissa bits f and 8 exponent bits e the numbers are ``2^(e - 128) (1 + f / 2^m)``, and
    ``2^-127 f / 2^m`` for e = 0. Between neighbours a < b, ``Q(v) = b`` with probability ``(|v| -
    a) / (b - a)``, else a. The random number is the upper ``52 - m`` bits of the draw, added to the
    bits of the double below the mantissa; for e = 0 a uniform number. A value takes ``9 + m`` bits:
    the sign (0 for zero), the mantissa, the exponent. One that is not finite or is above the
    largest number is a fault.
    """
    m = np.uint64(mantissa)
    shift = np.uint64(52 - mantissa)
    place = np.arange(values.shape[1])
    most = (2.0 - 2.0**-mantissa) * 2.0**127
    for row, key in enumerate(keys):
        size = np.abs(values[row].astype(np.float64))
        faults[row] = not (size <= most).all()
        if faults[row]:
            continue
        bits = _draw(key, place) >> (np.uint64(64) - shift)
        normal = ((size.view(np.uint64) + bits) >> shift) - (np.uint64(SHORT_BIAS) << m)
        steps = np.minimum(size, 2.0**-127) * 2.0 ** (127 + mantissa)
        floor = np.floor(steps)
        small = (floor + (_draw_uniform(key, place) < steps - floor)).astype(np.uint64)
        code = np.where(size >= 2.0**-127, normal, small)
        sign = (values[row] < 0) & (code > 0)
        codes = code << np.uint64(1) | sign.astype(np.uint64)
        messages[row] = _put_bits(codes, mantissa + 9)


def natural_decode(messages, mantissa, values, faults, n_threads):
    """Unpack every row of `natural_encode`; every code is a number, so that there are no faults."""
    m = np.uint64(mantissa)
    faults[:] = 0
    for row, message in enumerate(messages):
        codes = _take_bits(message, values.shape[1], mantissa + 9)
        number = codes >> np.uint64(1)
        words = (number + (np.uint64(SHORT_BIAS) << m)) << np.uint64(52 - mantissa)
        small = number.astype(np.float64) * 2.0 ** (-127 - mantissa)
        sizes = np.where(number >> m, words.view(np.float64), small)
        values[row] = np.where(codes & np.uint64(1), -sizes, sizes) + 0.0  # no -0.0


# ---- some of the values -------------------------------------------------------------------------


def _rounded_at_random(values, chances):
    """One of the floats next to each value, so that the mean is the value."""
    low = values.astype(np.float32)
    low = np.where(low > values, np.nextafter(low, np.float32(-np.inf)), low)
    with np.errstate(over="ignore"):
        high = np.nextafter(low, np.float32(np.inf))
    below = low.astype(np.float64)
    exact = below == values
    gap = np.where(exact, 0.0, high.astype(np.float64) - below)
    up = ~exact & (chances * np.where(exact, 1.0, gap) < values - below)
    return np.where(up, high, low)


def sparse_encode(values, keys, n_kept, at_random, messages, faults, n_threads):
    """Pack ``n_kept`` values of every row: the largest (top-k), or some at random (rand-k).

    Top-k takes the largest magnitudes, of equal ones that of lower index, rounded to float32.
    Rand-k takes the values whose 64 random bits are largest, times n/k, rounded to one of the two
    nearest floats at random (by the draw at index ``n + j``), so that the mean stays. A message
    holds the indices in rising order at ``ceil(log2 n)`` bits, then the floats. A value that is
    not finite, or one to be sent that is beyond float32, is a fault.
    """
    n_values = values.shape[1]
    width = (n_values - 1).bit_length()
    place = np.arange(n_values)
    for row, key in enumerate(keys):
        wide = values[row].astype(np.float64)
        scores = _draw(key, place) if at_random else np.abs(wide).view(np.uint64)
        kept = np.sort(np.argsort(~scores, kind="stable")[:n_kept])
        sent = wide[kept]
        if at_random:
            with np.errstate(over="ignore", invalid="ignore"):
                sent = sent * (n_values / n_kept)
        faults[row] = not np.isfinite(wide).all() or (np.abs(sent) > LARGEST[4]).any()
        if faults[row]:
            continue
        if at_random:
            floats = _rounded_at_random(sent, _draw_uniform(key, n_values + kept))
        else:
            floats = sent.astype(np.float32)
        indices = _put_bits(kept.astype(np.uint64), width)
        messages[row] = np.concatenate([indices, floats.astype("<f4").view(np.uint8)])


def sparse_decode(messages, n_kept, values, faults, n_threads):
    """Unpack every row of `sparse_encode`: zero where nothing was sent.

    Indices that do not rise or reach n, or a float that is not finite, are a fault.
    """
    n_values = values.shape[1]
    width = (n_values - 1).bit_length()
    split = (n_kept * width + 7) // 8
    for row, message in enumerate(messages):
        kept = _take_bits(message[:split], n_kept, width).astype(np.int64)
        floats = message[split:].copy().view("<f4")
        rising = (np.diff(kept, prepend=-1) > 0).all() and (kept < n_values).all()
        faults[row] = not (rising and np.isfinite(floats).all())
        if not faults[row]:
            values[row] = 0
            values[row, kept] = floats


# ---- casts --------------------------------------------------------------------------------------


def cast_encode(values, itemsize, messages, faults, n_threads):
    """Pack every row as floating point numbers of 2, 4 or 8 bytes, to nearest, ties to even.

    A magnitude that is not finite or is above the largest such number is a fault.
    """
    faults[:] = ~(np.abs(values.astype(np.float64)) <= LARGEST[itemsize]).all(axis=1)
    with np.errstate(over="ignore"):
        messages[:] = values.astype(f"<f{itemsize}").view(np.uint8)


def cast_decode(messages, itemsize, values, faults, n_threads):
    """Unpack every row of `cast_encode`; a number that is not finite as a value is a fault."""
    with np.errstate(over="ignore", invalid="ignore"):
        values[:] = np.ascontiguousarray(messages).view(f"<f{itemsize}")
    faults[:] = ~np.isfinite(values).all(axis=1)


def add_scaled(values, scales, limit, ring, n_threads):
    """Add ``round(values scales)`` to a ring vector.

    Returns the place of the first value for which ``|values scales| <= limit`` does not hold (NaN
    among them), -1 if there is none; otherwise the ring vector is invalid.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        scaled = values.astype(np.float64) * scales
        fits = np.abs(scaled) <= limit
    if not fits.all():
        return int(fits.argmin())
    ring += np.rint(scaled).astype(np.int64).view(np.uint64)
    return -1


def values_of(ring, scales, most, values, n_threads):
    """Put ``ring / scales`` into ``values``, words of the upper half as negative numbers.

    Returns the place of the first word whose magnitude, as a float64, is above ``most``, -1 if
    there is none.
    """
    numbers = ring.view(np.int64).astype(np.float64)
    values[:] = numbers / scales
    fits = np.abs(numbers) <= most
    return -1 if fits.all() else int(fits.argmin())


def add_tag(ring, powers, tag):
    """Go on with a tag by the words of a ring vector, as signed numbers ``x_1 ... x_P``.

    The tag ``t`` becomes ``t s^P + x_1 s^P + ... + x_P s`` modulo `PRIME`, in two words, the lower
    one first. Row ``j`` of ``powers`` (BLOCK, 4) has ``s^n``, ``n = BLOCK - j``, and in its last
    two words ``-2^63 (s + ... + s^n)``, which the kernel wants.
    """
    point = int(powers[-1, 0]) + (int(powers[-1, 1]) << 64)
    found = int(tag[0]) + (int(tag[1]) << 64)
    for word in ring.view(np.int64).tolist():
        found = (found + word) * point % PRIME
    tag[:] = found & (2**64 - 1), found >> 64


def ball(indptr, indices, root, hops, stamp, mark, queue):
    """Write the nodes within ``hops`` of ``root`` into ``queue`` and return how many they are.

    ``indices`` (2 n_edges,) are the neighbours, node after node, ``indptr`` (n_nodes + 1,) where
    each node's begin; stamps and queue (n_nodes,) are written.

    The ball is ``{v : dist(root, v) <= hops}``, distances being taken among open nodes only; the
    nearest nodes come first. A node is open while its stamp is less than ``mark``, which is greater
    than every stamp but those of removed nodes, the greatest integer; nodes reached are stamped
    ``mark``.
    """
    stamp[root] = mark
    queue[0] = root
    begin, size = 0, 1
    for _ in range(hops):
        end = size
        for node in queue[begin:end]:
            for other in indices[indptr[node] : indptr[node + 1]]:
                if stamp[other] < mark:
                    stamp[other] = mark
                    queue[size] = other
                    size += 1
        if size == end:
            break
        begin = end
    return size


def hops_from(indptr, indices, root, steps, queue):
    """Write the hops from ``root``, -1 where it does not lead, into ``steps``; return the greatest.

    ``queue`` (n_nodes,) is a work array; the graph is as for `ball`.
    """
    steps[:] = -1
    steps[root] = 0
    queue[0] = root
    place, size = 0, 1
    while place < size:
        node = queue[place]
        place += 1
        for other in indices[indptr[node] : indptr[node + 1]]:
            if steps[other] < 0:
                steps[other] = steps[node] + 1
                queue[size] = other
                size += 1
    return int(steps.max())
