/* The loop that commbench's native loop must equal: plain C that calls MPI by name.
 *
 * It starts its ranks together as commbench does: a barrier, then an instant that rank 0 broadcasts and all wait for.
 * accuracy.py compiles this file with the MPI's own mpicc and fills in `Loop`.
 */
#define _POSIX_C_SOURCE 199309L

#include <mpi.h>
#include <stdint.h>
#include <time.h>

enum { TAG = 7 };

/* accuracy.py declares the same members in the same order. */
typedef struct {
    const MPI_Comm *control;  /* carries barriers and instants */
    const MPI_Comm *measured; /* carries nothing but the operation */
    int64_t slack_ns;         /* how far ahead the instant lies */
    void *send;
    void *receive;
    int64_t count; /* floats in a message */
    int64_t peer;
    int64_t first; /* whether this rank sends first */
    int64_t batch; /* operations timed together */
    int64_t repetitions;
    int64_t *start_ns;
    int64_t *end_ns;
    uint8_t *late;
} Loop;

static int64_t now_ns(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (int64_t)time.tv_sec * 1000000000 + time.tv_nsec;
}

/* Wait until this rank may start; 1 if it came too late for the agreed instant. */
static inline int align(MPI_Comm control, int64_t slack_ns)
{
    MPI_Barrier(control);
    int64_t instant = now_ns() + slack_ns;
    MPI_Bcast(&instant, 1, MPI_INT64_T, 0, control);
    if (now_ns() > instant)
        return 1;
    while (now_ns() < instant)
        ;
    return 0;
}

static inline int all_reduce(const Loop *loop, MPI_Comm measured)
{
    int code = MPI_Allreduce(MPI_IN_PLACE, loop->receive, (int)loop->count, MPI_FLOAT, MPI_SUM, measured);
    return code != MPI_SUCCESS;
}

static inline int round_trip(const Loop *loop, MPI_Comm measured)
{
    MPI_Status status;
    int count = (int)loop->count, peer = (int)loop->peer, errors = 0;
    if (loop->first)
        errors += MPI_Send(loop->send, count, MPI_FLOAT, peer, TAG, measured) != MPI_SUCCESS;
    errors += MPI_Recv(loop->receive, count, MPI_FLOAT, peer, TAG, measured, &status) != MPI_SUCCESS;
    if (!loop->first)
        errors += MPI_Send(loop->send, count, MPI_FLOAT, peer, TAG, measured) != MPI_SUCCESS;
    return errors;
}

/* Inlined into the two functions below, so that the operation is a direct call on local variables. */
static inline int run(Loop loop, int (*operation)(const Loop *, MPI_Comm))
{
    MPI_Comm control = *loop.control, measured = *loop.measured;
    int errors = 0;
    for (int64_t i = 0; i < loop.repetitions; i++) {
        loop.late[i] = (uint8_t)align(control, loop.slack_ns);
        int64_t start_ns = now_ns();
        for (int64_t k = 0; k < loop.batch; k++)
            errors += operation(&loop, measured);
        loop.end_ns[i] = now_ns();
        loop.start_ns[i] = start_ns;
    }
    return errors;
}

int run_all_reduce(const Loop *loop) { return run(*loop, all_reduce); }

int run_latency(const Loop *loop) { return run(*loop, round_trip); }

/* Where this library finds MPI_Allreduce: it must be the MPI that commbench calls. */
intptr_t address_of_allreduce(void) { return (intptr_t)MPI_Allreduce; }
