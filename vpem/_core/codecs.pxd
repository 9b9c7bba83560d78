"""What packed messages are made of: random numbers by counting, bits, half-precision numbers."""
from libc.math cimport ldexp, rint
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy

cdef enum:
    HALF_SHIFT = 42       # bits of a double's fraction that a half has not
    HALF_BIAS = 1008      # of a double's exponent, less that of a half
    SHORT_BIAS = 895      # of a double's exponent, less that of a short number

cdef struct Writer:
    uint8_t* place
    uint64_t held         # bits not yet written, the next one lowest
    int n_held            # fewer than 32 between calls

cdef struct Reader:
    const uint8_t* place
    const uint8_t* end
    uint64_t held
    int n_held


# ---- random numbers -----------------------------------------------------------------------------

cdef inline uint64_t stir(uint64_t word) noexcept nogil:
    """Finaliser of SplitMix64."""
    word = (word ^ (word >> 30)) * <uint64_t>0xBF58476D1CE4E5B9
    word = (word ^ (word >> 27)) * <uint64_t>0x94D049BB133111EB
    return word ^ (word >> 31)


cdef inline uint64_t draw(uint64_t stream, uint64_t index) noexcept nogil:
    """Random 64 bits of one index; ``stream`` is the stirred key."""
    return stir(stream + (index + 1) * <uint64_t>0x9E3779B97F4A7C15)


cdef inline double draw_uniform(uint64_t stream, uint64_t index) noexcept nogil:
    """Random multiple of 2^-53 in [0, 1)."""
    return <double>(<long long>(draw(stream, index) >> 11)) * (1.0 / 9007199254740992.0)


# ---- bytes, lowest first ------------------------------------------------------------------------

cdef inline void store32(uint8_t* place, uint32_t word) noexcept nogil:
    place[0] = <uint8_t>word
    place[1] = <uint8_t>(word >> 8)
    place[2] = <uint8_t>(word >> 16)
    place[3] = <uint8_t>(word >> 24)


cdef inline uint32_t load32(const uint8_t* place) noexcept nogil:
    return (
        <uint32_t>place[0] | <uint32_t>place[1] << 8
        | <uint32_t>place[2] << 16 | <uint32_t>place[3] << 24
    )


cdef inline void store_float(uint8_t* place, float value) noexcept nogil:
    cdef uint32_t word
    memcpy(&word, &value, 4)
    store32(place, word)


cdef inline float load_float(const uint8_t* place) noexcept nogil:
    cdef uint32_t word = load32(place)
    cdef float value
    memcpy(&value, &word, 4)
    return value


cdef inline void store_double(uint8_t* place, double value) noexcept nogil:
    cdef uint64_t word
    memcpy(&word, &value, 8)
    store32(place, <uint32_t>word)
    store32(place + 4, <uint32_t>(word >> 32))


cdef inline double load_double(const uint8_t* place) noexcept nogil:
    cdef uint64_t word = <uint64_t>load32(place) | <uint64_t>load32(place + 4) << 32
    cdef double value
    memcpy(&value, &word, 8)
    return value


# ---- bits, lowest first -------------------------------------------------------------------------

cdef inline void put_bits(Writer* writer, uint64_t code, int width) noexcept nogil:
    """Append ``width`` bits, at most 32."""
    writer.held |= code << writer.n_held
    writer.n_held += width
    if writer.n_held >= 32:
        store32(writer.place, <uint32_t>writer.held)
        writer.place += 4
        writer.held >>= 32
        writer.n_held -= 32


cdef inline void finish_bits(Writer* writer) noexcept nogil:
    """Write what is held, the last byte filled up by zeros."""
    while writer.n_held > 0:
        writer.place[0] = <uint8_t>writer.held
        writer.place += 1
        writer.held >>= 8
        writer.n_held -= 8


cdef inline uint64_t take_bits(Reader* reader, int width) noexcept nogil:
    """Next ``width`` bits, at most 32; zeros after the end."""
    cdef uint64_t code
    if reader.n_held < width:
        if reader.end - reader.place >= 4:
            reader.held |= <uint64_t>load32(reader.place) << reader.n_held
            reader.place += 4
            reader.n_held += 32
        else:
            while reader.n_held < width:
                if reader.place < reader.end:
                    reader.held |= <uint64_t>reader.place[0] << reader.n_held
                    reader.place += 1
                reader.n_held += 8
    code = reader.held & ((<uint64_t>1 << width) - 1)
    reader.held >>= width
    reader.n_held -= width
    return code


# ---- half precision -----------------------------------------------------------------------------

cdef inline uint16_t to_half(double value) noexcept nogil:
    """Nearest half-precision number (ties to even) of a value between -65504 and 65504."""
    cdef uint64_t word
    cdef uint64_t sign
    memcpy(&word, &value, 8)
    sign = (word >> 63) << 15
    word &= <uint64_t>0x7FFFFFFFFFFFFFFF
    if word < <uint64_t>(HALF_BIAS + 1) << 52:  # below 2^-14: a multiple of 2^-24
        word = <uint64_t>(<long long>rint((value if value >= 0 else -value) * 16777216.0))
    else:
        word += ((<uint64_t>1 << (HALF_SHIFT - 1)) - 1) + ((word >> HALF_SHIFT) & 1)
        word = (word >> HALF_SHIFT) - (<uint64_t>HALF_BIAS << 10)
    return <uint16_t>(word | sign)


cdef inline double from_half(uint16_t half) noexcept nogil:
    """Value of a finite half-precision number."""
    cdef uint64_t word = half & 0x7FFF
    cdef uint64_t sign = <uint64_t>(half >> 15) << 63
    cdef double value
    if word < 0x400:
        value = <double>(<int>word) / 16777216.0
        memcpy(&word, &value, 8)
    else:
        word = (word + (<uint64_t>HALF_BIAS << 10)) << HALF_SHIFT
    word |= sign
    memcpy(&value, &word, 8)
    return value


# ---- short numbers: 8 bits of exponent, some of mantissa ----------------------------------------

cdef inline double largest_short(int mantissa) noexcept nogil:
    """Largest short number: all bits set."""
    return ldexp(2.0 - ldexp(1.0, -mantissa), 127)


cdef inline double short_step(int mantissa) noexcept nogil:
    """Distance of the short numbers nearest to zero, and the least of them."""
    return ldexp(1.0, -127 - mantissa)
