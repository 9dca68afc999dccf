/* A stand-in for libnccl (or librccl): collectives and messages of processes of one host over a shared file.

   Ranks meet in a file of /dev/shm that the unique id names. A call is put on its stream, and the stream's thread runs it.
   What NCCL forbids is an error: memory that no GPU has, a wrong peer or root, a group that was not begun, half floats
   (which this stand-in cannot add). A message of another size than its receive, or a peer that died, is an asynchronous
   error, and the call never completes on its own. A communicator with registered memory cannot be destroyed. STANDIN_LOG:
   a file that gets a line for each group of collectives, registration and configuration. STANDIN_DELAY_US: every call takes this long at least. STANDIN_WRONG=N:
   every call of rank 0 after its first N calls delivers one wrong byte. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum { SUCCESS = 0, SYSTEM_ERROR = 2, INVALID_ARGUMENT = 4, INVALID_USAGE = 5, REMOTE_ERROR = 6, IN_PROGRESS = 7 };
enum { RANKS = 16, CHUNK = 1 << 16, MOST_IN_GROUP = 4096 };
enum { ALLREDUCE, REDUCE, REDUCESCATTER, ALLGATHER, BROADCAST, MESSAGES };

typedef struct { char internal[128]; } unique_id;

struct mailbox {
    _Atomic int full;
    size_t total, num; /* of the message, in this chunk */
    char data[CHUNK];
};

struct shared {
    _Atomic int arrived, joined, left;
    _Atomic unsigned round;
    _Atomic int pid[RANKS];
    size_t window[RANKS];
    char slot[RANKS][CHUNK];
    struct mailbox box[RANKS][RANKS]; /* from, to */
};

struct comm {
    struct shared *shared;
    char name[64];
    int num, rank;
    _Atomic int error, aborted;
    long calls;
    int num_registered;
};

struct message { int is_send, peer; char *data; size_t size, done; int begun; };

struct call {
    int kind, type, op, root;
    const char *send;
    char *recv;
    size_t count;
    struct comm *comm;
    struct message *messages;
    int num_messages, kept; /* kept: in a graph, so it runs again */
};

int standin_enqueue(void *stream, void (*run)(void *), void *argument);
int standin_is_device(const void *begin, size_t size);
int standin_captures(void *stream);
#ifdef HIP
int hipMalloc(void **, size_t), hipFree(void *);
#define MALLOC hipMalloc
#define FREE hipFree
#else
int cudaMalloc(void **, size_t), cudaFree(void *);
#define MALLOC cudaMalloc
#define FREE cudaFree
#endif

static const int sizes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};
static __thread int depth, num_grouped;
static __thread struct message grouped[MOST_IN_GROUP];
static __thread struct { struct call call; void *stream; } held[MOST_IN_GROUP];
static __thread int num_held;
static __thread struct comm *group_comm;
static __thread void *group_stream;

static double seconds(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec + time.tv_nsec * 1e-9;
}

static void note(const char *what, long a, long b, long c)
{
    const char *name = getenv("STANDIN_LOG");
    FILE *file = name ? fopen(name, "a") : NULL;
    if (file) {
        fprintf(file, "%s %ld %ld %ld\n", what, a, b, c);
        fclose(file);
    }
}

/* Also of a process that nobody has waited for yet. */
static int is_dead(int pid)
{
    char path[64], state = 'X';
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    FILE *file = fopen(path, "r");
    if (file) {
        if (fscanf(file, "%*d (%*[^)]) %c", &state) != 1)
            state = 'X';
        fclose(file);
    }
    return state == 'X' || state == 'Z';
}

/* Nonzero if the call can not go on: it was aborted, or a peer died. */
static int given_up(struct comm *c)
{
    static __thread double next_look;
    if (c->aborted || c->error)
        return 1;
    sched_yield();
    if (seconds() < next_look)
        return 0;
    next_look = seconds() + 0.01;
    for (int rank = 0; rank < c->num; rank++)
        if (c->shared->pid[rank] && is_dead(c->shared->pid[rank]))
            return c->error = REMOTE_ERROR;
    return 0;
}

