/* Convolution 5x5 to 6 channels, ReLU, max pool 2, convolution 5x5 to 16 channels, ReLU, max pool 2: forward and backward.
 *
 * A vector is eight output channels of one position, so nothing depends on the size of a batch, and one image with all that
 * belongs to it stays in the first-level cache. Of a pool's four positions one receives the gradient, and none where ReLU is
 * off: the backward pass walks over those alone, an eighth or so of what a convolution's gradient has to multiply.
 * Between the stages an image is `mid` (position, 8 channels), two of them zero. One thread: hospitals are the parallel part.
 */
#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum { K = 5, TAPS = K * K, LANES = 8, FIRST = 6, SECOND = 16, DEAD = 4, CHANNELS = 4, SIDE = 64, PLACES = 900 };

typedef float real __attribute__((vector_size(32), aligned(4), may_alias));
typedef int32_t whole __attribute__((vector_size(32), aligned(4), may_alias));
typedef uint8_t bytes __attribute__((vector_size(8), aligned(1), may_alias));

#ifdef __x86_64__
#define BEST __attribute__((target("avx2,fma")))
int fdamed_trunk_runs(void) { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"); }
#else
#define BEST
int fdamed_trunk_runs(void) { return 1; }
#endif
#define PART static inline __attribute__((always_inline))
#define ALIGNED __attribute__((aligned(32)))
#define UNROLL _Pragma("GCC unroll 16")
#define AT(p) (*(const real *)(p))
#define TO(p) (*(real *)(p))

/* relu(max) of a window's four sums and the place of the first maximum; NaN wins, as in torch. */
PART void pool(const float *sums, float *out, uint8_t *place) {
    real top = AT(sums);
    whole where = {0};
    UNROLL for (int k = 1; k < 4; k++) {
        const real next = AT(sums + k * LANES);
        const whole take = (next > top) | (next != next);
        top = (real)(((whole)next & take) | ((whole)top & ~take));
        where = (where & ~take) | (take & k);
    }
    const whole dead = top <= 0.0f;
    TO(out) = (real)((whole)top & ~dead);
    *(bytes *)place = __builtin_convertvector((where & ~dead) | (dead & DEAD), bytes);
}

/* Three windows side by side of the first stage; x is the upper left corner, w (channels * TAPS, 8). */
PART void first_windows(const float *x, int64_t channels, int64_t side, const float *w, const float *b, float *out,
                        uint8_t *place) {
    real sum[12];
    UNROLL for (int i = 0; i < 12; i++) sum[i] = AT(b);
    for (int64_t row = 0; row < channels * K; row++) {
        const float *line = x + (row / K * side + row % K) * side;
        UNROLL for (int kx = 0; kx < K; kx++) {
            const real tap = AT(w + (row * K + kx) * LANES);
            UNROLL for (int q = 0; q < 6; q++) {
                sum[q] += tap * line[kx + q];
                sum[6 + q] += tap * line[side + kx + q];
            }
        }
    }
    UNROLL for (int i = 0; i < 3; i++) {
        const real window[4] = {sum[2 * i], sum[2 * i + 1], sum[6 + 2 * i], sum[7 + 2 * i]};
        pool((const float *)window, out + i * LANES, place + i * LANES);
    }
}

/* One window of the second stage; x is its corner in mid, w (TAPS, FIRST, SECOND). */
PART void second_window(const float *x, int64_t side, const float *w, const float *b, float *out, uint8_t *place) {
    real low[4], high[4];
    UNROLL for (int i = 0; i < 4; i++) low[i] = AT(b), high[i] = AT(b + LANES);
    for (int64_t ky = 0; ky < K; ky++)
        for (int64_t kx = 0; kx < K; kx++) {
            const float *at = x + (ky * side + kx) * LANES, *tap = w + (ky * K + kx) * FIRST * SECOND;
            UNROLL for (int c = 0; c < FIRST; c++) {
                const real a = AT(tap + c * SECOND), d = AT(tap + c * SECOND + LANES);
                UNROLL for (int i = 0; i < 4; i++) {
                    const float value = at[(i / 2 * side + i % 2) * LANES + c];
                    low[i] += a * value;
                    high[i] += d * value;
                }
            }
        }
    pool((const float *)low, out, place);
    pool((const float *)high, out + LANES, place + LANES);
}

/* x (n, channels, side, side) -> out (n, SECOND * P * P), with mid (n, M * M, 8), places (n, M * M, 8) and (n, P * P, 16). */
BEST void fdamed_trunk_forward(const float *x, int64_t n, int64_t channels, int64_t side, const float *w1, const float *b1,
                               const float *w2, const float *b2, float *mid, uint8_t *place1, uint8_t *place2, float *out) {
    const int64_t m = (side - K + 1) / 2, p = (m - K + 1) / 2;
    ALIGNED float k1[CHANNELS * TAPS * LANES] = {0}, k2[TAPS * FIRST * SECOND], c1[LANES] = {0};
    for (int64_t o = 0; o < FIRST; o++) {
        c1[o] = b1[o];
        for (int64_t t = 0; t < channels * TAPS; t++) k1[t * LANES + o] = w1[o * channels * TAPS + t];
    }
    for (int64_t o = 0; o < SECOND; o++)
        for (int64_t c = 0; c < FIRST; c++)
            for (int64_t t = 0; t < TAPS; t++) k2[(t * FIRST + c) * SECOND + o] = w2[(o * FIRST + c) * TAPS + t];
    for (int64_t i = 0; i < n; i++) {
        const float *image = x + i * channels * side * side;
        float *between = mid + i * m * m * LANES;
        for (int64_t r = 0; r < m; r++)
            for (int64_t next = 0; next < m; next += 3) {
                const int64_t q = next + 3 <= m ? next : m - 3; /* the last three may be done again */
                first_windows(image + 2 * r * side + 2 * q, channels, side, k1, c1, between + (r * m + q) * LANES,
                              place1 + ((i * m + r) * m + q) * LANES);
            }
        for (int64_t r = 0; r < p; r++)
            for (int64_t q = 0; q < p; q++) {
                float sums[SECOND];
                second_window(between + (2 * r * m + 2 * q) * LANES, m, k2, b2, sums, place2 + ((i * p + r) * p + q) * SECOND);
                for (int64_t o = 0; o < SECOND; o++) out[((i * SECOND + o) * p + r) * p + q] = sums[o];
            }
    }
}

/* The places of one channel that receive a gradient: `from` in the stage's input, `g` beside it; returns how many. No branch:
 * it would be taken every other time. */
PART int64_t living(const float *gradient, int64_t step, const uint8_t *place, int64_t pitch, int64_t side, int64_t row,
                    int64_t unit, int32_t *from, float *g) {
    const int32_t shift[DEAD + 1] = {0, (int32_t)unit, (int32_t)(row * unit), (int32_t)((row + 1) * unit), 0};
    int64_t found = 0;
    for (int64_t r = 0; r < side; r++) {
        int32_t corner = (int32_t)(2 * r * row * unit);
        for (int64_t q = 0; q < side; q++, corner += 2 * (int32_t)unit, place += pitch, gradient += step) {
            from[found] = corner + shift[*place];
            g[found] = *gradient;
            found += *place != DEAD;
        }
    }
    return found;
}

PART float total(const float *g, int64_t count) {
    float sum[4] = {0};
    int64_t j = 0;
    for (; j + 4 <= count; j += 4)
        UNROLL for (int k = 0; k < 4; k++) sum[k] += g[j + k];
    for (; j < count; j++) sum[0] += g[j];
    return (sum[0] + sum[1]) + (sum[2] + sum[3]);
}

/* w (TAPS, 8) += sum over the living of g * their 5 x 5 x 8 piece of mid, the taps [first, first + taps). */
PART void weigh(const float *mid, int64_t side, const int32_t *from, const float *g, int64_t count, int first, int taps,
                float *w) {
    real sum[13];
    UNROLL for (int t = 0; t < taps; t++) sum[t] = AT(w + (first + t) * LANES);
    for (int64_t j = 0; j < count; j++) {
        const float *at = mid + from[j];
        UNROLL for (int t = 0; t < taps; t++)
            sum[t] += g[j] * AT(at + ((first + t) / K * side + (first + t) % K) * LANES);
    }
    UNROLL for (int t = 0; t < taps; t++) TO(w + (first + t) * LANES) = sum[t];
}

/* grad (n, SECOND * P * P) of the output -> gradients of w1, b1, w2, b2, shaped as these; all four are overwritten. */
BEST void fdamed_trunk_backward(const float *x, int64_t n, int64_t channels, int64_t side, const float *w2, const float *mid,
                                const uint8_t *place1, const uint8_t *place2, const float *grad, float *g1, float *d1,
                                float *g2, float *d2) {
    const int64_t m = (side - K + 1) / 2, p = (m - K + 1) / 2, pixels = channels * side * side;
    ALIGNED float k2[SECOND * TAPS * LANES] = {0}, s2[SECOND * TAPS * LANES] = {0}, s1[FIRST * CHANNELS * K * LANES] = {0};
    ALIGNED float image[CHANNELS * SIDE * SIDE + LANES], back[PLACES * LANES], g[PLACES + 1];
    int32_t from[PLACES + 1];
    for (int64_t o = 0; o < SECOND; o++)
        for (int64_t c = 0; c < FIRST; c++)
            for (int64_t t = 0; t < TAPS; t++) k2[(o * TAPS + t) * LANES + c] = w2[(o * FIRST + c) * TAPS + t];
    memset(d1, 0, FIRST * sizeof(float));
    memset(d2, 0, SECOND * sizeof(float));
    for (int64_t i = 0; i < n; i++) {
        const float *between = mid + i * m * m * LANES;
        memcpy(image, x + i * pixels, (size_t)pixels * sizeof(float)); /* eight are read where five are used */
        memset(image + pixels, 0, LANES * sizeof(float));
        memset(back, 0, (size_t)(m * m * LANES) * sizeof(float));
        for (int64_t o = 0; o < SECOND; o++) {
            const int64_t count =
                living(grad + (i * SECOND + o) * p * p, 1, place2 + i * p * p * SECOND + o, SECOND, p, m, LANES, from, g);
            d2[o] += total(g, count);
            weigh(between, m, from, g, count, 0, 13, s2 + o * TAPS * LANES);
            weigh(between, m, from, g, count, 13, 12, s2 + o * TAPS * LANES);
            for (int64_t j = 0; j < count; j++)
                for (int64_t ky = 0; ky < K; ky++) {
                    float *at = back + from[j] + ky * m * LANES;
                    const float *tap = k2 + (o * TAPS + ky * K) * LANES;
                    UNROLL for (int t = 0; t < K; t++) TO(at + t * LANES) += g[j] * AT(tap + t * LANES);
                }
        }
        for (int64_t o = 0; o < FIRST; o++) {
            const int64_t count = living(back + o, LANES, place1 + i * m * m * LANES + o, LANES, m, side, 1, from, g);
            d1[o] += total(g, count);
            from[count] = 0, g[count] = 0.0f; /* two at a time */
            for (int64_t c = 0; c < channels; c++) {
                float *w = s1 + (o * channels + c) * K * LANES;
                const float *plane = image + c * side * side;
                real sum[2 * K];
                UNROLL for (int t = 0; t < K; t++) sum[t] = AT(w + t * LANES), sum[K + t] = (real){0};
                for (int64_t j = 0; j < count; j += 2)
                    UNROLL for (int t = 0; t < K; t++) {
                        sum[t] += g[j] * AT(plane + from[j] + t * side);
                        sum[K + t] += g[j + 1] * AT(plane + from[j + 1] + t * side);
                    }
                UNROLL for (int t = 0; t < K; t++) TO(w + t * LANES) = sum[t] + sum[K + t];
            }
        }
    }
    for (int64_t row = 0; row < FIRST * channels * K; row++) memcpy(g1 + row * K, s1 + row * LANES, K * sizeof(float));
    for (int64_t o = 0; o < SECOND; o++)
        for (int64_t c = 0; c < FIRST; c++)
            for (int64_t t = 0; t < TAPS; t++) g2[(o * FIRST + c) * TAPS + t] = s2[(o * TAPS + t) * LANES + c];
}
