"""How many threads some work is worth, and the parts in which they take it.

A thread that has to be woken costs a few 10 microseconds, and beside processes that keep all
processors busy some 100: little work is quicker done by one. Parts are handed out one by one, so
that a thread that is held up takes fewer of them.
"""

cdef enum:
    WORTH_A_THREAD = 350000  # nanoseconds of work for each thread, where there is more than one
    PARTS_A_THREAD = 16
    WORTH_A_SHARE = 30000    # nanoseconds, and for each number that a share adds up
    WORTH_A_NUMBER = 60
    MOST_SHARES = 64
    FEW_SHARES = 4
    SHARES_BYTES = 8388608   # of all shares that are kept at a time, where they are more than few


cdef inline int worth(int n_threads, Py_ssize_t n_parts, double nanoseconds) noexcept nogil:
    """Threads for so many parts that take one thread so long, roughly: of those given, at least 1.
    """
    cdef double most = min(nanoseconds / WORTH_A_THREAD, <double>n_parts)
    return <int>max(1.0, min(most, <double>n_threads))


cdef inline Py_ssize_t at_once(Py_ssize_t n_items, int n_threads) noexcept nogil:
    """Items that a thread takes at a time."""
    if n_threads == 1:
        return max(<Py_ssize_t>1, n_items)
    return max(<Py_ssize_t>1, n_items // (PARTS_A_THREAD * n_threads))


cdef inline Py_ssize_t shares_of(
    Py_ssize_t n_tiles, double nanoseconds, Py_ssize_t n_numbers,
) noexcept nogil:
    """Shares of tiles whose sums, of so many numbers, are kept apart and added up in order.

    They depend on sizes alone, so that results do not depend on the number of threads; they are
    few enough for the work to be much more than adding them up.
    """
    cdef double most = nanoseconds / (WORTH_A_SHARE + <double>WORTH_A_NUMBER * n_numbers)
    return <Py_ssize_t>max(1.0, min(most, min(<double>n_tiles, <double>MOST_SHARES)))


cdef inline Py_ssize_t kept_at_once(
    Py_ssize_t n_shares, Py_ssize_t n_numbers, int least,
) noexcept nogil:
    """Of these shares, those whose sums are kept at a time: at least so many."""
    cdef Py_ssize_t room = SHARES_BYTES // (8 * n_numbers + 1)
    return min(n_shares, max(room, <Py_ssize_t>least))


cdef inline Py_ssize_t all_kept(Py_ssize_t n_tiles, Py_ssize_t n_numbers) noexcept nogil:
    """Shares of which all sums are kept until the end: few of large sums.

    They do not depend on how much work a tile is, so that sums of some features are the same bits
    whatever features are beside them.
    """
    return kept_at_once(min(n_tiles, <Py_ssize_t>MOST_SHARES), n_numbers, FEW_SHARES)


cdef inline void add_shares(
    double* kept,                    # IN    (n_shares, n_numbers)  used up
    Py_ssize_t n_shares,
    Py_ssize_t n_numbers,
    double* total,                   # INOUT (n_numbers,)
) noexcept nogil:
    """Add the sums of all shares, one share after the other, also where there is one number."""
    cdef Py_ssize_t share, i
    for share in range(1, n_shares):
        for i in range(n_numbers):
            kept[i] += kept[share * n_numbers + i]
    for i in range(n_numbers):
        total[i] += kept[i]


cdef inline Py_ssize_t share_begin(
    Py_ssize_t share, Py_ssize_t n_shares, Py_ssize_t n_tiles,
) noexcept nogil:
    """First tile of a share; that of the next is where it ends.

    Large shares come first and small ones last, so that threads end together.
    """
    cdef Py_ssize_t left = n_shares - share
    return n_tiles - n_tiles * left * left // (n_shares * n_shares)