static int barrier(struct comm *c)
{
    struct shared *s = c->shared;
    unsigned round = s->round;
    if (atomic_fetch_add(&s->arrived, 1) + 1 == c->num) {
        s->arrived = 0;
        s->round = round + 1;
        return 0;
    }
    for (int spins = 1; s->round == round; spins++)
        if (spins % 256 == 0 && given_up(c))
            return 1;
    return 0;
}

#define COMBINE(kind) \
    for (size_t k = 0; k < num; k++) { \
        kind *a = (kind *)into + k, b = ((const kind *)from)[k]; \
        *a = op == 1 ? *a * b : op == 2 ? (*a > b ? *a : b) : op == 3 ? (*a < b ? *a : b) : *a + b; \
    } \
    break

static void combine(char *into, const char *from, size_t num, int type, int op)
{
    switch (type) {
    case 0: COMBINE(int8_t);
    case 1: COMBINE(uint8_t);
    case 2: COMBINE(int32_t);
    case 3: COMBINE(uint32_t);
    case 4: COMBINE(int64_t);
    case 5: COMBINE(uint64_t);
    case 7: COMBINE(float);
    case 8: COMBINE(double);
    }
}

static void divide(char *data, size_t num, int type, int by)
{
    for (size_t k = 0; k < num; k++)
        switch (type) {
        case 0: ((int8_t *)data)[k] /= by; break;
        case 1: ((uint8_t *)data)[k] /= by; break;
        case 2: ((int32_t *)data)[k] /= by; break;
        case 3: ((uint32_t *)data)[k] /= by; break;
        case 4: ((int64_t *)data)[k] /= by; break;
        case 5: ((uint64_t *)data)[k] /= by; break;
        case 7: ((float *)data)[k] /= by; break;
        case 8: ((double *)data)[k] /= by; break;
        }
}

/* The part of each rank's data that this call's rank gets from chunk `at`, by way of every rank's slot. */
static int reduce_chunk(struct call *p, const char *mine, char *result, size_t num_bytes, int wanted)
{
    struct comm *c = p->comm;
    size_t num = num_bytes / sizes[p->type];
    memcpy(c->shared->slot[c->rank], mine, num_bytes);
    if (barrier(c))
        return 1;
    if (wanted) {
        char sum[CHUNK];
        memcpy(sum, c->shared->slot[0], num_bytes);
        for (int rank = 1; rank < c->num; rank++)
            combine(sum, c->shared->slot[rank], num, p->type, p->op == 4 ? 0 : p->op);
        if (p->op == 4)
            divide(sum, num, p->type, c->num);
        memcpy(result, sum, num_bytes);
    }
    return barrier(c);
}

static size_t smaller(size_t a, size_t b) { return a < b ? a : b; }

static void collective(struct call *p)
{
    struct comm *c = p->comm;
    size_t all = p->count * sizes[p->type];
    for (size_t at = 0; at < all; at += CHUNK) {
        size_t num = smaller(CHUNK, all - at);
        if (p->kind == ALLREDUCE || p->kind == REDUCE) {
            if (reduce_chunk(p, p->send + at, p->recv + at, num, p->kind == ALLREDUCE || p->root == c->rank))
                return;
        } else if (p->kind == REDUCESCATTER) {
            for (int owner = 0; owner < c->num; owner++)
                if (reduce_chunk(p, p->send + owner * all + at, p->recv + at, num, owner == c->rank))
                    return;
        } else {
            if (p->kind == ALLGATHER || p->root == c->rank)
                memcpy(c->shared->slot[c->rank], p->send + at, num);
            if (barrier(c))
                return;
            for (int rank = 0; p->kind == ALLGATHER && rank < c->num; rank++)
                memcpy(p->recv + rank * all + at, c->shared->slot[rank], num);
            if (p->kind == BROADCAST && p->recv + at != p->send + at)
                memcpy(p->recv + at, c->shared->slot[p->root], num);
            else if (p->kind == BROADCAST && p->root != c->rank)
                memcpy(p->recv + at, c->shared->slot[p->root], num);
            if (barrier(c))
                return;
        }
    }
}

