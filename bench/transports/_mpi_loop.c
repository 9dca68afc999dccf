/* The timed loops of transports/mpi.py, over the functions of the MPI library that mpi4py has loaded.

   Nothing of MPI is included or linked: the functions come as addresses, so one library serves MPICH, whose handles are
   ints, and Open MPI and the MPI ABI, whose handles are pointers. This file includes itself once for each kind.
   transports/_mpi_loop.py mirrors `struct step` and the numbers of the operations. */
#ifndef HANDLE

#include <stdint.h>
#include <time.h>

enum { ALLREDUCE, REDUCE, REDUCESCATTER, ALLGATHER, ALLTOALL, ALLTOALLV, BROADCAST, GATHER, SCATTER, BARRIER, SEND, RECV,
       EXCHANGE };

struct step {
    int64_t operation;
    void (*function)(void); /* of the library; EXCHANGE: MPI_Startall */
    void (*second)(void);   /* EXCHANGE: MPI_Waitall */
    void *send, *recv;
    int64_t send_count, recv_count; /* elements; of one block, where the operation has blocks. EXCHANGE: requests */
    int64_t peer;                   /* root, or the other rank */
    intptr_t type, op, comm;        /* handles */
    const int *send_counts, *send_starts, *recv_counts, *recv_starts;
    void *requests, *statuses;
};

typedef int int_handle;
typedef void *pointer_handle;

#define HANDLE int_handle
#define RUN run_with_ints
#include "_mpi_loop.c"
#undef HANDLE
#undef RUN
#define HANDLE pointer_handle
#define RUN run_with_pointers
#include "_mpi_loop.c"

typedef int (*runner)(const struct step *);

static int64_t now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (int64_t)time.tv_sec * 1000000000 + time.tv_nsec;
}

static inline __attribute__((always_inline)) int run_all(runner run, const struct step *steps, int64_t num_steps)
{
    for (int64_t k = 0; k < num_steps; k++) {
        int code = run(&steps[k]);
        if (code != 0)
            return code;
    }
    return 0;
}

/* One program on one buffer set, once. Returns MPI's error code, 0 for none; so do the others. */
int once(int pointers, const struct step *steps, int64_t num_steps)
{
    return run_all(pointers ? run_with_pointers : run_with_ints, steps, num_steps);
}

/* Compiled once for each kind of handle: a call by address in front of every call of MPI would be part of its time. */
static inline __attribute__((always_inline)) int each_by(
    runner run, const struct step *sets, int64_t num_steps, int64_t num_sets, int64_t set, const struct step *barriers,
    int64_t num_barriers, int64_t num_calls, int64_t num_lead, int64_t *took, double (*wtime)(void))
{
    for (int64_t k = -num_lead; k < num_calls; k++) {
        const struct step *steps = sets + set * num_steps;
        int code = run_all(run, barriers, num_barriers);
        int64_t spent_ns;
        if (code != 0)
            return code;
        if (wtime) {
            double begin = wtime();
            code = run_all(run, steps, num_steps);
            spent_ns = (int64_t)((wtime() - begin) * 1e9 + 0.5);
        } else {
            int64_t begin = now();
            code = run_all(run, steps, num_steps);
            spent_ns = now() - begin;
        }
        if (k >= 0)
            took[k] = spent_ns;
        if (code != 0)
            return code;
        set = set + 1 == num_sets ? 0 : set + 1;
    }
    return 0;
}

/* `num_calls` programs, each after the barriers and timed by itself, from set `set` on; nanoseconds into `took`.
   Before them `num_lead` programs in the same way, whose times are not kept: ranks enter this function some tens of
   microseconds apart, with cold caches, and the first call includes that. `wtime`: MPI_Wtime if it shall read the clock,
   as in OSU's programs. Its own time is part of each call's, and MPICH's takes longer than clock_gettime. */
