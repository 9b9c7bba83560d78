"""Topics of documents: sparse rows of words, and the topics' probabilities of each word.

Random numbers come from the keys of each document and the place of the number, and sums over
documents are taken word by word, so that threads do not show.
"""
from cython.parallel cimport prange
from libc.math cimport exp, fabs, fmax, log, sqrt
from libc.stdint cimport uint64_t

import numpy as np

from scipy.special.cython_special cimport gammaln, psi

from vpem._core.codecs cimport draw, stir
from vpem._core.latents cimport normal_of, uniform_of
from vpem._core.shares cimport PARTS_A_THREAD, at_once, worth


cdef inline double log_gamma_of(double shape, uint64_t stream) noexcept nogil:
    """Logarithm of a gamma number (Marsaglia and Tsang 2000); of a small shape by shape + 1."""
    cdef double x, v, d, c, more = 0
    cdef uint64_t place = 1
    if shape < 1:
        more = log(uniform_of(stream, 0)) / shape
        shape += 1
    d = shape - 1.0 / 3
    c = 1 / sqrt(9 * d)
    while True:
        x = normal_of(stream, place)
        v = 1 + c * x
        if v > 0:
            v = v * v * v
            if log(uniform_of(stream, place + 1)) < 0.5 * x * x + d - d * v + d * log(v):
                return log(d * v) + more
        place += 2


cdef inline void shares_of_topics(
    const double* z, Py_ssize_t K,
    double* shares,                   # OUT (K,)
) noexcept nogil:
    """Proportions of topics: exp(z), which add up to 1."""
    cdef Py_ssize_t k
    cdef double most = z[0], total = 0
    for k in range(1, K):
        most = fmax(most, z[k])
    for k in range(K):
        shares[k] = exp(z[k] - most)
        total += shares[k]
    for k in range(K):
        shares[k] /= total


cdef void sweep_document(
    const Py_ssize_t* words, const double* counts, Py_ssize_t n_rows, const double* topics,
    Py_ssize_t K, double alpha, uint64_t of_words, uint64_t of_shares, Py_ssize_t chain,
    double* z,                        # IN, OUT (K,)
    double* room,                     # (3 K,)
) noexcept nogil:
    """One sweep over the words of a document, and then its proportions."""
    cdef double* below = room + K
    cdef double* held = room + 2 * K
    cdef const double* own
    cdef Py_ssize_t row, k, low, high, _token, n_tokens = 0, place
    cdef double run, u
    shares_of_topics(z, K, room)
    for k in range(K):
        held[k] = 0
    for row in range(n_rows):
        n_tokens += <Py_ssize_t>counts[row]
    place = chain * n_tokens
    for row in range(n_rows):
        own = topics + words[row] * K
        run = 0
        for k in range(K):
            run += room[k] * own[k]
            below[k] = run
        for _token in range(<Py_ssize_t>counts[row]):
            u = run * uniform_of(of_words, place)
            place += 1
            low = 0
            high = K - 1
            while low < high:
                k = (low + high) // 2
                if u < below[k]:
                    high = k
                else:
                    low = k + 1
            held[low] += 1
    run = 0
    for k in range(K):
        z[k] = log_gamma_of(alpha + held[k], draw(of_shares, chain * K + k))
        run += z[k] / K
    run -= normal_of(stir(of_shares + 1), chain)
    for k in range(K):
        z[k] -= run


