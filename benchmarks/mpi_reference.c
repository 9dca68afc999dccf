/* The least that a C program needs to time MPI calls: what bench.<pattern> --like osu must agree with.

     mpicc -O2 -o mpi_reference mpi_reference.c && mpirun -n 2 ./mpi_reference allreduce 8 1048576 1000

   Prints a line for each size: bytes, mean over ranks of each rank's mean in microseconds (of the first rank alone for
   pingpong). Page-aligned buffers, written before use; 1/10 of the calls before for warm-up; a barrier after each call,
   outside the timer, but none for pingpong. alltoall's size is a rank's whole send buffer. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ALLREDUCE, BROADCAST, ALLTOALL, PINGPONG };

static int kind_of(const char *what)
{
    static const char *const names[] = {"allreduce", "broadcast", "alltoall"};
    int kind = ALLREDUCE;
    while (kind < PINGPONG && strcmp(what, names[kind]))
        kind++;
    return kind;
}

static void call(int kind, char *send, char *recv, int bytes, int rank, int ranks)
{
    if (kind == ALLREDUCE)
        MPI_Allreduce(send, recv, bytes / 4, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    else if (kind == BROADCAST)
        MPI_Bcast(rank == 0 ? send : recv, bytes, MPI_CHAR, 0, MPI_COMM_WORLD);
    else if (kind == ALLTOALL)
        MPI_Alltoall(send, bytes / ranks, MPI_CHAR, recv, bytes / ranks, MPI_CHAR, MPI_COMM_WORLD);
    else if (rank == 0) {
        MPI_Send(send, bytes, MPI_CHAR, 1, 0, MPI_COMM_WORLD);
        MPI_Recv(recv, bytes, MPI_CHAR, 1, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    } else if (rank == 1) {
        MPI_Recv(recv, bytes, MPI_CHAR, 0, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        MPI_Send(send, bytes, MPI_CHAR, 0, 0, MPI_COMM_WORLD);
    }
}

/* Seconds of `calls` calls on this rank, after a tenth as many that are not timed. Also called by mpi_pairs.py, from a
   library. */
double block(const char *what, char *send, char *recv, int bytes, int calls)
{
    int rank, ranks, kind = kind_of(what);
    double spent = 0;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    MPI_Barrier(MPI_COMM_WORLD);
    for (int k = -calls / 10; k < calls; k++) {
        double begin = MPI_Wtime();
        call(kind, send, recv, bytes, rank, ranks);
        double end = MPI_Wtime();
        if (k >= 0)
            spent += end - begin;
        if (kind != PINGPONG)
            MPI_Barrier(MPI_COMM_WORLD);
    }
    return kind == PINGPONG ? spent / 2 : spent;
}

int main(int argc, char **argv)
{
    MPI_Init(&argc, &argv);
    int rank, ranks;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    if (argc != 5) {
        if (rank == 0)
            fprintf(stderr, "usage: mpi_reference allreduce|broadcast|alltoall|pingpong MIN MAX CALLS\n");
        MPI_Abort(MPI_COMM_WORLD, 2);
    }
    const char *what = argv[1];
    int least = atoi(argv[2]), most = atoi(argv[3]), calls = atoi(argv[4]);
    char *send = aligned_alloc(4096, most + 4096 - most % 4096), *recv = aligned_alloc(4096, most + 4096 - most % 4096);
    memset(send, 1, most);
    memset(recv, 0, most);
    for (int bytes = least; bytes <= most; bytes *= 2) {
        double sum = 0, spent = block(what, send, recv, bytes, calls);
        MPI_Reduce(&spent, &sum, 1, MPI_DOUBLE, MPI_SUM, 0, MPI_COMM_WORLD);
        if (rank == 0)
            printf("%d %.4f\n", bytes, (kind_of(what) == PINGPONG ? spent : sum / ranks) / calls * 1e6);
    }
    MPI_Finalize();
    return 0;
}
