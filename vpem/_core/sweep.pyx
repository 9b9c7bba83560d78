"""One sweep over the data: terms, their sum, responsibilities and moments, tile by tile in cache.

This is the E-step and the sums of the M-step fused, for sums that are a fixed linear map of the
blocks. The arithmetic of a tile is in simd/, for several instruction sets chosen at run time.

Where responsibilities may be left out and all roots share one exact sum, components far away are
not computed to the end: rows are sorted by the component that a few of their features point to,
whose term comes first, and the others' quadratic forms, of which the rest is not negative, end as
soon as a run of rows is certain not to count for them. Where that does not pay, rows stay as they
are.
"""
import numpy as np

from cython.parallel cimport prange, threadid
from libc.math cimport INFINITY, exp, isnan, log
from libc.stdint cimport uintptr_t
from libc.string cimport memset

from vpem._core.real cimport real
from vpem._core.shares cimport kept_at_once, share_begin, shares_of, worth
from vpem._core.simd cimport (
    vpem_blend_d, vpem_blend_f, vpem_columns_d, vpem_columns_f, vpem_distances_d, vpem_distances_f,
    vpem_gram_rows, vpem_instruction_set, vpem_lanes_d, vpem_lanes_f, vpem_line_moments_d,
    vpem_line_moments_f, vpem_narrow_moments_d, vpem_narrow_moments_f, vpem_panel_rows,
    vpem_raise_d, vpem_raise_f, vpem_soften_d, vpem_soften_f, vpem_total_d, vpem_total_f,
    vpem_whiten_d, vpem_whiten_f, vpem_wide_moments_d, vpem_wide_moments_f,
)

cdef enum:
    NARROWEST_WIDE = 28      # from this many features on, vectors run over features
    NARROWEST_EITHER = 16    # and from this many where less than half of the rows count
    CAPACITY = 128           # rows packed before their Gram matrix is added
    TILE_BYTES = 393216      # aimed at for what one tile keeps in cache
    LARGEST_TILE = 224
    SMALLEST_TILE = 32
    LINE = 64                # bytes that a cache moves together
    ROOTS_AT_ONCE = 16       # whose sums are in cache together
    ROWS_A_LOG = 64          # normalisers multiplied before their logarithm is taken
    WINDOW = 16              # tiles whose rows are sorted together, where components are far away
    WORTH_A_TRIAL = 40       # tiles, before one is spent on finding out


cdef struct Plan:
    # Sizes, the same for all tiles.
    Py_ssize_t n_samples, d, n_blocks, n_components, n_roots, n_copies
    Py_ssize_t tile, widest, lanes, panel_rows, gram_rows, collect, diagonal
    Py_ssize_t n_sums                  # numbers that a share adds up, one after the other
    int isa
    double least
    # Responsibilities of rows exp(-reach) times as likely under another component are not counted;
    # 0: all are.
    double reach
    double n_factor                    # numbers in the factors of a component
    Py_ssize_t glance                  # features up to the last of those a guess is made from
    # Shared, read only.
    const Py_ssize_t* guessing         # (B,) features of each block that a guess is made from
    const Py_ssize_t* offsets
    const Py_ssize_t* panel_starts     # (B,) first panel number of each block
    const Py_ssize_t* gram_starts      # (B,) first gram number of each block
    const void* rows
    const void* means
    const void* panels
    const void* log_dets
    const void* mix                    # (R, B) in panels of 4 roots, used where R > 1
    const void* log_weights
    const double* row_weights          # (M,) or NULL


cdef struct Work:
    # The tile that is worked on.
    Py_ssize_t n_rows                  # its rows
    Py_ssize_t stride                  # and as many as make up whole vectors
    Py_ssize_t* order                  # (n_rows,) which rows they are
    Py_ssize_t* guesses                # (n_rows,) components that they may be from, ascending
    double done                        # numbers of factors used so far, once a run of rows
    # Scratch, one a thread.
    Py_ssize_t* in_order               # (tile,)
    Py_ssize_t* window                 # (WINDOW, tile) rows sorted by
    Py_ssize_t* guessed                # (WINDOW, tile) components
    Py_ssize_t* begins                 # (K + 1,)
    Py_ssize_t* ends                   # (K + 1,)
    Py_ssize_t* counted                # (K + 1,) rows of them that count
    void* x                            # (d, stride)
    void* terms                        # (B, K, stride), where R > 1
    void* sums                         # (ROOTS_AT_ONCE, K, stride), or (1, K, stride)
    void* tops                         # (stride,)
    void* scales                       # (stride,)
    void* centred                      # scratch of `whiten` and `blend`
    void* packed                       # scratch of the moments
    # Accumulators, one set a share of the tiles.
    double* log_likelihoods            # (R,)
    double* counts                     # (R, K)
    double* first                      # (K, d)
    double* second                     # grams, block by block, component by component


cdef inline Py_ssize_t round_up(Py_ssize_t n, Py_ssize_t step) noexcept nogil:
    return (n + step - 1) // step * step


cdef inline Py_ssize_t gram_size(Plan* plan, Py_ssize_t width) noexcept nogil:
    """Numbers that accumulate the second moments of one block and component."""
    if plan.diagonal or width <= 1:
        return width
    if width < NARROWEST_EITHER:
        return width * width
    return round_up(width, plan.gram_rows) * gram_stride(plan, width)


