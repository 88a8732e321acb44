/* The two memory-bound loops of the aggregation rules: every number is read from memory once.
 *
 * A block is (layer, start, stop): a stretch of the vector inside one layer. Sums run in float over a chunk that stays in the
 * first-level cache, and in double over the chunks; blocks are shared out among torch's own threads (the file is linked to
 * no OpenMP library: kernel.py lends it torch's). No Python here: kernel.py calls through ctypes.
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
#pragma omp parallel for schedule(static)
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
            int64_t i = 0;
            for (; i + 4 <= n; i += 4) { /* four side by side: more sums than one addition takes cycles */
                const float *restrict a = s + i * row + at, *restrict c = a + row, *restrict d = c + row, *restrict e = d + row;
                float xa = 0.0f, xc = 0.0f, xd = 0.0f, xe = 0.0f, aa = 0.0f, cc = 0.0f, dd = 0.0f, ee = 0.0f;
#pragma omp simd reduction(+ : xa, xc, xd, xe, aa, cc, dd, ee)
                for (int64_t k = 0; k < m; k++) {
                    xa += x[k] * a[k], aa += a[k] * a[k];
                    xc += x[k] * c[k], cc += c[k] * c[k];
                    xd += x[k] * d[k], dd += d[k] * d[k];
                    xe += x[k] * e[k], ee += e[k] * e[k];
                }
                const float xs[4] = {xa, xc, xd, xe}, ys[4] = {aa, cc, dd, ee};
                for (int j = 0; j < 4; j++) dot[b * n + i + j] += xs[j], ss[b * n + i + j] += ys[j];
            }
            for (; i < n; i++) {
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
#pragma omp parallel for schedule(static)
    for (int64_t b = 0; b < count; b++) {
        const float *factor = share + blocks[3 * b] * n;
        const int64_t start = blocks[3 * b + 1], stop = blocks[3 * b + 2];
        for (int64_t at = start; at < stop; at += CHUNK) {
            const int64_t m = stop - at < CHUNK ? stop - at : CHUNK;
            const float *restrict x = t + at;
            float *restrict z = out + at;
            int64_t i = 0;
            if (n >= 4) {
                const float *restrict y = s + at, *restrict c = y + row, *restrict d = c + row, *restrict e = d + row;
                const float fy = factor[0], fc = factor[1], fd = factor[2], fe = factor[3];
#pragma omp simd
                for (int64_t k = 0; k < m; k++) z[k] = own * x[k] + fy * y[k] + fc * c[k] + fd * d[k] + fe * e[k];
                i = 4;
            } else {
#pragma omp simd
                for (int64_t k = 0; k < m; k++) z[k] = own * x[k];
            }
            for (; i < n; i++) {
                const float *restrict y = s + i * row + at;
                const float c = factor[i];
#pragma omp simd
                for (int64_t k = 0; k < m; k++) z[k] += c * y[k];
            }
        }
    }
}
