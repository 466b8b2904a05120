// What the processor and the memory of this machine can do: products of f32 and of bf16, bytes read, and bytes read and written.
//
//     cc -O3 -pthread limits.c -o FILE && FILE SECONDS
//
// Prints a line of JSON for each measure and number of threads: the best of many short runs, in GFLOP/s or GB/s.

#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#ifndef __x86_64__
int main(void) {
    fprintf(stderr, "limits.c measures x86-64 processors only\n");
    return 1;
}
#else
#include <immintrin.h>

#define MAX_THREADS 2
#define MEBI (1u << 20)
// Of each thread; larger than caches.
#define ARRAY ((size_t)256 * MEBI)

static double now(clockid_t clock) {
    struct timespec t;
    clock_gettime(clock, &t);
    return t.tv_sec + 1e-9 * t.tv_nsec;
}

// A run of a kernel does `count` rounds and returns something that depends on all of them.
typedef float (*Kernel)(long count, char *array);

#define TIMES_8(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7)
#define TIMES_16(X) TIMES_8(X) X(8) X(9) X(10) X(11) X(12) X(13) X(14) X(15)

// 16 independent sums hide the latency of each product.
__attribute__((target("avx512f"))) static float f32_avx512(long count, char *array) {
    (void)array;
    __m512 a = _mm512_set1_ps(0.5f), b = _mm512_set1_ps(1e-3f);
#define DECLARE(i) __m512 s##i = _mm512_set1_ps(i);
    TIMES_16(DECLARE)
#undef DECLARE
    for (long n = 0; n < count; n++) {
#define STEP(i) s##i = _mm512_fmadd_ps(s##i, a, b);
        TIMES_16(STEP)
#undef STEP
        __asm__ volatile("" : "+v"(a), "+v"(b));
    }
    __m512 all = a;
#define ADD(i) all = _mm512_add_ps(all, s##i);
    TIMES_16(ADD)
#undef ADD
    return _mm512_reduce_add_ps(all);
}

__attribute__((target("avx2,fma"))) static float f32_avx2(long count, char *array) {
    (void)array;
    __m256 a = _mm256_set1_ps(0.5f), b = _mm256_set1_ps(1e-3f);
#define DECLARE(i) __m256 s##i = _mm256_set1_ps(i);
    TIMES_8(DECLARE) DECLARE(8) DECLARE(9) DECLARE(10) DECLARE(11)
#undef DECLARE
    for (long n = 0; n < count; n++) {
#define STEP(i) s##i = _mm256_fmadd_ps(s##i, a, b);
        TIMES_8(STEP) STEP(8) STEP(9) STEP(10) STEP(11)
#undef STEP
        __asm__ volatile("" : "+x"(a), "+x"(b));
    }
    __m256 all = a;
#define ADD(i) all = _mm256_add_ps(all, s##i);
    TIMES_8(ADD) ADD(8) ADD(9) ADD(10) ADD(11)
#undef ADD
    float out[8];
    _mm256_storeu_ps(out, all);
    return out[0] + out[7];
}

__attribute__((target("avx512f,avx512bf16"))) static float bf16_avx512(long count, char *array) {
    (void)array;
    __m512bh a = (__m512bh)_mm512_set1_epi16(0x3f00), b = (__m512bh)_mm512_set1_epi16(0x3000);
#define DECLARE(i) __m512 s##i = _mm512_set1_ps(i);
    TIMES_16(DECLARE)
#undef DECLARE
    for (long n = 0; n < count; n++) {
#define STEP(i) s##i = _mm512_dpbf16_ps(s##i, a, b);
        TIMES_16(STEP)
#undef STEP
        __asm__ volatile("" : "+v"(a), "+v"(b));
    }
    __m512 all = _mm512_setzero_ps();
#define ADD(i) all = _mm512_add_ps(all, s##i);
    TIMES_16(ADD)
#undef ADD
    return _mm512_reduce_add_ps(all);
}

// Four tiles of sums, two of each side; the tiles' configuration is each thread's own.
__attribute__((target("amx-tile,amx-bf16"))) static float bf16_amx(long count, char *array) {
    struct {
        uint8_t palette, start, reserved[14];
        uint16_t bytes[16];
        uint8_t rows[16];
    } __attribute__((packed)) config = {.palette = 1};
    for (int tile = 0; tile < 8; tile++) {
        config.bytes[tile] = 64;
        config.rows[tile] = 16;
    }
    _tile_loadconfig(&config);
    _tile_zero(0); _tile_zero(1); _tile_zero(2); _tile_zero(3);
    _tile_loadd(4, array, 64); _tile_loadd(5, array, 64); _tile_loadd(6, array, 64); _tile_loadd(7, array, 64);
    for (long n = 0; n < count; n++) {
        _tile_dpbf16ps(0, 4, 6); _tile_dpbf16ps(1, 4, 7); _tile_dpbf16ps(2, 5, 6); _tile_dpbf16ps(3, 5, 7);
    }
    _tile_stored(0, array, 64);
    _tile_release();
    return ((float *)array)[0];
}

