/* The timed loops of transports/nccl_direct.py, over the NCCL (or RCCL) and the CUDA (or HIP) runtime that are loaded.

   No header of these libraries is included: their functions come as addresses. transports/_nccl_library.py mirrors the
   structures and the numbers below. */
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <time.h>

enum { ALLREDUCE, REDUCE, REDUCESCATTER, ALLGATHER, BROADCAST, SEND, RECV, GROUP_START, GROUP_END };

/* What went wrong: NCCL's code, or the runtime's code plus FROM_RUNTIME, or an asynchronous error of NCCL plus FROM_PEER. */
enum { FROM_RUNTIME = 10000, FROM_PEER = 20000, TOO_LATE = 30000 };

struct step {
    int64_t operation;
    void (*function)(void);
    const void *send;
    void *recv;
    uint64_t count; /* elements */
    int64_t type, reduction, peer;
    void *comm;
};

struct device {
    int (*record)(void *event, void *stream);
    int (*query)(void *event);
    int (*elapsed)(float *milliseconds, void *begin, void *end);
    int (*async_error)(void *comm, int *code); /* ncclCommGetAsyncError */
    int (*launch)(void *graph, void *stream);  /* cudaGraphLaunch */
    void *stream, *begin, *end, *comm;         /* comm: of the world */
    int64_t not_ready;                         /* cudaErrorNotReady */
    int64_t timeout_ns;                        /* for one sample */
};

/* In memory that all ranks of one host share. Ranks leave `meet` within a fraction of a microsecond. */
struct meeting {
    _Atomic uint32_t arrived;
    char apart[60];
    _Atomic uint32_t round;
};

struct program {
    const struct step *sets; /* the steps of all buffer sets, one set after the other */
    int64_t num_steps, num_sets;
    void *graph; /* all calls of one sample; NULL: they are made one by one */
};

static int64_t now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (int64_t)time.tv_sec * 1000000000 + time.tv_nsec;
}

static int run(const struct step *s, void *stream)
{
    int type = (int)s->type, reduction = (int)s->reduction, peer = (int)s->peer;

    switch (s->operation) {
    case ALLREDUCE:
    case REDUCESCATTER:
        return ((int (*)(const void *, void *, size_t, int, int, void *, void *))s->function)(
            s->send, s->recv, s->count, type, reduction, s->comm, stream);
    case REDUCE:
        return ((int (*)(const void *, void *, size_t, int, int, int, void *, void *))s->function)(
            s->send, s->recv, s->count, type, reduction, peer, s->comm, stream);
    case ALLGATHER:
        return ((int (*)(const void *, void *, size_t, int, void *, void *))s->function)(
            s->send, s->recv, s->count, type, s->comm, stream);
    case BROADCAST:
        return ((int (*)(const void *, void *, size_t, int, int, void *, void *))s->function)(
            s->send, s->recv, s->count, type, peer, s->comm, stream);
    case SEND:
        return ((int (*)(const void *, size_t, int, int, void *, void *))s->function)(
            s->send, s->count, type, peer, s->comm, stream);
    case RECV:
        return ((int (*)(void *, size_t, int, int, void *, void *))s->function)(
            s->recv, s->count, type, peer, s->comm, stream);
    case GROUP_START:
    case GROUP_END:
        return ((int (*)(void))s->function)();
    }
    return -1;
}

static int run_all(const struct step *steps, int64_t num_steps, void *stream)
{
    for (int64_t k = 0; k < num_steps; k++) {
        int code = run(&steps[k], stream);
        if (code != 0)
            return code;
    }
    return 0;
}

/* Waits until the device has reached an event. Like nccl-tests it yields after each look, because NCCL's proxy thread may
   have no other core. A peer that died is an asynchronous error; it is looked for every 64 us. */
static int reach(const struct device *d, void *event, int64_t deadline)
{
    for (int64_t next_look = now() + 64000;;) {
        int code = d->query(event);
        if (code == 0)
            return 0;
        if (code != d->not_ready)
            return FROM_RUNTIME + code;
        int64_t time = now();
        if (time > deadline)
            return TOO_LATE;
        sched_yield();
        if (time < next_look)
            continue;
        next_look = time + 64000;
        code = 0;
        int failed = d->async_error(d->comm, &code);
        if (failed || (code && code != 7)) /* 7: ncclInProgress */
            return failed ? failed : FROM_PEER + code;
    }
}

