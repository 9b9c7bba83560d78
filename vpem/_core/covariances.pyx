"""Covariance blocks from their accumulated moments: the last line of the M-step."""


def covariances_full(
    const double[:, ::1] first_moment,    # IN  (K, d)                    sum g (x - shift)
    const double[::1] second_moment,      # IN  (n_copies * sum d_b^2,)   lower triangles
    const double[:, ::1] counts,          # IN  (R, K)                    sum g
    const Py_ssize_t[::1] offsets,        # IN  (B + 1,)
    const double[::1] reg_covar,          # IN  (d,)
    double[::1] covariances,              # OUT (n_copies * sum d_b^2,)   symmetric
):
    """Covariance of every block about its new mean, plus ``reg_covar`` on the diagonal.

    See `tests.twins.mixture.covariances_full`.
    """
    cdef Py_ssize_t n_components = first_moment.shape[0], n_roots = counts.shape[0]
    cdef Py_ssize_t n_blocks = offsets.shape[0] - 1
    cdef Py_ssize_t b, r, k, c, i, j, left, width, squares = 0, start = 0
    cdef double total, value
    for b in range(n_blocks):
        width = offsets[b + 1] - offsets[b]
        squares += width * width
    cdef bint tied = n_components > 1 and second_moment.shape[0] == squares
    cdef Py_ssize_t n_copies = 1 if tied else n_components
    with nogil:
        for b in range(n_blocks):
            r = b if n_roots > 1 else 0
            left = offsets[b]
            width = offsets[b + 1] - left
            for c in range(n_copies):
                total = 0
                for k in range(n_components if tied else 1):
                    total += counts[r, k if tied else c]
                for i in range(width):
                    for j in range(i + 1):
                        value = second_moment[start + i * width + j]
                        for k in range(n_components if tied else 1):
                            value -= scatter_of_mean(
                                first_moment, counts[r, k if tied else c], k if tied else c,
                                left + i, left + j,
                            )
                        value = value / total if total > 0 else 0
                        if i == j:
                            value = (0 if value < 0 else value) + reg_covar[left + i]
                        covariances[start + i * width + j] = value
                        covariances[start + j * width + i] = value
                start += width * width


cdef inline double scatter_of_mean(
    const double[:, ::1] first_moment, double count, Py_ssize_t k, Py_ssize_t i, Py_ssize_t j,
) noexcept nogil:
    return first_moment[k, i] * first_moment[k, j] / count if count > 0 else 0


def covariances_diag(
    const double[:, ::1] first_moment,    # IN  (K, d)
    const double[:, ::1] second_moment,   # IN  (n_copies, d)
    const double[:, ::1] counts,          # IN  (R, K)
    const Py_ssize_t[::1] offsets,        # IN  (B + 1,)
    const double[::1] reg_covar,          # IN  (d,)
    bint spherical,                       # one variance a block
    double[:, ::1] variances,             # OUT (n_copies, d)
):
    """Variance of every feature about its new mean, averaged inside a block if ``spherical``.

    See `tests.twins.mixture.covariances_diag`.
    """
    cdef Py_ssize_t n_components = first_moment.shape[0], n_roots = counts.shape[0]
    cdef Py_ssize_t n_copies = second_moment.shape[0]
    cdef bint tied = n_components > 1 and n_copies == 1
    cdef Py_ssize_t b, r, k, c, j, left, right
    cdef double total, value, mean
    with nogil:
        for b in range(offsets.shape[0] - 1):
            r = b if n_roots > 1 else 0
            left = offsets[b]
            right = offsets[b + 1]
            for c in range(n_copies):
                total = 0
                for k in range(n_components if tied else 1):
                    total += counts[r, k if tied else c]
                mean = 0
                for j in range(left, right):
                    value = second_moment[c, j]
                    for k in range(n_components if tied else 1):
                        value -= scatter_of_mean(
                            first_moment, counts[r, k if tied else c], k if tied else c, j, j
                        )
                    value = value / total if total > 0 else 0
                    value = (0 if value < 0 else value) + reg_covar[j]
                    variances[c, j] = value
                    mean += value
                if spherical:
                    for j in range(left, right):
                        variances[c, j] = mean / (right - left)
