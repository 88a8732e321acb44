/* The two memory-bound loops of the aggregation rules: every number is read from memory once.
 *
 * A block is (layer, start, stop): a stretch of the vector inside one layer. Sums run in float over a chunk that stays in the
 * first-level cache, and in double over the chunks. No Python here: fdamed/algebra/kernel.py calls through ctypes.
 */
#include <stddef.h>
#include <stdint.h>

#define CHUNK 4096

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define BEST __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define BEST
#endif

/* dot[b * n + i] = <t, s_i>, ss[b * n + i] = <s_i, s_i>, tt[b] = <t, t>, each over block b. */
BEST void fdamed_inner(const float *t, const float *s, ptrdiff_t row, int64_t n, const int64_t *blocks, int64_t count,
                       double *dot, double *ss, double *tt) {
    for (int64_t b = 0; b < count; b++) {
        const int64_t start = blocks[3 * b + 1], stop = blocks[3 * b + 2];
        for (int64_t i = 0; i < n; i++) dot[b * n + i] = ss[b * n + i] = 0.0;
        tt[b] = 0.0;
        for (int64_t at = start; at < stop; at += CHUNK) {
            const int64_t m = stop - at < CHUNK ? stop - at : CHUNK;
            const float *restrict x = t + at;
            float xx = 0.0f;
#pragma omp simd reduction(+ : xx)
            for (int64_t k = 0; k < m; k++) xx += x[k] * x[k];
            tt[b] += xx;
            for (int64_t i = 0; i < n; i++) {
                const float *restrict y = s + i * row + at;
                float xy = 0.0f, yy = 0.0f;
#pragma omp simd reduction(+ : xy, yy)
                for (int64_t k = 0; k < m; k++) {
                    xy += x[k] * y[k];
                    yy += y[k] * y[k];
                }
                dot[b * n + i] += xy;
                ss[b * n + i] += yy;
            }
        }
    }
}

/* out = own * t + sum_i share[layer * n + i] * s_i over each block. */
BEST void fdamed_combine(const float *t, const float *s, ptrdiff_t row, int64_t n, const int64_t *blocks, int64_t count,
                         float own, const float *share, float *out) {
    for (int64_t b = 0; b < count; b++) {
        const float *factor = share + blocks[3 * b] * n;
        const int64_t start = blocks[3 * b + 1], stop = blocks[3 * b + 2];
        for (int64_t at = start; at < stop; at += CHUNK) {
            const int64_t m = stop - at < CHUNK ? stop - at : CHUNK;
            const float *restrict x = t + at;
            float *restrict z = out + at;
#pragma omp simd
            for (int64_t k = 0; k < m; k++) z[k] = own * x[k];
            for (int64_t i = 0; i < n; i++) {
                const float *restrict y = s + i * row + at;
                const float c = factor[i];
#pragma omp simd
                for (int64_t k = 0; k < m; k++) z[k] += c * y[k];
            }
        }
    }
}
