/* A library for LD_PRELOAD: the N-th write, fsync or rename below a folder fails, or ends the process.

   Armed by inject_arm(), or when it is loaded by INJECT_FOLDER, INJECT_MODE, INJECT_AT and INJECT_COUNTER: a file of
   eight bytes that counts the operations of all processes. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { NONE, KILL, TORN, NO_SPACE, BROKEN, POWER }; /* as in injection.py */
enum { WRITE, SYNC, RENAME };

static char folder[PATH_MAX];
static int mode;
static long at, own_counter, *counter = &own_counter;

/* Files with data that no fsync has made durable: a loss of power truncates them to `safe` bytes. */
static struct { char path[PATH_MAX]; off_t safe; } files[64];
static int num_files;

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

void inject_arm(const char *below, int how, long number) {
    snprintf(folder, sizeof folder, "%s", below);
    mode = how, at = number, num_files = 0, *counter = 0;
}

long inject_count(void) { return *counter; }

__attribute__((constructor)) static void load(void) {
    const char *below = getenv("INJECT_FOLDER"), *shared = getenv("INJECT_COUNTER");
    if (!below || !shared) return;
    int file = open(shared, O_RDWR);
    void *memory = mmap(NULL, sizeof(long), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (file < 0 || memory == MAP_FAILED) abort();
    close(file);
    counter = memory;
    snprintf(folder, sizeof folder, "%s", below);
    mode = atoi(getenv("INJECT_MODE")), at = atol(getenv("INJECT_AT"));
}

static int below(const char *path) { return folder[0] && !strncmp(path, folder, strlen(folder)); }

static int path_of(int file, char *path) {
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    ssize_t length = readlink(link, path, PATH_MAX - 1);
    path[length > 0 ? length : 0] = 0;
    return below(path);
}

static int index_of(const char *path) {
    for (int i = 0; i < num_files; i++)
        if (!strcmp(files[i].path, path)) return i;
    if (num_files == 64) abort();
    struct stat found;
    strcpy(files[num_files].path, path);
    files[num_files].safe = stat(path, &found) ? 0 : found.st_size;
    return num_files++;
}

static void end(void) {
    if (mode == POWER)
        for (int i = 0; i < num_files; i++) {
            struct stat found;
            if (!stat(files[i].path, &found) && found.st_size > files[i].safe) truncate(files[i].path, files[i].safe);
        }
    kill(getpid(), SIGKILL);
    pause();
}

/* Count an operation. Returns 1 if it must do only its part, -1 if it must fail, 0 if nothing happens to it. */
static int struck(int kind) {
    if (mode == NONE) return __atomic_add_fetch(counter, 1, __ATOMIC_SEQ_CST), 0;
    long number = __atomic_add_fetch(counter, 1, __ATOMIC_SEQ_CST);
    if (number == at && (mode == KILL || mode == POWER)) end();
    if (number == at && mode == TORN) return 1;
    if (number == at && mode == BROKEN) return errno = EIO, -1;
    if (mode == NO_SPACE && number == at && kind == WRITE) return 1;
    if (mode == NO_SPACE && number >= at && kind == WRITE) return errno = ENOSPC, -1; /* the disk stays full */
    if (mode == NO_SPACE && number == at) return errno = ENOSPC, -1;
    return 0;
}

#define WRITE_LIKE(declaration, call)                \
    declaration {                                          \
        char path[PATH_MAX];                               \
        if (!path_of(file, path)) return call;             \
        index_of(path);                                    \
        int how = struck(WRITE);                           \
        if (how < 0) return -1;                            \
        if (how == 0) return call;                         \
        size /= 2;                                         \
        ssize_t done = call;                               \
        if (mode == TORN) end();                           \
        return done;                                       \
    }

WRITE_LIKE(ssize_t write(int file, const void *data, size_t size), REAL(write)(file, data, size))
WRITE_LIKE(ssize_t pwrite(int file, const void *data, size_t size, off_t from), REAL(pwrite)(file, data, size, from))
WRITE_LIKE(ssize_t pwrite64(int file, const void *data, size_t size, off_t from), REAL(pwrite)(file, data, size, from))

#define SYNC_LIKE(name)                                    \
    int name(int file) {                                   \
        char path[PATH_MAX];                               \
        struct stat found;                                 \
        if (!path_of(file, path)) return REAL(name)(file); \
        int how = struck(SYNC);                            \
        if (how < 0) return -1;                            \
        int done = REAL(name)(file);                       \
        if (!fstat(file, &found) && S_ISREG(found.st_mode)) files[index_of(path)].safe = found.st_size; \
        if (how > 0) end();                                \
        return done;                                       \
    }

SYNC_LIKE(fsync)
SYNC_LIKE(fdatasync)

int rename(const char *from, const char *to) {
    if (!below(to)) return REAL(rename)(from, to);
    int how = struck(RENAME);
    if (how < 0) return -1;
    int done = REAL(rename)(from, to);
    if (!done) {
        off_t safe = files[index_of(from)].safe;
        files[index_of(to)].safe = safe;
        files[index_of(from)].safe = 0;
    }
    if (how > 0) end();
    return done;
}
