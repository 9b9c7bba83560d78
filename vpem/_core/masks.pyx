"""Fixed point for masked sums: numbers as integers modulo 2^64, and back.

Integers wrap around, so that no order of adding shows. Keystreams are added to them by NumPy, in
place: nothing is quicker.
"""
import numpy as np

from cython.parallel cimport prange
from libc.math cimport fabs
from libc.stdint cimport int64_t, uint64_t

from vpem._core.real cimport real
from vpem._core.shares cimport at_once, worth

cdef extern from "math.h" nogil:
    long long llrint(double)

cdef extern from *:
    """
    #if defined(_MSC_VER)
    #include <intrin.h>
    #define upper_half(a, b) __umulh(a, b)
    #else
    #define upper_half(a, b) ((uint64_t)(((unsigned __int128)(a) * (b)) >> 64))
    #endif
    """
    uint64_t upper_half(uint64_t a, uint64_t b) nogil

cdef enum:
    TILE = 16384  # values at a time
    BLOCK = 64    # words of a tag at a time

cdef uint64_t SIGN = <uint64_t>1 << 63

cdef double NANOSECONDS = 0.6   # that a value takes


cdef inline Py_ssize_t tiles_of(Py_ssize_t count) noexcept nogil:
    return (count + TILE - 1) // TILE


cdef Py_ssize_t first_of(
    const Py_ssize_t[::1] bad,  # IN    (n_tiles,)
) noexcept nogil:
    """Place of the first value that a tile found, -1 if none did."""
    cdef Py_ssize_t tile
    for tile in range(bad.shape[0]):
        if bad[tile] >= 0:
            return tile * TILE + bad[tile]
    return -1


cdef Py_ssize_t add_tile(
    const real* values,     # IN    (count,)
    const double* scales,   # IN    (count,), or one for all
    Py_ssize_t each,        # IN    1 where each value has a scale of its own, or 0
    double limit,
    Py_ssize_t count,
    uint64_t* ring,         # INOUT (count,)
) noexcept nogil:
    """Add a tile; the place of the first value that does not fit, -1 if all do."""
    cdef Py_ssize_t j
    cdef double scaled
    for j in range(count):
        scaled = <double>values[j] * scales[j * each]
        if not fabs(scaled) <= limit:
            return j
        ring[j] += <uint64_t>llrint(scaled)
    return -1


cdef Py_ssize_t values_tile(
    const uint64_t* ring,   # IN    (count,)
    const double* scales,   # IN    (count,), or one for all
    Py_ssize_t each,        # IN    1 where each value has a scale of its own, or 0
    double most,
    Py_ssize_t count,
    double* values,         # OUT   (count,)
) noexcept nogil:
    """Return a tile to numbers; the place of the first that is too large, -1 if none is."""
    cdef Py_ssize_t j
    cdef double number, unit = 1 / scales[0]
    cdef bint large = False
    for j in range(count):
        number = <double>(<int64_t>ring[j])
        large |= fabs(number) > most
        values[j] = number / scales[j] if each else number * unit
    if large:
        for j in range(count):
            if fabs(<double>(<int64_t>ring[j])) > most:
                return j
    return -1


def add_scaled(
    const real[::1] values,       # IN    (P,)
    const double[::1] scales,     # IN    (P,) or (1,): powers of two
    double limit,                 # IN    an integer below 2^63
    uint64_t[::1] ring,           # INOUT (P,)
    int n_threads,
):
    """Add ``round(values scales)``; the place of the first that does not fit, or -1.

    See `tests.twins.codecs.add_scaled`.
    """
    cdef Py_ssize_t count = values.shape[0], n_tiles = tiles_of(count), tile, begin
    cdef Py_ssize_t each = scales.shape[0] > 1
    if ring.shape[0] != count or scales.shape[0] not in (1, count):
        raise ValueError("values, scales and ring must be of one length")
    if count == 0:
        return -1
    first = np.empty(n_tiles, dtype=np.intp)
    cdef Py_ssize_t[::1] bad = first
    cdef int threads = worth(n_threads, n_tiles, NANOSECONDS * count)
    cdef Py_ssize_t some = at_once(n_tiles, threads)
    for tile in prange(n_tiles, nogil=True, num_threads=threads, schedule="dynamic",
                       chunksize=some):
        begin = tile * TILE
        bad[tile] = add_tile(&values[begin], &scales[begin * each], each, limit,
                             min(<Py_ssize_t>TILE, count - begin), &ring[begin])
    return first_of(bad)