static int earlier_to_same(const struct call *p, int index)
{
    for (int k = 0; k < index; k++)
        if (p->messages[k].peer == p->messages[index].peer && p->messages[k].is_send == p->messages[index].is_send &&
            !(p->messages[k].begun && p->messages[k].done == p->messages[k].size))
            return 1;
    return 0;
}

static void exchange(struct call *p)
{
    struct comm *c = p->comm;
    for (int open = p->num_messages; open > 0;) {
        open = 0;
        for (int k = 0; k < p->num_messages; k++) {
            struct message *m = &p->messages[k];
            if (m->begun && m->done == m->size)
                continue;
            open++;
            if (earlier_to_same(p, k))
                continue;
            struct mailbox *box = m->is_send ? &c->shared->box[c->rank][m->peer] : &c->shared->box[m->peer][c->rank];
            if (box->full != !m->is_send)
                continue;
            if (m->is_send) {
                box->total = m->size;
                box->num = smaller(CHUNK, m->size - m->done);
                memcpy(box->data, m->data + m->done, box->num);
            } else if (box->total != m->size) {
                c->error = INVALID_USAGE;
                return;
            } else
                memcpy(m->data + m->done, box->data, box->num);
            m->begun = 1;
            m->done += box->num;
            box->full = m->is_send;
        }
        if (open && given_up(c))
            return;
    }
}

static void carry_out(void *argument)
{
    struct call *p = argument;
    const char *delay = getenv("STANDIN_DELAY_US"), *wrong = getenv("STANDIN_WRONG");
    double end = seconds() + (delay ? atof(delay) * 1e-6 : 0);
    for (int k = 0; k < p->num_messages; k++)
        p->messages[k].begun = p->messages[k].done = 0;
    if (p->kind == MESSAGES)
        exchange(p);
    else
        collective(p);
    if (wrong && p->comm->rank == 0 && p->comm->calls++ >= atol(wrong) && p->recv)
        p->recv[0] ^= 1;
    while (delay && seconds() < end)
        sched_yield();
    while (p->comm->error && !p->comm->aborted) /* a call that failed does not complete */
        usleep(1000);
    if (p->kept)
        return;
    free(p->messages);
    free(p);
}

static int put(struct call call, void *stream)
{
    struct call *p = malloc(sizeof *p);
    *p = call;
    p->kept = standin_captures(stream);
    return standin_enqueue(stream, carry_out, p) ? INVALID_ARGUMENT : SUCCESS;
}

static int checked(int kind, const void *send, size_t send_count, void *recv, size_t recv_count, size_t count, int type,
                   int op, int root, struct comm *c, void *stream)
{
    if (!c || type < 0 || type > 11 || op < 0 || op > 4 || root < 0 || root >= c->num)
        return INVALID_ARGUMENT;
    if (kind <= REDUCESCATTER && (type == 6 || type > 8))
        return INVALID_ARGUMENT;
    if ((send_count && !standin_is_device(send, send_count * sizes[type])) ||
        (recv_count && !standin_is_device(recv, recv_count * sizes[type])))
        return INVALID_ARGUMENT;
    struct call call = {kind, type, op, root, send, recv, count, c, NULL, 0, 0};
    if (!depth)
        return put(call, stream);
    if (num_held == MOST_IN_GROUP)
        return INVALID_USAGE;
    held[num_held].call = call;
    held[num_held++].stream = stream;
    return SUCCESS;
}

int ncclAllReduce(const void *send, void *recv, size_t count, int type, int op, void *comm, void *stream)
{
    return checked(ALLREDUCE, send, count, recv, count, count, type, op, 0, comm, stream);
}

int ncclReduce(const void *send, void *recv, size_t count, int type, int op, int root, void *comm, void *stream)
{
    struct comm *c = comm;
    return checked(REDUCE, send, count, recv, c && c->rank == root ? count : 0, count, type, op, root, c, stream);
}

