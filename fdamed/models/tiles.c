/* The two transforms of Winograd's F(4 x 4, 3 x 3): images to points, products of points back to images.
 *
 * Images lie as (n, height, width, channels), points as (36, tiles, channels), tiles in the order (image, row, column). A vector is
 * eight channels; both transforms are separable and need additions and a few multiplications by small whole numbers. What
 * lies beyond the border is zero. Every tile is computed by itself, so threads do not change a bit.
 */
#include <stdint.h>

enum { LANES = 8, TILE = 4, SPAN = 6, POINTS = SPAN * SPAN };

typedef float real __attribute__((vector_size(32), aligned(4), may_alias));

#ifdef __x86_64__
#define BEST __attribute__((target("avx2,fma")))
int fdamed_tiles_runs(void) { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"); }
#else
#define BEST
int fdamed_tiles_runs(void) { return 1; }
#endif
#define PART static inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 8")
#define AT(p) (*(const real *)(p))
#define TO(p) (*(real *)(p))

typedef struct {
    int64_t height, width, channels, rows, columns, tiles;
} Shape;

/* Six numbers of a line to its six points. */
PART void spread(const real *d, int64_t step, real *t) {
    const real d0 = d[0], d1 = d[step], d2 = d[2 * step], d3 = d[3 * step], d4 = d[4 * step], d5 = d[5 * step];
    const real even = d4 - 4.0f * d2, odd = d3 - 4.0f * d1, near = d4 - d2, far = 2.0f * (d3 - d1);
    t[0] = 4.0f * d0 - 5.0f * d2 + d4;
    t[step] = even + odd;
    t[2 * step] = even - odd;
    t[3 * step] = near + far;
    t[4 * step] = near - far;
    t[5 * step] = 4.0f * d1 - 5.0f * d3 + d5;
}

/* Six points of a line to its four results. */
PART void gather(const real *m, int64_t step, real *o) {
    const real m1 = m[step], m2 = m[2 * step], m3 = m[3 * step], m4 = m[4 * step];
    const real sum = m1 + m2, difference = m1 - m2, wide = m3 + m4, slope = m3 - m4;
    o[0] = m[0] + sum + wide;
    o[step] = difference + 2.0f * slope;
    o[2 * step] = sum + 4.0f * wide;
    o[3 * step] = difference + 8.0f * slope + m[5 * step];
}

BEST static void tile_in(const float *image, Shape s, int64_t row, int64_t column, float *points) {
    const int64_t top = row * TILE - 1, left = column * TILE - 1, plane = s.tiles * s.channels;
    for (int64_t c = 0; c < s.channels; c += LANES) {
        real d[POINTS], t[POINTS];
        for (int y = 0; y < SPAN; y++)
            UNROLL for (int x = 0; x < SPAN; x++) {
                const int64_t i = top + y, j = left + x;
                const int inside = i >= 0 && i < s.height && j >= 0 && j < s.width;
                d[y * SPAN + x] = inside ? AT(image + (i * s.width + j) * s.channels + c) : (real){0};
            }
        UNROLL for (int y = 0; y < SPAN; y++) spread(d + y * SPAN, 1, t + y * SPAN);
        UNROLL for (int x = 0; x < SPAN; x++) spread(t + x, SPAN, d + x);
        UNROLL for (int k = 0; k < POINTS; k++) TO(points + k * plane + c) = d[k];
    }
}

BEST static void tile_out(const float *points, Shape s, int64_t row, int64_t column, float *image) {
    const int64_t top = row * TILE, left = column * TILE, plane = s.tiles * s.channels;
    const int64_t high = s.height - top < TILE ? s.height - top : TILE, wide = s.width - left < TILE ? s.width - left : TILE;
    for (int64_t c = 0; c < s.channels; c += LANES) {
        real m[POINTS], o[POINTS];
        UNROLL for (int k = 0; k < POINTS; k++) m[k] = AT(points + k * plane + c);
        UNROLL for (int y = 0; y < SPAN; y++) gather(m + y * SPAN, 1, o + y * SPAN);
        UNROLL for (int x = 0; x < TILE; x++) gather(o + x, SPAN, m + x);
        for (int64_t y = 0; y < high; y++)
            for (int64_t x = 0; x < wide; x++)
                TO(image + ((top + y) * s.width + left + x) * s.channels + c) = m[y * SPAN + x];
    }
}

static Shape shape(int64_t n, int64_t height, int64_t width, int64_t channels) {
    const int64_t rows = (height + TILE - 1) / TILE, columns = (width + TILE - 1) / TILE;
    return (Shape){height, width, channels, rows, columns, n * rows * columns};
}

/* images (n, height, width, channels) -> points (36, tiles, channels) */
void fdamed_tiles_in(const float *images, int64_t n, int64_t height, int64_t width, int64_t channels, int64_t threads,
                     float *points) {
    const Shape s = shape(n, height, width, channels);
#pragma omp parallel for num_threads(threads)
    for (int64_t t = 0; t < s.tiles; t++) {
        const int64_t in_image = t % (s.rows * s.columns);
        const float *image = images + t / (s.rows * s.columns) * height * width * channels;
        tile_in(image, s, in_image / s.columns, in_image % s.columns, points + t * channels);
    }
}

/* points (36, tiles, channels) -> images (n, height, width, channels) */
void fdamed_tiles_out(const float *points, int64_t n, int64_t height, int64_t width, int64_t channels, int64_t threads,
                      float *images) {
    const Shape s = shape(n, height, width, channels);
#pragma omp parallel for num_threads(threads)
    for (int64_t t = 0; t < s.tiles; t++) {
        const int64_t in_image = t % (s.rows * s.columns);
        float *image = images + t / (s.rows * s.columns) * height * width * channels;
        tile_out(points + t * channels, s, in_image / s.columns, in_image % s.columns, image);
    }
}
