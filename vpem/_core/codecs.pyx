"""Codecs: values packed into the bytes of a message, and unpacked from them.

Messages are rows. What is random in a message comes from its key and the place of the value, so
that neither threads nor tiles show.
"""
import numpy as np

from cython.parallel cimport prange, threadid
from libc.float cimport FLT_MAX
from libc.math cimport INFINITY, fabs, isfinite, nextafterf, pow, sqrt
from libc.stdint cimport uint8_t, uint16_t, uint64_t
from libc.string cimport memcpy, memset

from vpem._core.real cimport real
from vpem._core.shares cimport at_once, worth

cdef enum:
    TILE = 4096           # values at a time, about
    DIGIT = 11            # bits that selection looks at a time
    N_DIGITS = 2048

cdef double LARGEST_HALF = 65504.0


cdef inline int bit_length(uint64_t number) noexcept nogil:
    """Bits that a number from 0 to ``number`` takes."""
    cdef int bits = 0
    while number:
        bits += 1
        number >>= 1
    return bits


cdef inline void open_writer(Writer* writer, uint8_t* place) noexcept nogil:
    """Begin to write bits."""
    writer.place = place
    writer.held = 0
    writer.n_held = 0


cdef inline void open_reader(
    Reader* reader, const uint8_t* place, Py_ssize_t count, int width,
) noexcept nogil:
    """Begin to read so many codes of ``width`` bits."""
    reader.place = place
    reader.end = place + (count * width + 7) // 8
    reader.held = 0
    reader.n_held = 0


cdef inline Py_ssize_t in_parts(Py_ssize_t count, Py_ssize_t size) noexcept nogil:
    """How many parts of a size hold so many values."""
    return (count + size - 1) // size


# ---- dithering: QSGD and block-p quantization ---------------------------------------------------