int ncclReduceScatter(const void *send, void *recv, size_t count, int type, int op, void *comm, void *stream)
{
    struct comm *c = comm;
    return checked(REDUCESCATTER, send, count * (c ? c->num : 0), recv, count, count, type, op, 0, c, stream);
}

int ncclAllGather(const void *send, void *recv, size_t count, int type, void *comm, void *stream)
{
    struct comm *c = comm;
    return checked(ALLGATHER, send, count, recv, count * (c ? c->num : 0), count, type, 0, 0, c, stream);
}

int ncclBroadcast(const void *send, void *recv, size_t count, int type, int root, void *comm, void *stream)
{
    struct comm *c = comm;
    return checked(BROADCAST, send, c && c->rank == root ? count : 0, recv, count, count, type, 0, root, c, stream);
}

static int post(int is_send, void *data, size_t count, int type, int peer, struct comm *c, void *stream)
{
    if (!c || type < 0 || type > 11 || peer < 0 || peer >= c->num || num_grouped == MOST_IN_GROUP)
        return INVALID_ARGUMENT;
    if (count && !standin_is_device(data, count * sizes[type]))
        return INVALID_ARGUMENT;
    struct message m = {is_send, peer, data, count * sizes[type], 0, 0};
    if (!depth) {
        struct message *one = malloc(sizeof m);
        *one = m;
        return put((struct call){MESSAGES, type, 0, 0, NULL, is_send ? NULL : data, 0, c, one, 1, 0}, stream);
    }
    if (num_grouped && (group_comm != c || group_stream != stream))
        return INVALID_USAGE; /* NCCL allows it; this stand-in does not need it */
    group_comm = c;
    group_stream = stream;
    grouped[num_grouped++] = m;
    return SUCCESS;
}

int ncclSend(const void *data, size_t count, int type, int peer, void *comm, void *stream)
{
    return post(1, (void *)data, count, type, peer, comm, stream);
}

int ncclRecv(void *data, size_t count, int type, int peer, void *comm, void *stream)
{
    return post(0, data, count, type, peer, comm, stream);
}

int ncclGroupStart(void) { depth++; return SUCCESS; }

int ncclGroupEnd(void)
{
    if (!depth)
        return INVALID_USAGE;
    if (--depth)
        return SUCCESS;
    if (num_held > 1)
        note("group", num_held, 0, 0);
    int num_calls = num_held;
    num_held = 0;
    for (int k = 0; k < num_calls; k++)
        if (put(held[k].call, held[k].stream))
            return INVALID_ARGUMENT;
    if (!num_grouped)
        return SUCCESS;
    struct message *copy = malloc(num_grouped * sizeof *copy);
    memcpy(copy, grouped, num_grouped * sizeof *copy);
    char *into = NULL;
    for (int k = 0; k < num_grouped && !into; k++)
        if (!copy[k].is_send)
            into = copy[k].data;
    int num = num_grouped;
    num_grouped = 0;
    return put((struct call){MESSAGES, 0, 0, 0, NULL, into, 0, group_comm, copy, num, 0}, group_stream);
}

int ncclGetVersion(int *version) { *version = 23007; return SUCCESS; }

int ncclGetUniqueId(unique_id *id)
{
    static int made;
    memset(id, 0, sizeof *id);
    snprintf(id->internal, sizeof id->internal, "/standin-nccl-%d-%d-%ld", (int)getpid(), made++, (long)(seconds() * 1e6));
    return SUCCESS;
}