def sweep_topics(
    const Py_ssize_t[::1] first,              # IN  (n + 1,)  rows of each document
    const Py_ssize_t[::1] words,              # IN  (N,)      word of each row
    const double[::1] counts,                 # IN  (N,)      how often it comes
    const double[:, ::1] topics,              # IN  (V, K)    probabilities of words
    double alpha,
    const unsigned long long[:, ::1] keys,    # IN  (2 sweeps, n)
    double[:, :, ::1] z,                      # IN, OUT (chains, n, K)
    int n_threads,
):
    """Draw topics of all words, then logarithms of proportions, unscaled, given these.

    See `tests.twins.models.sweep_topics`.
    """
    cdef Py_ssize_t n = z.shape[1], K = z.shape[2], n_chains = z.shape[0], i, c, each, sweep, part
    cdef Py_ssize_t n_sweeps = keys.shape[0] // 2, items = n * n_chains, n_parts
    n_threads = worth(n_threads, items, 3.0 * words.shape[0] * K * n_chains * n_sweeps)
    n_parts = min(items, PARTS_A_THREAD * n_threads)
    cdef double[:, ::1] room = np.empty((n_parts, 3 * K))
    for part in prange(n_parts, nogil=True, num_threads=n_threads, schedule="dynamic", chunksize=1):
        for each in range(part * items // n_parts, (part + 1) * items // n_parts):
            c = each // n
            i = each - c * n
            for sweep in range(n_sweeps):
                sweep_document(
                    &words[first[i]], &counts[first[i]], first[i + 1] - first[i], &topics[0, 0], K,
                    alpha, stir(keys[2 * sweep, i]), stir(keys[2 * sweep + 1, i]), c, &z[c, i, 0],
                    &room[part, 0],
                )


def means_of_topics(
    const Py_ssize_t[::1] first,              # IN  (V + 1,)  rows of each word
    const Py_ssize_t[::1] documents,          # IN  (N,)      document of each row
    const double[::1] counts,                 # IN  (N,)
    const double[:, ::1] topics,              # IN  (V, K)
    const double[:, :, ::1] shares,           # IN  (chains, n, K)  proportions
    const Py_ssize_t[::1] groups,             # IN  (n,)  group of each document, or -1
    const double[::1] weights,                # IN  (n,)  what it counts there
    double[:, :, ::1] out,                    # OUT (G, K, V)
    int n_threads,
):
    """Expected counts of topics and words, added up over the documents of each group.

    See `tests.twins.models.means_of_topics`.
    """
    cdef Py_ssize_t V = topics.shape[0], K = topics.shape[1], n_chains = shares.shape[0]
    cdef Py_ssize_t v, row, i, c, k, g
    cdef double run, each
    n_threads = worth(n_threads, V, 2.0 * documents.shape[0] * K * n_chains)
    for v in prange(
        V, nogil=True, num_threads=n_threads, schedule="dynamic", chunksize=at_once(V, n_threads),
    ):
        for row in range(first[v], first[v + 1]):
            i = documents[row]
            g = groups[i]
            if g < 0:
                continue
            for c in range(n_chains):
                run = 0
                for k in range(K):
                    run = run + shares[c, i, k] * topics[v, k]
                each = weights[i] * counts[row] / (run * n_chains)
                for k in range(K):
                    out[g, k, v] += each * shares[c, i, k] * topics[v, k]


def density_of_topics(
    const Py_ssize_t[::1] first,              # IN  (n + 1,)
    const Py_ssize_t[::1] words,              # IN  (N,)
    const double[::1] counts,                 # IN  (N,)
    const double[:, ::1] topics,              # IN  (V, K)
    double alpha,
    const double[:, :, ::1] z,                # IN  (chains, n, K)
    double[:, ::1] value,                     # OUT (chains, n)
    double[:, :, ::1] slope,                  # OUT (chains, n, K)
    int n_threads,
):
    """Logarithm of the density of words and of unscaled proportions, and its gradient in these.

    See `tests.twins.models.density_of_topics`.
    """
    cdef Py_ssize_t n = z.shape[1], K = z.shape[2], n_chains = z.shape[0], i, c, k, each, row, part
    cdef Py_ssize_t items = n * n_chains, n_parts
    cdef double run, total, found, most, middle, constant
    constant = K * gammaln(alpha) - gammaln(K * alpha)
    n_threads = worth(n_threads, items, 3.0 * words.shape[0] * K * n_chains)
    n_parts = min(items, PARTS_A_THREAD * n_threads)
    cdef double[:, ::1] room = np.empty((n_parts, K))
    for part in prange(n_parts, nogil=True, num_threads=n_threads, schedule="dynamic", chunksize=1):
        for each in range(part * items // n_parts, (part + 1) * items // n_parts):
            c = each // n
            i = each - c * n
            shares_of_topics(&z[c, i, 0], K, &room[part, 0])
            found = -constant
            total = 0
            for k in range(K):
                slope[c, i, k] = 0
            for row in range(first[i], first[i + 1]):
                run = 0
                for k in range(K):
                    run = run + room[part, k] * topics[words[row], k]
                found = found + counts[row] * log(run)
                total = total + counts[row]
                for k in range(K):
                    slope[c, i, k] += counts[row] / run * topics[words[row], k]
            most = z[c, i, 0]
            middle = 0
            for k in range(K):
                most = fmax(most, z[c, i, k])
                middle = middle + z[c, i, k] / K
            run = 0
            for k in range(K):
                run = run + exp(z[c, i, k] - most)
            found = found + K * alpha * (middle - most - log(run)) - middle * middle / 2
            for k in range(K):
                slope[c, i, k] = (
                    room[part, k] * (slope[c, i, k] - total - K * alpha) + alpha - middle / K
                )
            value[c, i] = found


cdef double bound_document(
    const Py_ssize_t* words, const double* counts, Py_ssize_t n_rows, const double* topics,
    Py_ssize_t K, double alpha, int n_iter, double tol,
    double* gamma,                    # OUT (K,)
    double* room,                     # (2 K,)
) noexcept nogil:
    """Lower bound of the log-likelihood of a document, and the law of its proportions there."""
    cdef double* fresh = room + K
    cdef const double* own
    cdef double total = 0, run, change, found
    cdef Py_ssize_t row, k
    cdef int _turn
    for row in range(n_rows):
        total += counts[row]
    for k in range(K):
        gamma[k] = alpha + total / K
    found = psi(alpha * K + total)    # the sum of gamma stays
    for _turn in range(n_iter):
        for k in range(K):
            room[k] = exp(psi(gamma[k]) - found)
            fresh[k] = 0
        for row in range(n_rows):
            own = topics + words[row] * K
            run = 0
            for k in range(K):
                run += room[k] * own[k]
            run = counts[row] / run
            for k in range(K):
                fresh[k] += run * own[k]
        change = 0
        for k in range(K):
            fresh[k] = alpha + room[k] * fresh[k]
            change = fmax(change, fabs(fresh[k] - gamma[k]))
            gamma[k] = fresh[k]
        if change < tol:
            break
    run = 0
    for k in range(K):
        room[k] = psi(gamma[k]) - found
        run += (alpha - gamma[k]) * room[k] + gammaln(gamma[k])
        room[k] = exp(room[k])
    found = run + gammaln(K * alpha) - K * gammaln(alpha) - gammaln(alpha * K + total)
    for row in range(n_rows):
        own = topics + words[row] * K
        run = 0
        for k in range(K):
            run += room[k] * own[k]
        found += counts[row] * log(run)
    return found


def bound_of_topics(
    const Py_ssize_t[::1] first,              # IN  (n + 1,)
    const Py_ssize_t[::1] words,              # IN  (N,)
    const double[::1] counts,                 # IN  (N,)
    const double[:, ::1] topics,              # IN  (V, K)
    double alpha,
    int n_iter,                               # IN  most iterations
    double tol,                               # IN  of the largest change, in words
    double[:, ::1] gamma,                     # OUT (n, K)
    double[::1] value,                        # OUT (n,)
    int n_threads,
):
    """Variational bound of each document's log-likelihood, with a Dirichlet law of proportions.

    See `tests.twins.models.bound_of_topics`.
    """
    cdef Py_ssize_t n = gamma.shape[0], K = gamma.shape[1], i, part, n_parts
    n_threads = worth(n_threads, n, 100.0 * words.shape[0] * K)
    n_parts = min(n, PARTS_A_THREAD * n_threads)
    cdef double[:, ::1] room = np.empty((n_parts, 2 * K))
    for part in prange(n_parts, nogil=True, num_threads=n_threads, schedule="dynamic", chunksize=1):
        for i in range(part * n // n_parts, (part + 1) * n // n_parts):
            value[i] = bound_document(
                &words[first[i]], &counts[first[i]], first[i + 1] - first[i], &topics[0, 0], K,
                alpha, n_iter, tol, &gamma[i, 0], &room[part, 0],
            )