cdef inline Py_ssize_t dither_tile(Py_ssize_t bucket) noexcept nogil:
    """Values a tile: as many times 8 buckets, so that its bits begin and end with a byte."""
    return 8 * bucket * max(<Py_ssize_t>1, TILE // (8 * bucket))


cdef inline int rounded_up(double norm, float* sent) noexcept nogil:
    """Least float that is not below the norm; non-zero where there is none."""
    if not norm <= FLT_MAX:
        return 1
    sent[0] = <float>norm
    if <double>sent[0] < norm:
        sent[0] = nextafterf(sent[0], INFINITY)
    return 0


cdef inline int bucket_norm(
    const real* values, Py_ssize_t count, double order, float* sent,
) noexcept nogil:
    """Norm of a bucket as it is sent; non-zero where it is not a finite float."""
    cdef double s[4]
    cdef double a0, a1, a2, a3, most = 0, total, norm
    cdef Py_ssize_t j, whole = count // 4 * 4
    s[0] = s[1] = s[2] = s[3] = 0
    for j in range(0, whole, 4):
        a0 = fabs(<double>values[j])
        a1 = fabs(<double>values[j + 1])
        a2 = fabs(<double>values[j + 2])
        a3 = fabs(<double>values[j + 3])
        s[0] += a0 * a0
        s[1] += a1 * a1
        s[2] += a2 * a2
        s[3] += a3 * a3
        most = max(most, max(max(a0, a1), max(a2, a3)))
    for j in range(whole, count):
        a0 = fabs(<double>values[j])
        s[j - whole] += a0 * a0
        most = max(most, a0)
    total = (s[0] + s[1]) + (s[2] + s[3])
    if not isfinite(total):
        return 1
    if order == 2:
        norm = sqrt(total)
    elif order == INFINITY or most == 0:
        norm = most
    else:  # powers of numbers up to 1
        total = 0
        for j in range(count):
            total += pow(fabs(<double>values[j]) / most, order)
        norm = most * pow(total, 1 / order)
    return rounded_up(max(most, norm), sent)


cdef int dither_pack(
    const real* values,       # IN  (count,)
    Py_ssize_t count,
    Py_ssize_t first,         # IN  place of the first value in its message
    uint64_t stream,
    long long levels,
    int width,                # IN  bits of a value
    Py_ssize_t bucket,
    double order,             # IN  of the norm, at least 1
    uint8_t* norms,           # OUT 4 bytes a bucket
    uint8_t* codes,           # OUT ``width`` bits a value: the sign, then the level
) noexcept nogil:
    """Pack a tile; non-zero where a norm is not a finite float."""
    cdef Writer writer
    cdef Py_ssize_t begin = 0, end, j
    cdef float norm = 0
    cdef double scale, place
    cdef long long level
    cdef uint64_t code
    open_writer(&writer, codes)
    while begin < count:
        end = min(begin + bucket, count)
        if bucket_norm(values + begin, end - begin, order, &norm) != 0:
            return 1
        store_float(norms, norm)
        norms += 4
        scale = <double>levels / <double>norm if norm > 0 else 0
        for j in range(begin, end):
            place = fabs(<double>values[j]) * scale
            level = <long long>place
            level += draw_uniform(stream, first + j) < place - <double>level
            level = min(level, levels)
            code = <uint64_t>level << 1
            code |= (values[j] < 0) & (level > 0)
            put_bits(&writer, code, width)
        begin = end
    finish_bits(&writer)
    return 0


cdef int dither_unpack(
    const uint8_t* norms,     # IN  4 bytes a bucket
    const uint8_t* codes,     # IN  ``width`` bits a value
    Py_ssize_t count,
    long long levels,
    int width,
    Py_ssize_t bucket,
    real* values,             # OUT (count,)
) noexcept nogil:
    """Unpack a tile; non-zero where a norm or a level is impossible."""
    cdef Reader reader
    cdef Py_ssize_t begin = 0, end, j
    cdef double norm, step
    cdef long long sign
    cdef uint64_t code, most = 0
    open_reader(&reader, codes, count, width)
    while begin < count:
        end = min(begin + bucket, count)
        norm = load_float(norms)
        norms += 4
        if not isfinite(norm) or norm < 0:
            return 1
        step = norm / <double>levels
        for j in range(begin, end):
            code = take_bits(&reader, width)
            most = max(most, code)
            sign = <long long>(code & 1)
            values[j] = <real>(step * <double>((<long long>(code >> 1) ^ -sign) + sign))
        begin = end
    return (most >> 1) > <uint64_t>levels


cdef void dither_rows(
    const real[:, ::1] values,            # IN  (N, V)
    const unsigned long long[::1] keys,   # IN  (N,)
    long long levels, Py_ssize_t bucket, double order,
    unsigned char[:, ::1] packed,         # OUT (N, bytes), or WORK (n_threads, bytes)
    real* decoded,                        # OUT (N, V), or NULL
    unsigned char[::1] faults,            # OUT (N,)
    int n_threads,
) noexcept nogil:
    """Pack every row, or pack and unpack it tile by tile."""
    cdef Py_ssize_t n_rows = values.shape[0], n_values = values.shape[1]
    cdef int width = bit_length(levels) + 1, wrong
    cdef Py_ssize_t tile = dither_tile(bucket), n_tiles = in_parts(n_values, tile)
    cdef Py_ssize_t i, row, first, count, split
    cdef uint8_t* norms
    cdef uint8_t* codes
    faults[:] = 0
    split = 4 * in_parts(n_values if decoded == NULL else min(tile, n_values), bucket)
    for i in prange(
        n_rows * n_tiles, num_threads=n_threads, schedule="dynamic",
        chunksize=at_once(n_rows * n_tiles, n_threads),
    ):
        row = i // n_tiles
        first = (i - row * n_tiles) * tile
        count = min(tile, n_values - first)
        if decoded == NULL:
            norms = &packed[row, 4 * (first // bucket)]
            codes = &packed[row, split + first // 8 * width]
        else:
            norms = &packed[threadid(), 0]
            codes = norms + split
        wrong = dither_pack(
            &values[row, first], count, first, stir(keys[row]), levels, width, bucket, order,
            norms, codes,
        )
        if wrong == 0 and decoded != NULL:
            wrong = dither_unpack(
                norms, codes, count, levels, width, bucket, decoded + row * n_values + first,
            )
        if wrong != 0:
            faults[row] = 1


def dither_encode(
    const real[:, ::1] values,            # IN  (N, V)
    const unsigned long long[::1] keys,   # IN  (N,)
    long long levels,
    Py_ssize_t bucket,
    double order,
    unsigned char[:, ::1] messages,       # OUT (N, bytes)  norms, then codes
    unsigned char[::1] faults,            # OUT (N,)        1 where a norm is not a finite float
    int n_threads,
):
    """Pack every row by random dithering.

    See `tests.twins.codecs.dither_encode`.
    """
    cdef Py_ssize_t n_rows = values.shape[0], n_values = values.shape[1]
    cdef Py_ssize_t n_parts = n_rows * in_parts(n_values, dither_tile(bucket))
    n_threads = worth(n_threads, n_parts, 3.0 * n_rows * n_values)
    with nogil:
        dither_rows(
            values, keys, levels, bucket, order, messages, <real*>NULL, faults, n_threads,
        )


def dither_decode(
    const unsigned char[:, ::1] messages,   # IN  (N, bytes)
    long long levels,
    Py_ssize_t bucket,
    real[:, ::1] values,                    # OUT (N, V)
    unsigned char[::1] faults,              # OUT (N,)  1 where a norm or a level is impossible
    int n_threads,
):
    """Unpack every row of `dither_encode`.

    See `tests.twins.codecs.dither_decode`.
    """
    cdef Py_ssize_t n_rows = values.shape[0], n_values = values.shape[1]
    cdef int width = bit_length(levels) + 1
    cdef Py_ssize_t tile = dither_tile(bucket), n_tiles = in_parts(n_values, tile)
    cdef Py_ssize_t codes = 4 * in_parts(n_values, bucket)
    cdef Py_ssize_t i, row, first
    faults[:] = 0
    n_threads = worth(n_threads, n_rows * n_tiles, 1.5 * n_rows * n_values)
    for i in prange(
        n_rows * n_tiles, nogil=True, num_threads=n_threads, schedule="dynamic",
        chunksize=at_once(n_rows * n_tiles, n_threads),
    ):
        row = i // n_tiles
        first = (i - row * n_tiles) * tile
        if dither_unpack(
            &messages[row, 0] + 4 * (first // bucket),
            &messages[row, 0] + codes + first // 8 * width,
            min(tile, n_values - first), levels, width, bucket, &values[row, first],
        ) != 0:
            faults[row] = 1


def dither_transmit(
    const real[:, ::1] values,            # IN  (N, V)
    const unsigned long long[::1] keys,   # IN  (N,)
    long long levels,
    Py_ssize_t bucket,
    double order,
    real[:, ::1] decoded,                 # OUT (N, V)
    unsigned char[::1] faults,            # OUT (N,)  1 where a norm is not a finite float
    int n_threads,
):
    """Pack and unpack every row, tile by tile in cache.

    As `dither_decode` of `dither_encode`.
    """
    cdef Py_ssize_t n_values = values.shape[1], tile = dither_tile(bucket)
    cdef Py_ssize_t most = min(tile, n_values), width = bit_length(levels) + 1
    cdef Py_ssize_t size = 4 * in_parts(most, bucket) + in_parts(most * width, 8)
    n_threads = worth(
        n_threads, values.shape[0] * in_parts(n_values, tile), 5.0 * values.shape[0] * n_values,
    )
    # Threads write to cache lines of their own.
    cdef unsigned char[:, ::1] work = np.empty((n_threads, 64 * in_parts(size, 64)), dtype=np.uint8)
    with nogil:
        dither_rows(
            values, keys, levels, bucket, order, work, &decoded[0, 0], faults, n_threads,
        )


# ---- natural compression: short floating point numbers -------------------------------------------

cdef int natural_pack(
    const real* values,       # IN  (count,)
    Py_ssize_t count,
    Py_ssize_t first,         # IN  place of the first value in its message
    uint64_t stream,
    int mantissa,             # IN  mantissa bits
    uint8_t* codes,           # OUT 9 bits and the mantissa's a value: sign, mantissa, exponent
) noexcept nogil:
    """Pack a tile; non-zero where a value is not finite or too large."""
    cdef Writer writer
    cdef Py_ssize_t j
    cdef int wrong = 0, shift = 52 - mantissa
    cdef uint64_t word, code, least = <uint64_t>(SHORT_BIAS + 1) << 52
    cdef double size, most = largest_short(mantissa), per_step = 1.0 / short_step(mantissa)
    open_writer(&writer, codes)
    for j in range(count):
        size = fabs(<double>values[j])
        if not size <= most:
            wrong = 1
            size = 0
        memcpy(&word, &size, 8)
        if word >= least:
            # Random bits below the mantissa carry into it as often as what is there asks for.
            code = (word + (draw(stream, first + j) >> (64 - shift))) >> shift
            code -= <uint64_t>SHORT_BIAS << mantissa
        else:
            size *= per_step
            code = <uint64_t>(<long long>size)
            code += draw_uniform(stream, first + j) < size - <double>(<long long>code)
        code = (code << 1) | ((values[j] < 0) & (code > 0))
        put_bits(&writer, code, mantissa + 9)
    finish_bits(&writer)
    return wrong


cdef void natural_unpack(
    const uint8_t* codes,     # IN  9 bits and the mantissa's a value
    Py_ssize_t count,
    int mantissa,
    real* values,             # OUT (count,)
) noexcept nogil:
    """Unpack a tile; every code is a number."""
    cdef Reader reader
    cdef Py_ssize_t j
    cdef int width = mantissa + 9
    cdef uint64_t code, word, sign
    cdef double size, step = short_step(mantissa)
    open_reader(&reader, codes, count, width)
    for j in range(count):
        code = take_bits(&reader, width)
        word = code >> 1
        sign = (code & (word > 0)) << 63
        if word >> mantissa:
            word = (word + (<uint64_t>SHORT_BIAS << mantissa)) << (52 - mantissa)
        else:
            size = step * <double>(<long long>word)
            memcpy(&word, &size, 8)
        word |= sign
        memcpy(&size, &word, 8)
        values[j] = <real>size


cdef void natural_rows(
    const real[:, ::1] values,            # IN  (N, V)
    const unsigned long long[::1] keys,   # IN  (N,)
    int mantissa,
    unsigned char[:, ::1] packed,         # OUT (N, bytes), or WORK (n_threads, bytes)
    real* decoded,                        # OUT (N, V), or NULL
    unsigned char[::1] faults,            # OUT (N,)
    int n_threads,
) noexcept nogil:
    """Pack every row, or pack and unpack it tile by tile."""
    cdef Py_ssize_t n_rows = values.shape[0], n_values = values.shape[1]
    cdef Py_ssize_t n_tiles = in_parts(n_values, TILE), i, row, first, count
    cdef uint8_t* codes
    cdef int wrong
    faults[:] = 0
    for i in prange(
        n_rows * n_tiles, num_threads=n_threads, schedule="dynamic",
        chunksize=at_once(n_rows * n_tiles, n_threads),
    ):
        row = i // n_tiles
        first = (i - row * n_tiles) * TILE
        count = min(<Py_ssize_t>TILE, n_values - first)
        if decoded == NULL:
            codes = &packed[row, first // 8 * (mantissa + 9)]
        else:
            codes = &packed[threadid(), 0]
        wrong = natural_pack(&values[row, first], count, first, stir(keys[row]), mantissa, codes)
        if wrong != 0:
            faults[row] = 1
        if decoded != NULL:
            natural_unpack(codes, count, mantissa, decoded + row * n_values + first)


def natural_encode(
    const real[:, ::1] values,            # IN  (N, V)
    const unsigned long long[::1] keys,   # IN  (N,)
    int mantissa,
    unsigned char[:, ::1] messages,       # OUT (N, bytes)
    unsigned char[::1] faults,            # OUT (N,)  1 where a value is not finite or too large
    int n_threads,
):
    """Pack every row as short floating point numbers, rounded at random.

    See `tests.twins.codecs.natural_encode`.
    """
    cdef Py_ssize_t n_parts = values.shape[0] * in_parts(values.shape[1], TILE)
    n_threads = worth(n_threads, n_parts, 2.0 * values.shape[0] * values.shape[1])
    with nogil:
        natural_rows(values, keys, mantissa, messages, <real*>NULL, faults, n_threads)


def natural_decode(
    const unsigned char[:, ::1] messages,   # IN  (N, bytes)
    int mantissa,
    real[:, ::1] values,                    # OUT (N, V)
    unsigned char[::1] faults,              # OUT (N,)  0
    int n_threads,
):
    """Unpack every row of `natural_encode`.

    See `tests.twins.codecs.natural_decode`.
    """
    cdef Py_ssize_t n_rows = values.shape[0], n_values = values.shape[1]
    cdef Py_ssize_t n_tiles = in_parts(n_values, TILE), i, row, first
    faults[:] = 0
    n_threads = worth(n_threads, n_rows * n_tiles, 1.3 * n_rows * n_values)
    for i in prange(
        n_rows * n_tiles, nogil=True, num_threads=n_threads, schedule="dynamic",
        chunksize=at_once(n_rows * n_tiles, n_threads),
    ):
        row = i // n_tiles
        first = (i - row * n_tiles) * TILE
        natural_unpack(
            &messages[row, 0] + first // 8 * (mantissa + 9),
            min(<Py_ssize_t>TILE, n_values - first), mantissa, &values[row, first],
        )


def natural_transmit(
    const real[:, ::1] values,            # IN  (N, V)
    const unsigned long long[::1] keys,   # IN  (N,)
    int mantissa,
    real[:, ::1] decoded,                 # OUT (N, V)
    unsigned char[::1] faults,            # OUT (N,)  1 where a value is not finite or too large
    int n_threads,
):
    """Pack and unpack every row, tile by tile in cache.

    As `natural_decode` of `natural_encode`.
    """
    cdef Py_ssize_t n_parts = values.shape[0] * in_parts(values.shape[1], TILE)
    n_threads = worth(n_threads, n_parts, 3.0 * values.shape[0] * values.shape[1])
    cdef Py_ssize_t size = TILE // 8 * (mantissa + 9)
    cdef unsigned char[:, ::1] work = np.empty((n_threads, size), dtype=np.uint8)
    with nogil:
        natural_rows(values, keys, mantissa, work, &decoded[0, 0], faults, n_threads)


# ---- some of the values: top-k and rand-k -------------------------------------------------------

cdef inline float rounded_at_random(double value, double chance) noexcept nogil:
    """One of the floats next to the value, so that the mean is the value."""
    cdef float low = <float>value, high
    if <double>low > value:
        low = nextafterf(low, -INFINITY)
    if <double>low == value:
        return low
    high = nextafterf(low, INFINITY)
    if chance * (<double>high - <double>low) < value - <double>low:
        return high
    return low


cdef uint64_t least_kept(
    uint64_t* scores,         # WORK (count,)  overwritten
    Py_ssize_t count,
    Py_ssize_t* n_kept,       # INOUT how many of the largest; how many of them are equal to it
    Py_ssize_t* counts,       # WORK (N_DIGITS,)
) noexcept nogil:
    """Return the least of the ``n_kept`` largest scores, looking at a few bits at a time."""
    cdef uint64_t prefix = 0
    cdef Py_ssize_t j, size
    cdef int digit, shift = 64
    while shift > 0:
        shift = max(0, shift - DIGIT)
        memset(counts, 0, N_DIGITS * sizeof(Py_ssize_t))
        for j in range(count):
            counts[(scores[j] >> shift) & (N_DIGITS - 1)] += 1
        digit = N_DIGITS - 1
        while counts[digit] < n_kept[0]:
            n_kept[0] -= counts[digit]
            digit -= 1
        size = 0
        for j in range(count):
            if ((scores[j] >> shift) & (N_DIGITS - 1)) == <uint64_t>digit:
                scores[size] = scores[j] & ((<uint64_t>1 << shift) - 1)
                size += 1
        count = size
        prefix |= <uint64_t>digit << shift
    return prefix


cdef int sparse_pack(
    const real* values,       # IN  (n_values,)
    Py_ssize_t n_values,
    uint64_t stream,
    Py_ssize_t n_kept,
    bint at_random,
    uint8_t* message,         # OUT indices, then floats
    uint64_t* scores,         # WORK (2, n_values)
    Py_ssize_t* counts,       # WORK (N_DIGITS,)
) noexcept nogil:
    """Pack a row; non-zero where a value is not finite or one sent is not a finite float."""
    cdef Writer writer
    cdef int width = bit_length(n_values - 1)
    cdef uint8_t* place = message + (n_kept * width + 7) // 8
    cdef double value, times = <double>n_values / <double>n_kept
    cdef uint64_t least
    cdef Py_ssize_t j, equal = n_kept
    for j in range(n_values):
        value = fabs(<double>values[j])
        if not isfinite(value):
            return 1
        if at_random:
            scores[j] = draw(stream, j)
        else:
            memcpy(&scores[j], &value, 8)
    memcpy(scores + n_values, scores, n_values * sizeof(uint64_t))
    least = least_kept(scores + n_values, n_values, &equal, counts)
    open_writer(&writer, message)
    for j in range(n_values):
        if scores[j] < least:
            continue
        if scores[j] == least:
            if equal == 0:
                continue
            equal -= 1
        value = values[j]
        if at_random:
            value *= times
        if fabs(value) > FLT_MAX:
            return 1
        put_bits(&writer, j, width)
        if at_random:
            store_float(place, rounded_at_random(value, draw_uniform(stream, n_values + j)))
        else:
            store_float(place, <float>value)
        place += 4
    finish_bits(&writer)
    return 0


cdef int sparse_unpack(
    const uint8_t* message,   # IN
    Py_ssize_t n_values,
    Py_ssize_t n_kept,
    real* values,             # OUT (n_values,)
) noexcept nogil:
    """Unpack a row; non-zero where indices do not rise below n, or a value is not finite."""
    cdef Reader reader
    cdef int width = bit_length(n_values - 1)
    cdef const uint8_t* place = message + (n_kept * width + 7) // 8
    cdef Py_ssize_t _j, index, before = -1
    cdef float value
    open_reader(&reader, message, n_kept, width)
    memset(values, 0, n_values * sizeof(real))
    for _j in range(n_kept):
        index = <Py_ssize_t>take_bits(&reader, width)
        value = load_float(place)
        place += 4
        if index <= before or index >= n_values or not isfinite(value):
            return 1
        values[index] = value
        before = index
    return 0


def sparse_encode(
    const real[:, ::1] values,            # IN  (N, V)
    const unsigned long long[::1] keys,   # IN  (N,)
    Py_ssize_t n_kept,
    bint at_random,
    unsigned char[:, ::1] messages,       # OUT (N, bytes)  indices, then floats
    unsigned char[::1] faults,            # OUT (N,)        1 where a value cannot be sent
    int n_threads,
):
    """Pack the largest values of every row, or some at random.

    See `tests.twins.codecs.sparse_encode`.
    """
    cdef Py_ssize_t n_rows = values.shape[0], n_values = values.shape[1], row
    n_threads = worth(n_threads, n_rows, 8.0 * n_rows * n_values)
    cdef unsigned long long[:, ::1] scores = np.empty((n_threads, 2 * n_values), dtype=np.uint64)
    cdef Py_ssize_t[:, ::1] counts = np.empty((n_threads, N_DIGITS), dtype=np.intp)
    for row in prange(
        n_rows, nogil=True, num_threads=n_threads, schedule="dynamic",
        chunksize=at_once(n_rows, n_threads),
    ):
        faults[row] = sparse_pack(
            &values[row, 0], n_values, stir(keys[row]), n_kept, at_random, &messages[row, 0],
            <uint64_t*>&scores[threadid(), 0], &counts[threadid(), 0],
        )


def sparse_decode(
    const unsigned char[:, ::1] messages,   # IN  (N, bytes)
    Py_ssize_t n_kept,
    real[:, ::1] values,                    # OUT (N, V)
    unsigned char[::1] faults,              # OUT (N,)  1 where an index or a value is impossible
    int n_threads,
):
    """Unpack every row of `sparse_encode`.

    See `tests.twins.codecs.sparse_decode`.
    """
    cdef Py_ssize_t n_rows = values.shape[0], n_values = values.shape[1], row
    n_threads = worth(n_threads, n_rows, 0.3 * n_rows * n_values)
    for row in prange(
        n_rows, nogil=True, num_threads=n_threads, schedule="dynamic",
        chunksize=at_once(n_rows, n_threads),
    ):
        faults[row] = sparse_unpack(&messages[row, 0], n_values, n_kept, &values[row, 0])


def sparse_transmit(
    const real[:, ::1] values,            # IN  (N, V)
    const unsigned long long[::1] keys,   # IN  (N,)
    Py_ssize_t n_kept,
    bint at_random,
    real[:, ::1] decoded,                 # OUT (N, V)
    unsigned char[::1] faults,            # OUT (N,)  1 where a value cannot be sent
    int n_threads,
):
    """Pack and unpack every row.

    As `sparse_decode` of `sparse_encode`.
    """
    cdef Py_ssize_t n_rows = values.shape[0], n_values = values.shape[1], row
    cdef Py_ssize_t room = (n_kept * bit_length(n_values - 1) + 7) // 8 + 4 * n_kept
    n_threads = worth(n_threads, n_rows, 8.0 * n_rows * n_values)
    cdef unsigned long long[:, ::1] scores = np.empty((n_threads, 2 * n_values), dtype=np.uint64)
    cdef Py_ssize_t[:, ::1] counts = np.empty((n_threads, N_DIGITS), dtype=np.intp)
    cdef unsigned char[:, ::1] work = np.empty((n_threads, room), dtype=np.uint8)
    for row in prange(
        n_rows, nogil=True, num_threads=n_threads, schedule="dynamic",
        chunksize=at_once(n_rows, n_threads),
    ):
        faults[row] = sparse_pack(
            &values[row, 0], n_values, stir(keys[row]), n_kept, at_random, &work[threadid(), 0],
            <uint64_t*>&scores[threadid(), 0], &counts[threadid(), 0],
        )
        if faults[row] == 0:
            faults[row] = sparse_unpack(&work[threadid(), 0], n_values, n_kept, &decoded[row, 0])


# ---- casts --------------------------------------------------------------------------------------

cdef int cast_pack(
    const real* values, Py_ssize_t count, int itemsize, uint8_t* message,
) noexcept nogil:
    """Pack values as numbers of 2, 4 or 8 bytes; non-zero where one has no finite such number."""
    cdef Py_ssize_t j
    cdef uint16_t half
    cdef int wrong = 0
    if itemsize == 2:
        for j in range(count):
            wrong |= not fabs(<double>values[j]) <= LARGEST_HALF
            half = to_half(values[j])
            message[2 * j] = <uint8_t>half
            message[2 * j + 1] = <uint8_t>(half >> 8)
    elif itemsize == 4:
        for j in range(count):
            wrong |= not fabs(<double>values[j]) <= FLT_MAX
            store_float(message + 4 * j, <float>values[j])
    else:
        for j in range(count):
            wrong |= not isfinite(values[j])
            store_double(message + 8 * j, <double>values[j])
    return wrong


cdef int cast_unpack(
    const uint8_t* message, Py_ssize_t count, int itemsize, real* values,
) noexcept nogil:
    """Unpack numbers of 2, 4 or 8 bytes; non-zero where one is not finite as a value."""
    cdef Py_ssize_t j
    cdef uint16_t half
    cdef int wrong = 0
    if itemsize == 2:
        for j in range(count):
            half = <uint16_t>(message[2 * j] | <unsigned int>message[2 * j + 1] << 8)
            wrong |= (half & 0x7C00) == 0x7C00
            values[j] = <real>from_half(half)
    elif itemsize == 4:
        for j in range(count):
            values[j] = load_float(message + 4 * j)
            wrong |= not isfinite(values[j])
    else:
        for j in range(count):
            values[j] = <real>load_double(message + 8 * j)
            wrong |= not isfinite(values[j])
    return wrong


def cast_encode(
    const real[:, ::1] values,            # IN  (N, V)
    int itemsize,
    unsigned char[:, ::1] messages,       # OUT (N, V * itemsize)
    unsigned char[::1] faults,            # OUT (N,)  1 where a value has no finite such number
    int n_threads,
):
    """Pack every row as floating point numbers of 2, 4 or 8 bytes.

    See `tests.twins.codecs.cast_encode`.
    """
    cdef Py_ssize_t n_rows = values.shape[0], n_values = values.shape[1], row
    n_threads = worth(n_threads, n_rows, 0.7 * n_rows * n_values)
    for row in prange(
        n_rows, nogil=True, num_threads=n_threads, schedule="dynamic",
        chunksize=at_once(n_rows, n_threads),
    ):
        faults[row] = cast_pack(&values[row, 0], n_values, itemsize, &messages[row, 0])


def cast_decode(
    const unsigned char[:, ::1] messages,   # IN  (N, V * itemsize)
    int itemsize,
    real[:, ::1] values,                    # OUT (N, V)
    unsigned char[::1] faults,              # OUT (N,)  1 where a number is not finite as a value
    int n_threads,
):
    """Unpack every row of `cast_encode`.

    See `tests.twins.codecs.cast_decode`.
    """
    cdef Py_ssize_t n_rows = values.shape[0], n_values = values.shape[1], row
    n_threads = worth(n_threads, n_rows, 0.7 * n_rows * n_values)
    for row in prange(
        n_rows, nogil=True, num_threads=n_threads, schedule="dynamic",
        chunksize=at_once(n_rows, n_threads),
    ):
        faults[row] = cast_unpack(&messages[row, 0], n_values, itemsize, &values[row, 0])


def cast_transmit(
    const real[:, ::1] values,            # IN  (N, V)
    int itemsize,
    real[:, ::1] decoded,                 # OUT (N, V)
    unsigned char[::1] faults,            # OUT (N,)  1 where a value has no finite such number
    int n_threads,
):
    """Pack and unpack every row, tile by tile in cache.

    As `cast_decode` of `cast_encode`.
    """
    cdef Py_ssize_t n_rows = values.shape[0], n_values = values.shape[1]
    cdef Py_ssize_t n_tiles = in_parts(n_values, TILE), i, row, first, count
    cdef unsigned char* place
    n_threads = worth(n_threads, n_rows * n_tiles, 1.5 * n_rows * n_values)
    cdef unsigned char[::1] work = np.empty(n_threads * TILE * itemsize, dtype=np.uint8)
    faults[:] = 0
    for i in prange(
        n_rows * n_tiles, nogil=True, num_threads=n_threads, schedule="dynamic",
        chunksize=at_once(n_rows * n_tiles, n_threads),
    ):
        row = i // n_tiles
        first = (i - row * n_tiles) * TILE
        count = min(<Py_ssize_t>TILE, n_values - first)
        place = &work[threadid() * TILE * itemsize]
        if (
            cast_pack(&values[row, first], count, itemsize, place) != 0
            or cast_unpack(place, count, itemsize, &decoded[row, first]) != 0
        ):
            faults[row] = 1
