/* A wall clock that a test can set, for processes that preload this: what all of them see is one clock that is stepped,
 * and the files have the times that it showed when they were written. Other clocks, and with them all waits, are left
 * alone.
 *
 * The file named by PACCHETTINO_CLOCK holds how many steps there were, and then each: from when on (nanoseconds of the
 * real clock), and how far the clock is off from then on (seconds).
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))

static const struct {
    _Atomic uint64_t count;
    struct {
        int64_t from, offset;
    } steps[];
} *clock_file;

__attribute__((constructor)) static void open_clock(void) {
    const char *path = getenv("PACCHETTINO_CLOCK");
    struct stat stat;
    int file = path ? (int)syscall(SYS_openat, AT_FDCWD, path, O_RDONLY | O_CLOEXEC) : -1;
    if (file < 0 || syscall(SYS_fstat, file, &stat) != 0)
        abort();
    clock_file = mmap(NULL, stat.st_size, PROT_READ, MAP_SHARED, file, 0);
    if (clock_file == MAP_FAILED)
        abort();
    close(file);
}

static void shift(struct timespec *time) {
    int64_t real = time->tv_sec * 1000000000 + time->tv_nsec;
    for (uint64_t step = clock_file->count; step-- > 0;) {
        if (clock_file->steps[step].from <= real) {
            time->tv_sec += clock_file->steps[step].offset;
            return;
        }
    }
}

EXPORT int clock_gettime(clockid_t clock, struct timespec *time) {
    if (syscall(SYS_clock_gettime, clock, time) != 0)
        return -1;
    if (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)
        shift(time);
    return 0;
}

EXPORT int gettimeofday(struct timeval *restrict time, void *restrict zone) {
    (void)zone;
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    *time = (struct timeval){now.tv_sec, now.tv_nsec / 1000};
    return 0;
}

EXPORT time_t time(time_t *result) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (result)
        *result = now.tv_sec;
    return now.tv_sec;
}

EXPORT int fstatat(int dir, const char *restrict path, struct stat *restrict stat, int flags) {
    if (syscall(SYS_newfstatat, dir, path, stat, flags) != 0)
        return -1;
    shift(&stat->st_atim);
    shift(&stat->st_mtim);
    shift(&stat->st_ctim);
    return 0;
}

EXPORT int fstat(int file, struct stat *stat) { return fstatat(file, "", stat, AT_EMPTY_PATH); }
EXPORT int stat(const char *restrict path, struct stat *restrict stat) { return fstatat(AT_FDCWD, path, stat, 0); }
EXPORT int lstat(const char *restrict path, struct stat *restrict stat) {
    return fstatat(AT_FDCWD, path, stat, AT_SYMLINK_NOFOLLOW);
}

/* With files of any size, which on this machine is the same. */
_Static_assert(sizeof(struct stat) == sizeof(struct stat64), "64 bits");
EXPORT __typeof__(fstatat64) fstatat64 __attribute__((alias("fstatat")));
EXPORT __typeof__(fstat64) fstat64 __attribute__((alias("fstat")));
EXPORT __typeof__(stat64) stat64 __attribute__((alias("stat")));
EXPORT __typeof__(lstat64) lstat64 __attribute__((alias("lstat")));
