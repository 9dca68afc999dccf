/* Reads the files named on stdin, one a line, each in one piece into its own place of one block of memory, which begins
   at a page, has huge pages and was written before; prints the seconds and the CPU time of that. `map`: maps each file, skips HEADER
   bytes and copies records of RECORD bytes. `over`: every record goes to the same place, as in fio.

   feed_reader BYTES read|direct|map HEADER RECORD each|over */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static double read_clock(clockid_t clock) {
    struct timespec t;
    clock_gettime(clock, &t);
    return t.tv_sec + 1e-9 * t.tv_nsec;
}

static void fail(const char *what) {
    perror(what);
    exit(1);
}

int main(int argc, char **argv) {
    if (argc < 6) return 2;
    size_t total = strtoull(argv[1], NULL, 10), done = 0;
    int direct = !strcmp(argv[2], "direct"), map = !strcmp(argv[2], "map");
    size_t header = strtoull(argv[3], NULL, 10), record = strtoull(argv[4], NULL, 10), over = !strcmp(argv[5], "over");
    char *target = NULL, **names = NULL, line[4096];
    size_t num = 0;
    if (posix_memalign((void **)&target, 4096, total + 8192)) fail("memory");
    madvise(target, total + 8192, MADV_HUGEPAGE);
    memset(target, 1, total + 8192);
    while (fgets(line, sizeof line, stdin)) {
        line[strcspn(line, "\n")] = 0;
        names = realloc(names, ++num * sizeof *names);
        names[num - 1] = strdup(line);
    }
    double began = read_clock(CLOCK_MONOTONIC), used = read_clock(CLOCK_THREAD_CPUTIME_ID);
    for (size_t k = 0; k < num; k++) {
        int file = open(names[k], O_RDONLY | (direct ? O_DIRECT : 0));
        struct stat state;
        if (file < 0 || fstat(file, &state)) fail(names[k]);
        if (map) {
            char *whole = mmap(NULL, state.st_size, PROT_READ, MAP_SHARED, file, 0);
            if (whole == MAP_FAILED) fail("mmap");
            for (size_t at = header; at + record <= (size_t)state.st_size; at += record, done += record)
                memcpy(target + (over ? 0 : done), whole + at, record);
            munmap(whole, state.st_size);
        } else {
            size_t begin = done, end = done + state.st_size;
            while (done < end) {
                ssize_t count = read(file, target + done - (over ? begin : 0), end - done + (direct ? 4095 : 0));
                if (count <= 0) fail(names[k]);
                done += count;
            }
        }
        close(file);
    }
    used = read_clock(CLOCK_THREAD_CPUTIME_ID) - used;
    double took = read_clock(CLOCK_MONOTONIC) - began;
    if (done != total) return fprintf(stderr, "%zu bytes of %zu\n", done, total), 1;
    printf("%.9f %.9f\n", took, used);
    return 0;
}