cdef inline Py_ssize_t gram_stride(Plan* plan, Py_ssize_t width) noexcept nogil:
    return width if width < NARROWEST_EITHER else round_up(width, plan.lanes)


cdef inline Py_ssize_t packed_stride(
    Plan* plan, Py_ssize_t width, Py_ssize_t item,
) noexcept nogil:
    """Numbers between packed rows: an odd number of lines, so that all sets of a cache are used."""
    cdef Py_ssize_t lines = round_up(round_up(width, plan.gram_rows) * item, LINE) // LINE
    return (lines + (lines + 1) % 2) * LINE // item


cdef void load_tile(Plan* plan, Work* work, Py_ssize_t width, real* witness) noexcept nogil:
    """Put the first features of rows side by side; what a tile lacks repeats its last row."""
    work.stride = round_up(work.n_rows, 2 * plan.lanes)
    if real is double:
        vpem_columns_d(plan.isa, <const double*>plan.rows, work.order, work.n_rows, plan.d, width,
                       work.stride, <double*>work.x)
    else:
        vpem_columns_f(plan.isa, <const float*>plan.rows, work.order, work.n_rows, plan.d, width,
                       work.stride, <float*>work.x)


cdef void block_terms(
    Plan* plan, Work* work, Py_ssize_t b, Py_ssize_t k, Py_ssize_t some, Py_ssize_t begin,
    Py_ssize_t end, const real* tops, real far, real* out,
) noexcept nogil:
    """Add a block's and component's quadratic form, of its first features, for some of a tile."""
    cdef Py_ssize_t left = plan.offsets[b], width = plan.offsets[b + 1] - left
    cdef Py_ssize_t c = k if plan.n_copies > 1 else 0, run = end - begin
    cdef const real* x = <const real*>work.x + left * work.stride + begin
    cdef const real* mean = <const real*>plan.means + k * plan.d + left
    cdef const real* factor = <const real*>plan.panels
    if tops != NULL:
        tops += begin
    if some == 0 or run == 0:
        return
    if plan.diagonal or width == 1:
        factor += c * plan.d + left if plan.diagonal else plan.panel_starts[b] + c
        if real is double:
            work.done += vpem_distances_d(plan.isa, x, work.stride, run, some, mean, factor, tops,
                                          far, out + begin)
        else:
            work.done += vpem_distances_f(plan.isa, x, work.stride, run, some, mean, factor, tops,
                                          far, out + begin)
    else:
        factor += plan.panel_starts[b] + c * (width * (width + 1) // 2)
        if real is double:
            work.done += vpem_whiten_d(plan.isa, x, work.stride, run, some, mean, factor, tops,
                                       far, <double*>work.centred, out + begin)
        else:
            work.done += vpem_whiten_f(plan.isa, x, work.stride, run, some, mean, factor, tops,
                                       far, <float*>work.centred, out + begin)


cdef void component_terms(
    Plan* plan, Work* work, Py_ssize_t k, const Py_ssize_t* some, Py_ssize_t begin,
    Py_ssize_t end, const real* tops, real far, real* out,
) noexcept nogil:
    """Sum of one component's terms over all blocks, or of their first features."""
    cdef Py_ssize_t c = k if plan.n_copies > 1 else 0, b, t
    cdef const real* log_dets = <const real*>plan.log_dets + c * plan.n_blocks
    cdef real total = 0
    for b in range(plan.n_blocks):
        total += log_dets[b]
    for t in range(begin, end):
        out[t] = total
    for b in range(plan.n_blocks):
        block_terms(plan, work, b, k, plan.offsets[b + 1] - plan.offsets[b] if some == NULL
                    else some[b], begin, end, tops, far, out)


cdef void tile_terms(Plan* plan, Work* work, real* witness) noexcept nogil:
    """Terms of all blocks; where all roots share their sum, at once their sum."""
    cdef Py_ssize_t b, k, t, c
    cdef const real* log_dets = <const real*>plan.log_dets
    cdef real* out
    if plan.n_roots == 1:
        for k in range(plan.n_components):
            component_terms(plan, work, k, NULL, 0, work.stride, <const real*>NULL, 0,
                            <real*>work.sums + k * work.stride)
        return
    out = <real*>work.terms
    for b in range(plan.n_blocks):
        for k in range(plan.n_components):
            c = k if plan.n_copies > 1 else 0
            for t in range(work.stride):
                out[t] = log_dets[c * plan.n_blocks + b]
            block_terms(plan, work, b, k, plan.offsets[b + 1] - plan.offsets[b], 0, work.stride,
                        <const real*>NULL, 0, out)
            out += work.stride


cdef void raise_tops(
    Plan* plan, Work* work, Py_ssize_t k, Py_ssize_t begin, Py_ssize_t end, const real* sums,
    real* places,
) noexcept nogil:
    """Log-likelihood of rows with the component, and its number, where it is the best so far."""
    cdef real log_weight = (<const real*>plan.log_weights)[k]
    if real is double:
        vpem_raise_d(plan.isa, sums + begin, end - begin, log_weight, <double>k,
                     <double*>work.tops + begin, places)
    else:
        vpem_raise_f(plan.isa, sums + begin, end - begin, log_weight, <float>k,
                     <float*>work.tops + begin, places)


cdef void near_terms(Plan* plan, Work* work, real* witness) noexcept nogil:
    """`tile_terms` where rows are sorted by the component that each may be from.

    That one's term comes first. Others end as soon as what there is of them shows that every row of
    a run is too far away to count: the rest of a quadratic form is not negative.
    """
    cdef Py_ssize_t group = 2 * plan.lanes, k, t, begin = 0, end, first, last
    cdef const real* log_weights = <const real*>plan.log_weights
    cdef real* sums = <real*>work.sums
    cdef real* tops = <real*>work.tops
    cdef real far
    # Where rows of many tiles are sorted together, nearly every run has one guess.
    cdef double done = work.done + plan.n_factor * work.stride / group
    for t in range(work.stride):
        tops[t] = -INFINITY
    while begin < work.n_rows:
        k = work.guesses[begin]
        end = begin
        while end < work.n_rows and work.guesses[end] == k:
            end += 1
        first, last = begin // group * group, round_up(end, group)
        component_terms(plan, work, k, NULL, first, last, <const real*>NULL, 0,
                        sums + k * work.stride)
        raise_tops(plan, work, k, first, last, sums + k * work.stride, <real*>NULL)
        begin = end
    work.done = done
    end = 0
    for k in range(plan.n_components):
        far = <real>(2 * (log_weights[k] + plan.reach))
        begin = end
        while end < work.n_rows and work.guesses[end] == k:
            end += 1
        first, last = begin // group * group, round_up(end, group)
        if begin == end:
            first = last = 0
        component_terms(plan, work, k, NULL, 0, first, tops, far, sums + k * work.stride)
        component_terms(plan, work, k, NULL, last, work.stride, tops, far, sums + k * work.stride)
        raise_tops(plan, work, k, 0, work.stride, sums + k * work.stride, <real*>NULL)


cdef void guess_rows(
    Plan* plan, Work* work, Py_ssize_t first, Py_ssize_t n_rows, Py_ssize_t step, real* witness,
) noexcept nogil:
    """Sort rows by the component that each is likely from, judged by a few of its features."""
    cdef Py_ssize_t begin = 0, t, k
    cdef real* sums = <real*>work.sums
    cdef real* places = <real*>work.scales
    for k in range(plan.n_components + 1):
        work.begins[k] = 0
    work.order = work.in_order
    while begin < n_rows:
        work.n_rows = min(plan.tile, n_rows - begin)
        for t in range(work.n_rows):
            work.order[t] = first + (begin + t) * step
        load_tile(plan, work, plan.glance, witness)
        for t in range(work.stride):
            (<real*>work.tops)[t] = -INFINITY
            places[t] = 0
        for k in range(plan.n_components):
            component_terms(plan, work, k, plan.guessing, 0, work.stride, <const real*>NULL, 0,
                            sums)
            raise_tops(plan, work, k, 0, work.stride, sums, places)
        for t in range(work.n_rows):
            k = <Py_ssize_t>places[t]
            work.guessed[begin + t] = k
            work.begins[k + 1] += 1
        begin += work.n_rows
    for k in range(plan.n_components):
        work.begins[k + 1] += work.begins[k]
    for t in range(n_rows):
        k = work.guessed[t]
        work.window[work.begins[k]] = first + t * step
        work.begins[k] += 1
    t = 0
    for k in range(plan.n_components):
        while t < work.begins[k]:
            work.guessed[t] = k
            t += 1


cdef void mix_terms(
    Plan* plan, Work* work, Py_ssize_t root, Py_ssize_t count, real* witness,
) noexcept nogil:
    """Sums of a few roots: their rows of ``C terms``."""
    cdef Py_ssize_t run = plan.n_components * work.stride
    cdef const real* panels = <const real*>plan.mix + root * plan.n_blocks
    if real is double:
        vpem_blend_d(plan.isa, <double*>work.terms, run, plan.n_blocks, panels, count,
                     <double*>work.centred, <double*>work.sums)
    else:
        vpem_blend_f(plan.isa, <float*>work.terms, run, plan.n_blocks, panels, count,
                     <float*>work.centred, <float*>work.sums)


cdef void soften_by_rows(Plan* plan, Work* work, Py_ssize_t r, real* sums) noexcept nogil:
    """`soften` for a tile with a number that is not finite; see `normalise`."""
    cdef Py_ssize_t t, k
    cdef const real* log_weights = <const real*>plan.log_weights + r * plan.n_components
    cdef double top, total, value
    for t in range(work.stride):
        top = -INFINITY
        total = 0
        for k in range(plan.n_components):
            value = log_weights[k] - 0.5 * sums[k * work.stride + t]
            if isnan(value):
                top = value
                break
            top = max(top, value)
        for k in range(plan.n_components):
            value = log_weights[k]
            if top != -INFINITY:
                value = value - 0.5 * sums[k * work.stride + t] - top
            value = exp(value)
            sums[k * work.stride + t] = <real>value
            total += value
        for k in range(plan.n_components):
            sums[k * work.stride + t] = <real>(sums[k * work.stride + t] / total)
        (<real*>work.tops)[t] = <real>top
        (<real*>work.scales)[t] = <real>(total if top != -INFINITY else 1.0)


cdef double tile_log_likelihood(Plan* plan, Work* work, real* witness) noexcept nogil:
    """Sum of the rows' log-likelihoods, weighted if rows have weights."""
    cdef const real* tops = <const real*>work.tops
    cdef const real* scales = <const real*>work.scales
    cdef double total = 0, product = 1
    cdef Py_ssize_t t
    if plan.row_weights != NULL:
        for t in range(work.n_rows):
            total += plan.row_weights[work.order[t]] * (tops[t] + log(<double>scales[t]))
        return total
    for t in range(work.n_rows):
        total += tops[t]
        product *= scales[t]
        # A normaliser is at most K: the product of a few is far from the largest double.
        if (t + 1) % ROWS_A_LOG == 0 or product > 1e250:
            total += log(product)
            product = 1
    return total + log(product)


cdef inline double total_of(Plan* plan, Work* work, const real* g) noexcept nogil:
    """Sum of a component's responsibilities in the tile."""
    if real is double:
        return vpem_total_d(plan.isa, g, work.stride)
    else:
        return vpem_total_f(plan.isa, g, work.stride)


cdef void find_counted(Plan* plan, Work* work, const real* g) noexcept nogil:
    """For each component the runs of rows from the first to the last that counts."""
    cdef Py_ssize_t group = 2 * plan.lanes, k, begin, end, t, n
    cdef real least = <real>plan.least
    for k in range(plan.n_components):
        begin, end, n = 0, work.stride, 0
        if plan.least > 0 and not total_of(plan, work, g) > plan.least:
            end = 0
        if plan.least > 0:
            while begin < end and not g[begin] > plan.least:
                begin += 1
            while end > begin and not g[end - 1] > plan.least:
                end -= 1
        work.begins[k] = begin // group * group
        work.ends[k] = round_up(end, group)
        if plan.widest >= NARROWEST_EITHER and not plan.diagonal:
            for t in range(begin, end):
                n += g[t] > least
        work.counted[k] = n
        g += work.stride


cdef void root_moments(Plan* plan, Work* work, Py_ssize_t b, const real* g) noexcept nogil:
    """Add the moments of one block, weighted by the responsibilities ``g`` of its root."""
    cdef Py_ssize_t left = plan.offsets[b], width = plan.offsets[b + 1] - left
    cdef Py_ssize_t size = gram_size(plan, width), k, begin, n_rows
    cdef Py_ssize_t stride = packed_stride(plan, width, sizeof(real))
    cdef const real* x
    cdef const real* rows = <const real*>plan.rows + left
    cdef const real* mean
    cdef real* packed = <real*>work.packed
    cdef real* row_sums = packed + CAPACITY * packed_stride(plan, plan.widest, sizeof(real))
    cdef double* first_moment
    cdef double* second_moment
    for k in range(plan.n_components):
        begin = work.begins[k]
        n_rows = work.ends[k] - begin
        if n_rows <= 0 or width == 0:
            continue
        x = <const real*>work.x + left * work.stride + begin
        mean = <const real*>plan.means + k * plan.d + left
        first_moment = work.first + k * plan.d + left
        second_moment = work.second + plan.gram_starts[b] + k * size
        if plan.diagonal or width <= 1:
            if real is double:
                vpem_line_moments_d(plan.isa, x, work.stride, n_rows, width, mean,
                                    g + k * work.stride + begin, first_moment, second_moment)
            else:
                vpem_line_moments_f(plan.isa, x, work.stride, n_rows, width, mean,
                                    g + k * work.stride + begin, first_moment, second_moment)
        elif width < NARROWEST_EITHER or (
            width < NARROWEST_WIDE and 2 * work.counted[k] >= n_rows
        ):
            if real is double:
                vpem_narrow_moments_d(
                    plan.isa, x, work.stride, n_rows, width, mean, g + k * work.stride + begin,
                    first_moment, second_moment, gram_stride(plan, width))
            else:
                vpem_narrow_moments_f(
                    plan.isa, x, work.stride, n_rows, width, mean, g + k * work.stride + begin,
                    first_moment, second_moment, gram_stride(plan, width))
        else:
            n_rows = min(n_rows, work.n_rows - begin)
            if real is double:
                vpem_wide_moments_d(
                    plan.isa, rows, plan.d, work.order + begin, n_rows, width, mean,
                    g + k * work.stride + begin, plan.least, <double*>work.tops, row_sums, packed,
                    CAPACITY, stride, first_moment, second_moment)
            else:
                vpem_wide_moments_f(
                    plan.isa, rows, plan.d, work.order + begin, n_rows, width, mean,
                    g + k * work.stride + begin, <float>plan.least, <float*>work.tops, row_sums,
                    packed, CAPACITY, stride, first_moment, second_moment)


cdef void root_responsibilities(Plan* plan, Work* work, Py_ssize_t r, real* g) noexcept nogil:
    """Turn the sums of one root into its responsibilities, its log-likelihood and its counts."""
    cdef Py_ssize_t k, t
    cdef const real* log_weights = <const real*>plan.log_weights + r * plan.n_components
    cdef int fine
    if real is double:
        fine = vpem_soften_d(plan.isa, g, work.stride, plan.n_components, log_weights,
                             <double*>work.tops, <double*>work.scales)
    else:
        fine = vpem_soften_f(plan.isa, g, work.stride, plan.n_components, log_weights,
                             <float*>work.tops, <float*>work.scales)
    if not fine:
        soften_by_rows(plan, work, r, g)
    work.log_likelihoods[r] += tile_log_likelihood(plan, work, g)
    if not plan.collect:
        return
    for k in range(plan.n_components):
        if plan.row_weights != NULL:
            for t in range(work.n_rows):
                g[k * work.stride + t] *= <real>plan.row_weights[work.order[t]]
        for t in range(work.n_rows, work.stride):
            g[k * work.stride + t] = 0
        work.counts[r * plan.n_components + k] += total_of(plan, work, g + k * work.stride)


cdef void shared_sums(Plan* plan, Work* work, real* witness) noexcept nogil:
    """What follows from the sums of a tile that all roots share."""
    cdef Py_ssize_t b
    cdef real* sums = <real*>work.sums
    root_responsibilities(plan, work, 0, sums)
    if plan.collect:
        find_counted(plan, work, sums)
        for b in range(plan.n_blocks):
            root_moments(plan, work, b, sums)


cdef void sweep_tile(Plan* plan, Work* work, Py_ssize_t number, real* witness) noexcept nogil:
    """One tile's contribution to everything."""
    cdef Py_ssize_t r, t, root, count, run
    cdef real* sums = <real*>work.sums
    work.n_rows = min(plan.tile, plan.n_samples - number * plan.tile)
    work.order = work.in_order
    for t in range(work.n_rows):
        work.order[t] = number * plan.tile + t
    load_tile(plan, work, plan.d, witness)
    tile_terms(plan, work, witness)
    if plan.n_roots == 1:
        shared_sums(plan, work, witness)
        return
    run = plan.n_components * work.stride
    root = 0
    while root < plan.n_roots:
        count = min(<Py_ssize_t>ROOTS_AT_ONCE, plan.n_roots - root)
        mix_terms(plan, work, root, count, witness)
        for r in range(count):
            root_responsibilities(plan, work, root + r, sums + r * run)
            if plan.collect:
                find_counted(plan, work, sums + r * run)
                root_moments(plan, work, root + r, sums + r * run)
        root += count


cdef bint worth_sorting(Plan* plan, Work* work, real* witness) noexcept nogil:
    """Whether much is saved where rows are sorted, on a tile of rows from all over the data."""
    # What is done for a run of rows beside takes as long as so many numbers of a factor.
    cdef double beside = 12 if plan.diagonal else 48
    work.done = 0
    guess_rows(plan, work, 0, plan.tile, plan.n_samples // plan.tile, witness)
    work.order = work.window
    work.guesses = work.guessed
    work.n_rows = plan.tile
    load_tile(plan, work, plan.d, witness)
    near_terms(plan, work, witness)
    return work.done * 2 * plan.lanes < plan.tile * plan.n_components * (
        0.9 * plan.n_factor - beside)


cdef void sweep_window(
    Plan* plan, Work* work, Py_ssize_t number, Py_ssize_t n_tiles, real* witness,
) noexcept nogil:
    """A few tiles, their rows sorted, without terms far away."""
    cdef Py_ssize_t first = number * plan.tile, begin = 0
    cdef Py_ssize_t n_rows = min(n_tiles * plan.tile, plan.n_samples - first)
    guess_rows(plan, work, first, n_rows, 1, witness)
    while begin < n_rows:
        work.order = work.window + begin
        work.guesses = work.guessed + begin
        work.n_rows = min(plan.tile, n_rows - begin)
        load_tile(plan, work, plan.d, witness)
        near_terms(plan, work, witness)
        shared_sums(plan, work, witness)
        begin += work.n_rows


cdef void sweep_share(
    Plan* plan, const Work* scratch, const Work* sums, Py_ssize_t begin, Py_ssize_t end,
    real* witness,
) noexcept nogil:
    """A run of tiles, with the scratch of one thread and accumulators of its own."""
    cdef Work work = scratch[0]
    cdef Py_ssize_t tile
    work.log_likelihoods = sums.log_likelihoods
    work.counts = sums.counts
    work.first = sums.first
    work.second = sums.second
    memset(sums.log_likelihoods, 0, plan.n_sums * sizeof(double))
    while plan.reach > 0 and begin < end:
        sweep_window(plan, &work, begin, min(<Py_ssize_t>WINDOW, end - begin), witness)
        begin += WINDOW
    for tile in range(begin, end):
        sweep_tile(plan, &work, tile, witness)


cdef void pack_panels(
    const real* lower, Py_ssize_t width, Py_ssize_t rows, real* panels,
) noexcept nogil:
    """Lay a lower triangular factor out in panels of ``rows`` rows, the first of what is over.

    Each column by column, from the diagonal on; see `panel` in simd/.
    """
    cdef Py_ssize_t begin = 0, end, i, j
    if width == 1:
        panels[0] = lower[0] * lower[0]
        return
    while begin < width:
        end = begin + rows
        if begin == 0 and width % rows:
            end = width % rows
        for j in range(end):
            for i in range(max(begin, j), end):
                panels[0] = lower[i * width + j]
                panels += 1
        begin = end


cdef void unpack_gram(
    Plan* plan, Py_ssize_t b, const double* gram, double* second,
) noexcept nogil:
    """Add what was accumulated for one block and component to its flat lower triangle."""
    cdef Py_ssize_t width = plan.offsets[b + 1] - plan.offsets[b], i, j
    cdef Py_ssize_t stride = gram_stride(plan, width)
    if plan.diagonal:
        for j in range(width):
            second[j] += gram[j]
        return
    for i in range(width):
        for j in range(i + 1):
            second[i * width + j] += gram[i * stride + j]


cdef void add_sums(const double* sums, Py_ssize_t n, double* totals) noexcept nogil:
    cdef Py_ssize_t i
    for i in range(n):
        totals[i] += sums[i]


cdef void add_totals(
    Plan* plan, const Work* sums,
    double[::1] log_likelihoods,       # INOUT (R,)
    double[:, ::1] counts,             # INOUT (R, K)
    double[:, ::1] first_moment,       # INOUT (K, d)
    double* second_moment,             # INOUT block by block, flat
) noexcept nogil:
    """Add what all shares have summed to what there is."""
    cdef Py_ssize_t r, k, b, c, at, width, size, start = 0
    for r in range(plan.n_roots):
        log_likelihoods[r] += sums.log_likelihoods[r]
    if not plan.collect:
        return
    for r in range(plan.n_roots):
        for k in range(plan.n_components):
            counts[r, k] += sums.counts[r * plan.n_components + k]
    for k in range(plan.n_components):
        for at in range(plan.d):
            first_moment[k, at] += sums.first[k * plan.d + at]
    for b in range(plan.n_blocks):
        width = plan.offsets[b + 1] - plan.offsets[b]
        size = gram_size(plan, width)
        if width == 0:
            continue
        for k in range(plan.n_components):
            c = k if plan.n_copies > 1 else 0
            at = c * plan.d + plan.offsets[b] if plan.diagonal else start + c * width * width
            unpack_gram(plan, b, sums.second + plan.gram_starts[b] + k * size, second_moment + at)
        start += plan.n_copies * width * width


def _guessing(
    const Py_ssize_t[::1] offsets, bint diagonal, Py_ssize_t n_components, Py_ssize_t rows,
):
    """How many features of each block a guess is made from; none where it would cost too much.

    About a fifth of all, from the first blocks. A factor is cut where one of its panels ends.
    """
    cdef Py_ssize_t b, width, some, wanted = (offsets[offsets.shape[0] - 1] + 4) // 5
    cdef double cost = 0, whole = 0
    taken = np.zeros(offsets.shape[0] - 1, dtype=np.intp)
    for b in range(offsets.shape[0] - 1):
        width = some = offsets[b + 1] - offsets[b]
        if wanted < width:
            some = max(wanted, <Py_ssize_t>0)
            if some and not diagonal:
                some = min(width, width % rows + round_up(max(some - width % rows, 0), rows))
        taken[b] = some
        wanted -= some
        cost += some if diagonal else some * (some + 1) // 2
        whole += width if diagonal else width * (width + 1) // 2
    return taken if n_components > 2 and whole > 32 and cost < whole / 3 else taken[:0]


cdef inline char* line_of(unsigned char[::1] buffer) noexcept nogil:
    """Where the first line of a buffer begins, which has room for one more than is used."""
    cdef uintptr_t address = <uintptr_t>&buffer[0]
    return <char*>((address + LINE - 1) // LINE * LINE)


cdef void place_scratch(Work* work, const Py_ssize_t* sizes, char* place) noexcept nogil:
    """Give a thread its scratch: arrays of so many bytes, one after the other."""
    work.x = place
    place += sizes[0]
    work.terms = place
    place += sizes[1]
    work.sums = place
    place += sizes[2]
    work.tops = place
    place += sizes[3]
    work.scales = place
    place += sizes[4]
    work.centred = place
    place += sizes[5]
    work.packed = place
    place += sizes[6]
    work.in_order = <Py_ssize_t*>place
    place += sizes[7]
    work.window = <Py_ssize_t*>place
    place += sizes[8]
    work.guessed = <Py_ssize_t*>place
    place += sizes[9]
    work.begins = <Py_ssize_t*>place
    place += sizes[10]
    work.ends = <Py_ssize_t*>place
    place += sizes[11]
    work.counted = <Py_ssize_t*>place


def sweep(
    const real[:, ::1] rows,            # IN  (M, d)   features in the order of the blocks
    const double[::1] row_weights,      # IN  (M,), or (0,) where all rows weigh 1
    const Py_ssize_t[::1] offsets,      # IN  (B + 1,)
    const real[:, ::1] means,           # IN  (K, d)   also the shift of the moments
    const real[::1] inverse,            # IN  inverse Cholesky factors, or (n_copies * d) precisions
    bint diagonal,                      # IN  which of the two
    const real[:, ::1] log_dets,        # IN  (n_copies, B)
    const double[:, ::1] mix,           # IN  (B, B) operator C, or (1, B) ones: the exact sum
    const double[:, ::1] log_weights,   # IN  (R, K)
    double[:, ::1] counts,              # INOUT (R, K), added to; (0, 0): no moments are taken
    double[:, ::1] first_moment,        # INOUT (K, d), added to
    double[::1] second_moment,          # INOUT shaped as the covariances, flat, added to
    double least,                       # responsibilities up to this are left out of the moments
    int n_threads,
):
    """Log-likelihood (R,) and, added to the arrays given, the statistics of all rows.

    See `tests.twins.mixture.sweep`.
    """
    dtype = np.float64 if real is double else np.float32
    cdef Plan plan
    cdef Py_ssize_t width, b, c, v, n_panels = 0, n_gram = 0, start = 0, at
    memset(&plan, 0, sizeof(Plan))
    plan.n_samples = rows.shape[0]
    plan.d = rows.shape[1]
    plan.n_blocks = offsets.shape[0] - 1
    plan.n_components = means.shape[0]
    plan.n_copies = log_dets.shape[0]
    plan.n_roots = mix.shape[0]
    plan.collect = counts.shape[0] > 0
    plan.isa = vpem_instruction_set()
    plan.lanes = vpem_lanes_d(plan.isa) if real is double else vpem_lanes_f(plan.isa)
    plan.panel_rows = vpem_panel_rows(plan.isa)
    plan.gram_rows = vpem_gram_rows(plan.isa)
    plan.least = least
    cdef Py_ssize_t squares = 0
    plan.widest = 1
    for b in range(plan.n_blocks):
        width = offsets[b + 1] - offsets[b]
        squares += width if diagonal else width * width
        plan.n_factor += width if diagonal else width * (width + 1) // 2
        plan.widest = max(plan.widest, width)
    plan.diagonal = diagonal
    found = np.zeros(plan.n_roots)
    if plan.n_samples == 0:
        return found

    # Factors in panels, and where each block's accumulators start.
    starts = np.zeros((2, plan.n_blocks), dtype=np.intp)
    cdef Py_ssize_t[:, ::1] begin = starts
    for b in range(plan.n_blocks):
        width = offsets[b + 1] - offsets[b]
        begin[0, b] = n_panels
        begin[1, b] = n_gram
        n_panels += plan.n_copies * (width * (width + 1) // 2)
        n_gram += plan.n_components * gram_size(&plan, width)
    packed_factors = np.zeros(1 if plan.diagonal else max(n_panels, 1), dtype=dtype)
    cdef real[::1] factors = packed_factors
    if not plan.diagonal:
        for b in range(plan.n_blocks):
            width = offsets[b + 1] - offsets[b]
            for c in range(plan.n_copies):
                if width:
                    at = begin[0, b] + c * (width * (width + 1) // 2)
                    pack_panels(&inverse[start], width, plan.panel_rows, &factors[at])
                start += width * width
    mixing = np.zeros((round_up(plan.n_roots, 4), plan.n_blocks), dtype=dtype)
    if plan.n_roots > 1:
        mixing[:plan.n_roots] = mix
        mixing = np.ascontiguousarray(mixing.reshape(-1, 4, plan.n_blocks).swapaxes(1, 2))
    mixing = mixing.reshape(-1, plan.n_blocks, 4)
    logs = np.ascontiguousarray(log_weights, dtype=dtype)
    cdef real[:, :, ::1] mixing_view = mixing
    cdef real[:, ::1] logs_view = logs
    cdef double[::1] found_view = found

    # Tile and memory of each thread.
    cdef Py_ssize_t spread = plan.n_blocks if plan.n_roots > 1 else 0
    cdef Py_ssize_t at_once = 1 if plan.n_roots == 1 else round_up(
        min(plan.n_roots, <Py_ssize_t>ROOTS_AT_ONCE), 4)
    cdef Py_ssize_t per_row = plan.d + (spread + at_once) * plan.n_components + 2
    plan.tile = TILE_BYTES // (per_row * <Py_ssize_t>sizeof(real)) // SMALLEST_TILE * SMALLEST_TILE
    plan.tile = max(<Py_ssize_t>SMALLEST_TILE, min(plan.tile, <Py_ssize_t>LARGEST_TILE))
    if plan.tile // SMALLEST_TILE % 2 == 0:  # rows of a feature would share few sets of a cache
        plan.tile -= SMALLEST_TILE
    cdef Py_ssize_t n_tiles = (plan.n_samples + plan.tile - 1) // plan.tile
    cdef double cost = squares / 24.0 + plan.d / 3.0 + (3 + spread / 32.0) * plan.n_roots
    cost *= plan.n_samples * plan.n_components
    cdef Py_ssize_t n_packed = 0
    if plan.widest >= NARROWEST_EITHER:
        n_packed = CAPACITY * packed_stride(&plan, plan.widest, sizeof(real))
        n_packed += plan.widest + plan.lanes
    cdef Py_ssize_t n_centred = max(plan.widest, spread) * 2 * plan.lanes
    cdef Py_ssize_t[::1] guessing
    cdef double heaviest = np.max(row_weights, initial=0.0) if row_weights.shape[0] else 1.0
    cdef bint may_sort = (
        least > 0 and heaviest > 0 and plan.n_roots == 1 and n_tiles >= WORTH_A_TRIAL)
    if may_sort:
        guessing = _guessing(offsets, plan.diagonal, plan.n_components, plan.panel_rows)
        may_sort = guessing.shape[0] > 0
    if may_sort:
        plan.reach = max(log(heaviest) - log(least), 1.0)
        plan.guessing = &guessing[0]
        for b in range(plan.n_blocks):
            if guessing[b]:
                plan.glance = offsets[b] + guessing[b]
    cdef Py_ssize_t in_window = WINDOW * plan.tile if may_sort else 0
    cdef Py_ssize_t[13] sizes
    sizes[:] = [
        plan.d * plan.tile, spread * plan.n_components * plan.tile,
        at_once * plan.n_components * plan.tile, plan.tile, plan.tile, n_centred, n_packed,
        plan.tile, in_window, in_window, plan.n_components + 1, plan.n_components + 1,
        plan.n_components + 1,
    ]
    cdef Py_ssize_t number, a_thread = 0
    for v in range(13):
        number = sizeof(real) if v < 7 else sizeof(Py_ssize_t)
        sizes[v] = round_up(sizes[v] * number, 2 * LINE)
        a_thread += sizes[v]
    cdef Py_ssize_t[4] parts
    parts[:] = [
        plan.n_roots, plan.n_roots * plan.n_components,
        plan.n_components * plan.d if plan.collect else 0, n_gram if plan.collect else 0,
    ]
    for v in range(4):
        parts[v] = round_up(parts[v], 8)
        plan.n_sums += parts[v]
    cdef Py_ssize_t n_shares = shares_of(n_tiles, cost, plan.n_sums)
    n_threads = worth(n_threads, n_shares, cost)
    cdef Py_ssize_t n_kept = 1, share, last
    if n_threads > 1:
        n_kept = kept_at_once(n_shares, plan.n_sums, n_threads)
    # In one piece each: the system takes small ones back and clears them anew, call after call.
    cdef unsigned char[::1] memory = np.empty(n_threads * a_thread + LINE, dtype=np.uint8)
    cdef unsigned char[::1] sums = np.empty((n_kept + 1) * plan.n_sums * 8 + LINE, dtype=np.uint8)
    cdef unsigned char[::1] works = np.zeros(
        (n_threads + n_kept + 1) * sizeof(Work), dtype=np.uint8)
    cdef Work* scratch = <Work*>&works[0]
    cdef Work* work = scratch + n_threads
    for v in range(n_threads):
        place_scratch(&scratch[v], sizes, line_of(memory) + v * a_thread)
    cdef double* place = <double*>line_of(sums)
    for v in range(n_kept + 1):  # the last one for all of them
        work[v].log_likelihoods = place + v * plan.n_sums
        work[v].counts = work[v].log_likelihoods + parts[0]
        work[v].first = work[v].counts + parts[1]
        work[v].second = work[v].first + parts[2]

    plan.offsets = &offsets[0]
    plan.panel_starts = &begin[0, 0] if plan.n_blocks else NULL
    plan.gram_starts = &begin[1, 0] if plan.n_blocks else NULL
    plan.rows = <const void*>&rows[0, 0] if plan.d else NULL
    plan.means = <const void*>&means[0, 0] if plan.d else NULL
    if plan.diagonal:
        plan.panels = <const void*>&inverse[0] if inverse.shape[0] else NULL
    else:
        plan.panels = <const void*>&factors[0]
    plan.log_dets = <const void*>&log_dets[0, 0]
    plan.mix = <const void*>&mixing_view[0, 0, 0] if plan.n_blocks else NULL
    plan.log_weights = <const void*>&logs_view[0, 0]
    plan.row_weights = &row_weights[0] if row_weights.shape[0] else NULL

    cdef Plan* shared = &plan
    cdef real* witness = NULL
    if may_sort and worth_sorting(shared, scratch, witness):
        n_shares = min(n_shares, max(n_tiles // 8, <Py_ssize_t>16))
    else:
        plan.reach = 0
    memset(work[n_kept].log_likelihoods, 0, plan.n_sums * sizeof(double))
    share = 0
    while share < n_shares:
        last = min(share + n_kept, n_shares)
        for v in prange(share, last, nogil=True, num_threads=n_threads, schedule="dynamic",
                        chunksize=1):
            sweep_share(
                shared, &scratch[threadid()], &work[v - share], share_begin(v, n_shares, n_tiles),
                share_begin(v + 1, n_shares, n_tiles), witness,
            )
        # They are added in order, so that a result is the same again, on any number of threads.
        for v in range(last - share):
            add_sums(work[v].log_likelihoods, plan.n_sums, work[n_kept].log_likelihoods)
        share = last
    add_totals(
        shared, &work[n_kept], found_view, counts, first_moment,
        &second_moment[0] if second_moment.shape[0] else NULL,
    )
    return found


def instruction_set():
    """Name of the instruction set that `sweep` uses on this machine."""
    return ("base", "avx2", "avx512")[vpem_instruction_set()]