int ncclCommInitRank(void **comm, int num, unique_id id, int rank)
{
    if (num < 1 || num > RANKS || rank < 0 || rank >= num || memchr(id.internal, 0, sizeof id.internal) == id.internal)
        return INVALID_ARGUMENT;
    struct comm *c = calloc(1, sizeof *c);
    snprintf(c->name, sizeof c->name, "%.60s", id.internal);
    int file = shm_open(c->name, O_RDWR | O_CREAT, 0600);
    if (file < 0 || ftruncate(file, sizeof(struct shared)))
        return SYSTEM_ERROR;
    c->shared = mmap(NULL, sizeof(struct shared), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    c->num = num;
    c->rank = rank;
    c->shared->pid[rank] = getpid();
    c->shared->joined++;
    while (c->shared->joined < num)
        if (given_up(c))
            return REMOTE_ERROR;
    if (rank == 0)
        shm_unlink(c->name);
    *comm = c;
    return SUCCESS;
}

int ncclCommDestroy(void *comm)
{
    struct comm *c = comm;
    if (!c || c->num_registered)
        return c ? INVALID_USAGE : INVALID_ARGUMENT;
    c->shared->pid[c->rank] = 0;
    munmap(c->shared, sizeof(struct shared));
    free(c);
    return SUCCESS;
}

int ncclCommAbort(void *comm) { ((struct comm *)comm)->aborted = 1; return SUCCESS; }
int ncclCommGetAsyncError(void *comm, int *code) { *code = ((struct comm *)comm)->error; return SUCCESS; }
const char *ncclGetLastError(void *comm) { (void)comm; return ""; }

const char *ncclGetErrorString(int code)
{
    return code == INVALID_ARGUMENT ? "invalid argument" : code == INVALID_USAGE ? "invalid usage" :
           code == REMOTE_ERROR ? "remote process exited or there was a network error" : code ? "error" : "no error";
}

struct config { /* as of NCCL 2.27 */
    size_t size;
    unsigned magic, version;
    int blocking, cga, min_ctas, max_ctas;
    const char *net;
    int split_share, traffic_class;
    const char *name;
    int collnet, policy, shrink_share;
};

int ncclCommInitRankConfig(void **comm, int num, unique_id id, int rank, struct config *c)
{
    const int unset = -2147483647 - 1;
    if (!c || c->size != sizeof *c || c->magic != 0xcafebeef || c->version != 22700)
        return INVALID_ARGUMENT;
    if (c->blocking != unset || c->cga != unset || c->net || c->split_share != unset || c->traffic_class != unset ||
        c->name || c->collnet != unset || c->shrink_share != unset)
        return INVALID_ARGUMENT; /* the suite sets none of these */
    if (c->min_ctas != unset && (c->min_ctas < 1 || c->min_ctas > c->max_ctas))
        return INVALID_ARGUMENT;
    if (c->policy != unset && (c->policy < 0 || c->policy > 2))
        return INVALID_ARGUMENT;
    note("config", c->min_ctas, c->max_ctas, c->policy);
    return ncclCommInitRank(comm, num, id, rank);
}

int ncclMemAlloc(void **pointer, size_t size) { note("alloc", size, 0, 0); return MALLOC(pointer, size); }
int ncclMemFree(void *pointer) { return FREE(pointer); }

int ncclCommRegister(void *comm, void *buffer, size_t size, void **handle)
{
    struct comm *c = comm;
    if (!c || !size || !standin_is_device(buffer, size))
        return INVALID_ARGUMENT;
    note("register", size, 0, 0);
    c->num_registered++;
    *handle = malloc(1);
    return SUCCESS;
}

int ncclCommDeregister(void *comm, void *handle)
{
    struct comm *c = comm;
    if (!c || !handle || !c->num_registered)
        return INVALID_ARGUMENT;
    note("deregister", 0, 0, 0);
    c->num_registered--;
    free(handle);
    return SUCCESS;
}

int ncclCommWindowRegister(void *comm, void *buffer, size_t size, void **window, int flags)
{
    struct comm *c = comm;
    if (!c || (uintptr_t)buffer % 4096 || flags != 1)
        return INVALID_ARGUMENT;
    c->shared->window[c->rank] = size;
    if (barrier(c))
        return REMOTE_ERROR;
    int same = 1;
    for (int rank = 0; rank < c->num; rank++)
        same &= c->shared->window[rank] == size;
    if (barrier(c) || !same)
        return INVALID_ARGUMENT;
    note("window", size, flags, 0);
    return ncclCommRegister(comm, buffer, size, window);
}

int ncclCommWindowDeregister(void *comm, void *window) { return ncclCommDeregister(comm, window); }