static float read_all(long count, char *array) {
    uint64_t sum = 0;
    for (long n = 0; n < count; n++) {
        const uint64_t *words = (const uint64_t *)array;
        for (size_t i = 0; i < ARRAY / 8; i++) sum += words[i];
        __asm__ volatile("" : "+r"(sum) : : "memory");
    }
    return (float)sum;
}

static float copy_half(long count, char *array) {
    for (long n = 0; n < count; n++) {
        memcpy(array, array + ARRAY / 2, ARRAY / 2);
        __asm__ volatile("" : : : "memory");
    }
    return array[0];
}

struct Share {
    Kernel kernel;
    long count;
    char *array;
    int processor;
    pthread_barrier_t *start;
    // Of the processor, so that what waits for it behind other work does not look slow.
    double seconds;
    float result;
};

static int processors[MAX_THREADS], available;

static void *take_share(void *given) {
    struct Share *share = given;
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(share->processor, &set);
    sched_setaffinity(0, sizeof set, &set);
    pthread_barrier_wait(share->start);
    double begin = now(CLOCK_THREAD_CPUTIME_ID);
    share->result = share->kernel(share->count, share->array);
    share->seconds = now(CLOCK_THREAD_CPUTIME_ID) - begin;
    return NULL;
}

// Seconds of the slowest of so many threads that begin at the same time.
static double run(Kernel kernel, long count, int threads, char **arrays) {
    pthread_barrier_t start;
    pthread_barrier_init(&start, NULL, threads);
    struct Share shares[MAX_THREADS];
    pthread_t handles[MAX_THREADS];
    for (int i = 0; i < threads; i++) {
        shares[i] = (struct Share){kernel, count, arrays[i], processors[i], &start, 0, 0};
        if (pthread_create(&handles[i], NULL, take_share, &shares[i]) != 0) exit(1);
    }
    double slowest = 0;
    for (int i = 0; i < threads; i++) {
        pthread_join(handles[i], NULL);
        if (shares[i].seconds > slowest) slowest = shares[i].seconds;
    }
    pthread_barrier_destroy(&start);
    return slowest;
}

// The best rate of runs of about 20 ms: `work` is what a round of a thread does, in 1e9.
static void measure(const char *what, const char *by, Kernel kernel, double work, double seconds, char **arrays) {
    for (int threads = 1; threads <= available; threads++) {
        long count = 1;
        while (run(kernel, count, threads, arrays) < 0.02) count *= 2;
        double best = 1e30, begin = now(CLOCK_MONOTONIC);
        do {
            double taken = run(kernel, count, threads, arrays);
            if (taken < best) best = taken;
        } while (now(CLOCK_MONOTONIC) - begin < seconds);
        printf("{\"what\": \"%s\", \"by\": \"%s\", \"threads\": %d, \"rate\": %.1f}\n", what, by, threads,
               work * count * threads / best);
        fflush(stdout);
    }
}

// Whether the system lets this process use tiles.
static int tiles_allowed(void) {
    const int request_permission = 0x1023, tile_data = 18;
    return syscall(SYS_arch_prctl, request_permission, tile_data) == 0;
}

// GCC 12 does not know these names for __builtin_cpu_supports.
static int has_amx(void) {
    unsigned a = 7, b, c = 0, d;
    __asm__ volatile("cpuid" : "+a"(a), "=b"(b), "+c"(c), "=d"(d));
    return (d >> 22 & 1) && (d >> 24 & 1) && tiles_allowed();
}

int main(int count, char **words) {
    double seconds = count > 1 ? atof(words[1]) : 1.0;
    cpu_set_t allowed;
    sched_getaffinity(0, sizeof allowed, &allowed);
    for (int i = 0; i < CPU_SETSIZE && available < MAX_THREADS; i++)
        if (CPU_ISSET(i, &allowed)) processors[available++] = i;
    char *arrays[MAX_THREADS];
    for (int i = 0; i < available; i++) {
        if (!(arrays[i] = aligned_alloc(4096, ARRAY))) return 1;
        memset(arrays[i], i + 1, ARRAY);
    }
    if (__builtin_cpu_supports("avx512f")) {
        measure("f32", "AVX-512", f32_avx512, 16 * 16 * 2e-9, seconds, arrays);
    } else if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
        measure("f32", "AVX2", f32_avx2, 12 * 8 * 2e-9, seconds, arrays);
    } else {
        fprintf(stderr, "this processor has no AVX2\n");
        return 1;
    }
    if (has_amx()) {
        memset(arrays[0], 0, 1024);
        measure("bf16", "AMX", bf16_amx, 4 * 16 * 16 * 32 * 2e-9, seconds, arrays);
    } else if (__builtin_cpu_supports("avx512bf16")) {
        measure("bf16", "AVX-512", bf16_avx512, 16 * 32 * 2e-9, seconds, arrays);
    }
    measure("read", "sum", read_all, ARRAY * 1e-9, seconds, arrays);
    // Half of the array is read and half is written.
    measure("copy", "memcpy", copy_half, ARRAY * 1e-9, seconds, arrays);
    return 0;
}
#endif