int each(int pointers, const struct step *sets, int64_t num_steps, int64_t num_sets, int64_t set,
         const struct step *barriers, int64_t num_barriers, int64_t num_calls, int64_t num_lead, int64_t *took,
         double (*wtime)(void))
{
    if (pointers)
        return each_by(run_with_pointers, sets, num_steps, num_sets, set, barriers, num_barriers, num_calls, num_lead,
                       took, wtime);
    return each_by(run_with_ints, sets, num_steps, num_sets, set, barriers, num_barriers, num_calls, num_lead, took,
                   wtime);
}

/* `num_calls` programs back to back after the barriers; the nanoseconds of all together into `took`. `wtime`: as above. */
int batch(int pointers, const struct step *sets, int64_t num_steps, int64_t num_sets, int64_t set,
          const struct step *barriers, int64_t num_barriers, int64_t num_calls, int64_t *took, double (*wtime)(void))
{
    runner run = pointers ? run_with_pointers : run_with_ints;
    int code = run_all(run, barriers, num_barriers);
    double begin_s = wtime ? wtime() : 0;
    int64_t begin = wtime ? 0 : now();
    for (int64_t k = 0; code == 0 && k < num_calls; k++) {
        code = run_all(run, sets + set * num_steps, num_steps);
        set = set + 1 == num_sets ? 0 : set + 1;
    }
    *took = wtime ? (int64_t)((wtime() - begin_s) * 1e9 + 0.5) : now() - begin;
    return code;
}

#else

/* One step, through the library's function as its standard declares it, with handles of this kind. */
static int RUN(const struct step *s)
{
    HANDLE type = (HANDLE)s->type, op = (HANDLE)s->op, comm = (HANDLE)s->comm;
    int sends = (int)s->send_count, recvs = (int)s->recv_count, peer = (int)s->peer;
    int code;

    switch (s->operation) {
    case ALLREDUCE:
        return ((int (*)(const void *, void *, int, HANDLE, HANDLE, HANDLE))s->function)(
            s->send, s->recv, recvs, type, op, comm);
    case REDUCE:
        return ((int (*)(const void *, void *, int, HANDLE, HANDLE, int, HANDLE))s->function)(
            s->send, s->recv, sends, type, op, peer, comm);
    case REDUCESCATTER:
        return ((int (*)(const void *, void *, int, HANDLE, HANDLE, HANDLE))s->function)(
            s->send, s->recv, recvs, type, op, comm);
    case ALLGATHER:
    case ALLTOALL:
        return ((int (*)(const void *, int, HANDLE, void *, int, HANDLE, HANDLE))s->function)(
            s->send, sends, type, s->recv, recvs, type, comm);
    case ALLTOALLV:
        return ((int (*)(const void *, const int *, const int *, HANDLE, void *, const int *, const int *, HANDLE,
                         HANDLE))s->function)(
            s->send, s->send_counts, s->send_starts, type, s->recv, s->recv_counts, s->recv_starts, type, comm);
    case BROADCAST:
        return ((int (*)(void *, int, HANDLE, int, HANDLE))s->function)(s->recv, recvs, type, peer, comm);
    case GATHER:
    case SCATTER:
        return ((int (*)(const void *, int, HANDLE, void *, int, HANDLE, int, HANDLE))s->function)(
            s->send, sends, type, s->recv, recvs, type, peer, comm);
    case BARRIER:
        return ((int (*)(HANDLE))s->function)(comm);
    case SEND:
        return ((int (*)(const void *, int, HANDLE, int, int, HANDLE))s->function)(
            s->send, sends, type, peer, 0, comm);
    case RECV:
        return ((int (*)(void *, int, HANDLE, int, int, HANDLE, void *))s->function)(
            s->recv, recvs, type, peer, 0, comm, s->statuses);
    case EXCHANGE:
        code = ((int (*)(int, HANDLE *))s->function)(sends, s->requests);
        return code ? code : ((int (*)(int, HANDLE *, void *))s->second)(sends, s->requests, s->statuses);
    }
    return -1;
}

#endif
