/* A plain program of the shape of nccl-tests: `nccl_loop RANKS BYTES CALLS SAMPLES` prints, for each sample of CALLS
   allreduces back to back, the nanoseconds per call until all were issued and until they were complete, of the slowest
   rank. Like nccl-tests it asks for the end of the stream in a loop, and yields after each question. Link it to NCCL and
   the CUDA runtime, or to their stand-ins. BIND_RANKS=1: all threads of rank k run on the k-th CPU of this process. */
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
int ncclAllReduce(const void *, void *, size_t, int, int, void *, void *);
int cudaSetDevice(int), cudaMalloc(void **, size_t), cudaStreamCreateWithFlags(void **, unsigned);
int cudaEventCreateWithFlags(void **, unsigned), cudaEventRecord(void *, void *), cudaEventQuery(void *);

struct shared { _Atomic int arrived; _Atomic unsigned round; unique_id id; double issued[16], done[16]; };

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1e9 + t.tv_nsec;
}

static void meet(struct shared *s, int num)
{
    unsigned round = s->round;
    if (atomic_fetch_add(&s->arrived, 1) + 1 == num) {
        s->arrived = 0;
        s->round = round + 1;
    }
    for (int spins = 1; s->round == round; spins++)
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

int main(int argc, char **argv)
{
    if (argc != 5)
        return 2;
    int num = atoi(argv[1]), calls = atoi(argv[3]), samples = atoi(argv[4]), rank = 0;
    size_t bytes = strtoul(argv[2], NULL, 10);
    struct shared *s = mmap(NULL, sizeof *s, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    for (int k = 1; k < num && !rank; k++)
        if (fork() == 0)
            rank = k;
    bind_to_own_cpu(rank);
    if (rank == 0 && ncclGetUniqueId(&s->id))
        return 1;
    meet(s, num);
    void *comm, *stream, *send, *recv, *begun, *ended;
    if (cudaSetDevice(rank) || ncclCommInitRank(&comm, num, s->id, rank) || cudaMalloc(&send, bytes) ||
        cudaMalloc(&recv, bytes) || cudaStreamCreateWithFlags(&stream, 1) ||
        cudaEventCreateWithFlags(&begun, 0) || cudaEventCreateWithFlags(&ended, 0))
        return 1;
    for (int sample = -5; sample < samples; sample++) {
        meet(s, num);
        double begin = now();
        cudaEventRecord(begun, stream);
        for (int k = 0; k < calls; k++)
            if (ncclAllReduce(send, recv, bytes / 4, 7, 0, comm, stream))
                return 1;
        s->issued[rank] = (now() - begin) / calls;
        cudaEventRecord(ended, stream);
        while (cudaEventQuery(ended))
            sched_yield();
        s->done[rank] = (now() - begin) / calls;
        meet(s, num);
        if (rank == 0 && sample >= 0) {
            double issued = 0, done = 0;
            for (int k = 0; k < num; k++) {
                issued = s->issued[k] > issued ? s->issued[k] : issued;
                done = s->done[k] > done ? s->done[k] : done;
            }
            printf("%.1f %.1f\n", issued, done);
        }
    }
    if (rank == 0)
        while (wait(NULL) > 0)
            ;
    return 0;
}