/* Waits for all `num` ranks of this host. */
static int meet(struct meeting *m, uint32_t num, int64_t deadline)
{
    uint32_t round = atomic_load(&m->round);
    if (atomic_fetch_add(&m->arrived, 1) + 1 == num) {
        atomic_store(&m->arrived, 0);
        atomic_store(&m->round, round + 1);
        return 0;
    }
    for (int64_t spins = 1; atomic_load(&m->round) == round; spins++)
        if (spins % 1024 == 0) {
            if (now() > deadline)
                return TOO_LATE;
            sched_yield();
        }
    return 0;
}

/* One program on one buffer set, until the device has completed it. Returns 0, or what went wrong; so do the others. */
int once(const struct device *d, const struct step *steps, int64_t num_steps)
{
    int code = run_all(steps, num_steps, d->stream);
    if (code == 0 && (code = d->record(d->end, d->stream)) != 0)
        code += FROM_RUNTIME;
    return code ? code : reach(d, d->end, now() + d->timeout_ns);
}

/* Puts `num_calls` programs on the stream, from set `set` on, without waiting for them. */
int issue(const struct device *d, const struct program *p, int64_t set, int64_t num_calls)
{
    for (int64_t k = 0; k < num_calls; k++) {
        int code = run_all(p->sets + set * p->num_steps, p->num_steps, d->stream);
        if (code != 0)
            return code;
        set = set + 1 == p->num_sets ? 0 : set + 1;
    }
    return 0;
}

/* Starts all ranks together: by memory that they share if they are on one host; else the ranks meet in a tiny allreduce,
   and a second one stays on the stream, in front of the first timed call. */
static int start(const struct device *d, const struct step *tiny, struct meeting *m, uint32_t num_local)
{
    if (m)
        return meet(m, num_local, now() + d->timeout_ns);
    int code = once(d, tiny, 1);
    return code ? code : run_all(tiny, 1, d->stream);
}

/* `num_samples` samples of `num_calls` programs back to back, each after all ranks have started together, from set `set`
   on. Into `took`, for each sample and per call: nanoseconds between the device's events, until the host saw the end, and
   until all calls were issued; then the host's clock when the rank started, in nanoseconds. An idle rank passes 0 steps
   and only starts with the others. `rehearses`: first run `tiny`. The caller has just run Python, so otherwise the first
   sample would find other code and data in the caches, and the library's threads asleep. `rehearsed`: the set whose
   program then runs once, as nccl-tests makes a call of the same size before it times; -1 for none. */
int samples(const struct device *d, const struct program *p, int64_t set, const struct step *tiny, struct meeting *m,
            int64_t num_local, int64_t rehearses, int64_t rehearsed, int64_t num_samples, int64_t num_calls, double *took)
{
    int code;
    if (rehearses && (code = once(d, tiny, 1)) != 0)
        return code;
    if (rehearsed >= 0 && (code = once(d, p->sets + rehearsed * p->num_steps, p->num_steps)) != 0)
        return code;
    for (int64_t sample = 0; sample < num_samples; sample++, took += 4) {
        if ((code = start(d, tiny, m, (uint32_t)num_local)) != 0)
            return code;
        if (p->num_steps == 0)
            continue;
        int64_t begin = now();
        if ((code = d->record(d->begin, d->stream)) != 0)
            return FROM_RUNTIME + code;
        if (p->graph && (code = d->launch(p->graph, d->stream)) != 0)
            return FROM_RUNTIME + code;
        if (!p->graph && (code = issue(d, p, set, num_calls)) != 0)
            return code;
        set = (set + num_calls) % p->num_sets;
        int64_t issued = now();
        if ((code = d->record(d->end, d->stream)) != 0)
            return FROM_RUNTIME + code;
        if ((code = reach(d, d->end, begin + d->timeout_ns)) != 0)
            return code;
        int64_t end = now();
        float milliseconds = 0;
        if ((code = d->elapsed(&milliseconds, d->begin, d->end)) != 0)
            return FROM_RUNTIME + code;
        took[0] = milliseconds * 1e6 / num_calls;
        took[1] = (double)(end - begin) / num_calls;
        took[2] = (double)(issued - begin) / num_calls;
        took[3] = (double)begin;
    }
    return 0;
}
