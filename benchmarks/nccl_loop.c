/* The least that a C program of nccl-tests' shape needs to time allreduces: what the loop of nccl_direct must agree with.

     cc -O2 -o nccl_loop nccl_loop.c -l:libnccl.so.2 -l:libcudart.so.13 && ./nccl_loop RANKS BYTES CALLS SAMPLES

   Prints, for each sample of CALLS allreduces back to back, the nanoseconds per call until all were issued and until they
   were complete, of the slowest rank. Like nccl-tests it asks for the end of the stream in a loop; after each question it
   asks for an asynchronous error, reads the clock and yields. Link it to NCCL and the CUDA runtime, or to their stand-ins.
   BIND_RANKS=1: all threads of rank k run on the k-th CPU of this process. */
#define _GNU_SOURCE
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

typedef struct { char internal[128]; } unique_id;
int ncclGetUniqueId(unique_id *);
int ncclCommInitRank(void **, int, unique_id, int);
int ncclAllReduce(const void *, void *, size_t, int, int, void *, void *), ncclCommGetAsyncError(void *, int *);
int cudaSetDevice(int), cudaMalloc(void **, size_t), cudaStreamCreateWithFlags(void **, unsigned);
int cudaEventCreateWithFlags(void **, unsigned), cudaEventRecord(void *, void *), cudaEventQuery(void *);

enum { RANKS = 16, LEAD = 5 };
static const double MOST_NS = 60e9;
struct meeting { _Atomic int arrived; _Atomic unsigned round; };
struct shared { struct meeting meeting; unique_id id; };

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1e9 + t.tv_nsec;
}

static void meet(struct meeting *m, int num)
{
    unsigned round = m->round;
    if (atomic_fetch_add(&m->arrived, 1) + 1 == num) {
        m->arrived = 0;
        m->round = round + 1;
    }
    for (int spins = 1; m->round == round; spins++)
        if (spins % 1024 == 0)
            sched_yield();
}

static void bind_to_own_cpu(int rank)
{
    cpu_set_t mask, own;
    CPU_ZERO(&own);
    if (!getenv("BIND_RANKS") || sched_getaffinity(0, sizeof mask, &mask))
        return;
    int wanted = rank % CPU_COUNT(&mask);
    for (int cpu = 0, seen = 0; cpu < CPU_SETSIZE; cpu++)
        if (CPU_ISSET(cpu, &mask) && seen++ == wanted)
            CPU_SET(cpu, &own);
    sched_setaffinity(0, sizeof own, &own);
}

/* Waits until the stream is done, as nccl-tests waits. */
static int wait_for(void *ended, void *comm, void *stream)
{
    double begin = now();
    cudaEventRecord(ended, stream);
    while (cudaEventQuery(ended)) {
        int failed = 0;
        if (ncclCommGetAsyncError(comm, &failed) || failed || now() - begin > MOST_NS)
            return 1;
        sched_yield();
    }
    return 0;
}

/* `samples` samples after `LEAD` that are not kept: nanoseconds per call until all calls were issued, and until they were
   complete, on this rank. Like nccl-tests it makes a call that is not timed before each sample. Returns 0, or 1 if a call
   failed. Also called by nccl_direct.py, from a library. */
int block(struct meeting *m, int num, void *comm, void *stream, void *send, void *recv, size_t bytes, int calls,
          int samples, double *issued, double *done)
{
    static void *begun, *ended;
    if (!begun && (cudaEventCreateWithFlags(&begun, 0) || cudaEventCreateWithFlags(&ended, 0)))
        return 1;
    for (int sample = -LEAD; sample < samples; sample++) {
        if (ncclAllReduce(send, recv, bytes / 4, 7, 0, comm, stream) || wait_for(ended, comm, stream))
            return 1;
        meet(m, num);
        double begin = now();
        cudaEventRecord(begun, stream);
        for (int k = 0; k < calls; k++)
            if (ncclAllReduce(send, recv, bytes / 4, 7, 0, comm, stream))
                return 1;
        double after = now();
        if (wait_for(ended, comm, stream))
            return 1;
        double end = now();
        if (sample >= 0) {
            issued[sample] = (after - begin) / calls;
            done[sample] = (end - begin) / calls;
        }
    }
    return 0;
}

int main(int argc, char **argv)
{
    if (argc != 5)
        return 2;
    int num = atoi(argv[1]), calls = atoi(argv[3]), samples = atoi(argv[4]), rank = 0;
    size_t bytes = strtoul(argv[2], NULL, 10), room = sizeof(struct shared) + 2 * RANKS * samples * sizeof(double);
    if (num < 1 || num > RANKS || samples < 1)
        return 2;
    struct shared *s = mmap(NULL, room, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    double *issued = (double *)(s + 1), *done = issued + num * samples;
    for (int k = 1; k < num && !rank; k++)
        if (fork() == 0)
            rank = k;
    bind_to_own_cpu(rank);
    if (rank == 0 && ncclGetUniqueId(&s->id))
        return 1;
    meet(&s->meeting, num);
    void *comm, *stream, *send, *recv;
    if (cudaSetDevice(rank) || ncclCommInitRank(&comm, num, s->id, rank) || cudaMalloc(&send, bytes) ||
        cudaMalloc(&recv, bytes) || cudaStreamCreateWithFlags(&stream, 1) ||
        block(&s->meeting, num, comm, stream, send, recv, bytes, calls, samples, issued + rank * samples,
              done + rank * samples))
        return 1;
    meet(&s->meeting, num);
    if (rank)
        return 0;
    for (int k = 0; k < samples; k++) {
        double most[2] = {0, 0};
        for (int of = 0; of < num; of++) {
            most[0] = issued[of * samples + k] > most[0] ? issued[of * samples + k] : most[0];
            most[1] = done[of * samples + k] > most[1] ? done[of * samples + k] : most[1];
        }
        printf("%.1f %.1f\n", most[0], most[1]);
    }
    while (wait(NULL) > 0)
        ;
    return 0;
}