def values_of(
    const uint64_t[::1] ring,     # IN    (P,)
    const double[::1] scales,     # IN    (P,) or (1,): powers of two
    double most,                  # IN    an integer
    double[::1] values,           # OUT   (P,)
    int n_threads,
):
    """Put ``ring / scales`` into ``values``; the place of the first beyond ``most``, or -1.

    See `tests.twins.codecs.values_of`.
    """
    cdef Py_ssize_t count = ring.shape[0], n_tiles = tiles_of(count), tile, begin
    cdef Py_ssize_t each = scales.shape[0] > 1
    if values.shape[0] != count or scales.shape[0] not in (1, count):
        raise ValueError("values, scales and ring must be of one length")
    if count == 0:
        return -1
    first = np.empty(n_tiles, dtype=np.intp)
    cdef Py_ssize_t[::1] bad = first
    cdef int threads = worth(n_threads, n_tiles, NANOSECONDS * count)
    cdef Py_ssize_t some = at_once(n_tiles, threads)
    for tile in prange(n_tiles, nogil=True, num_threads=threads, schedule="dynamic",
                       chunksize=some):
        begin = tile * TILE
        bad[tile] = values_tile(&ring[begin], &scales[begin * each], each, most,
                                min(<Py_ssize_t>TILE, count - begin), &values[begin])
    return first_of(bad)


cdef inline void accumulate(
    uint64_t a,
    uint64_t b,
    uint64_t* sum,          # INOUT (3,)
) noexcept nogil:
    """Add a product of 128 bits to a sum of 192."""
    cdef uint64_t low = a * b, high = upper_half(a, b)
    sum[0] += low
    high += sum[0] < low  # at most 2^64 - 1
    sum[1] += high
    sum[2] += sum[1] < high


cdef inline void fold(
    const uint64_t* low,    # IN    (3,)
    const uint64_t* high,   # IN    (3,): times 2^64
    uint64_t* tag,          # OUT   (2,)
) noexcept nogil:
    """Reduce ``low + 2^64 high``, below 2^230, modulo 2^127 - 1."""
    cdef uint64_t a0 = low[0], a1, a2, a3, carry, b0, b1, b2
    a1 = low[1] + high[0]
    carry = a1 < high[0]
    a2 = low[2] + carry
    carry = a2 < carry
    a2 += high[1]
    a3 = high[2] + carry + (a2 < high[1])
    # What is from 2^127 on counts as ones.
    b0, b1, b2 = (a1 >> 63) | (a2 << 1), (a2 >> 63) | (a3 << 1), a3 >> 63
    a1 &= SIGN - 1
    a0 += b0
    carry = a0 < b0
    a1 += carry
    carry = a1 < carry
    a1 += b1
    carry += (a1 < b1) + b2
    # Once more: two bits of a1's upper end, and the carries.
    b0 = (carry << 1) | (a1 >> 63)
    a1 &= SIGN - 1
    a0 += b0
    a1 += a0 < b0
    if a1 >> 63:
        a1 &= SIGN - 1
        a0 += 1
        a1 += a0 == 0
    if a1 == SIGN - 1 and a0 == <uint64_t>-1:
        a0 = a1 = 0
    tag[0], tag[1] = a0, a1


def add_tag(
    const uint64_t[::1] ring,        # IN    (P,)
    const uint64_t[:, ::1] powers,   # IN    (BLOCK, 4)
    uint64_t[::1] tag,               # INOUT (2,)
):
    """Go on with a tag by the words of a ring vector: see `tests.twins.codecs.add_tag`."""
    cdef Py_ssize_t count = ring.shape[0], begin, j, some
    cdef uint64_t low[3]
    cdef uint64_t high[3]
    cdef uint64_t word
    cdef const uint64_t* row
    if powers.shape[0] != BLOCK or powers.shape[1] != 4 or tag.shape[0] != 2:
        raise ValueError("a tag has two words, and a block of powers four each")
    with nogil:
        begin = 0
        while begin < count:
            some = min(<Py_ssize_t>BLOCK, count - begin)
            row = &powers[BLOCK - some, 0]
            # Words count as numbers from 0 on; the last two of a row take back what that adds.
            low[0], low[1], low[2] = row[2], row[3], 0
            high[0] = high[1] = high[2] = 0
            accumulate(tag[0], row[0], low)
            accumulate(tag[0], row[1], high)
            accumulate(tag[1], row[0], high)
            accumulate(tag[1] << 1, row[1], low)  # 2^128 counts as 2
            for j in range(some):
                word = ring[begin + j] ^ SIGN
                row = &powers[BLOCK - some + j, 0]
                accumulate(word, row[0], low)
                accumulate(word, row[1], high)
            fold(low, high, &tag[0])
            begin += some
