/* A stand-in for libcudart: GPUs whose memory is the host's, streams that are threads. With -DHIP, for libamdhip64.

   What CUDA forbids is an error here: a stream or event that is not alive, an address that nobody allocated, an event
   that was never recorded. Work on a stream begins when all work before it is complete, never in the caller's thread.
   STANDIN_GPUS: number of GPUs (default 2). STANDIN_BYTES: memory of each (default 8 GiB). */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#ifdef HIP
#define N(name) hip##name
#else
#define N(name) cuda##name
#endif

enum { INVALID_VALUE = 1, OUT_OF_MEMORY = 2, INVALID_DEVICE = 101, INVALID_HANDLE = 400, NOT_READY = 600 };
enum { MOST = 4096, QUEUE = 1024, ALIVE = 0x57A9D1E };

struct work {
    void (*run)(void *);
    void *argument;
};

struct graph {
    int alive;
    struct work nodes[QUEUE];
    int num;
};

struct stream {
    int alive;
    struct graph *captured; /* what is put on the stream goes here instead */
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct work queue[QUEUE];
    long first, last;
    int ending;
};

struct event {
    int alive, recorded;
    long asked, reached;
    double at_s;
    pthread_mutex_t lock;
};

static __thread int current;
static pthread_mutex_t memory_lock = PTHREAD_MUTEX_INITIALIZER;
static struct { char *begin; size_t size; int gpu; } memory[MOST];
static struct stream *streams[MOST];
static int num_streams;

static double seconds(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec + time.tv_nsec * 1e-9;
}

static long number(const char *name, long otherwise)
{
    const char *text = getenv(name);
    return text ? atol(text) : otherwise;
}

static int num_gpus(void) { return (int)number("STANDIN_GPUS", 2); }
static size_t total(void) { return (size_t)number("STANDIN_BYTES", 8L << 30); }

static size_t used(int gpu)
{
    size_t sum = 0;
    for (int k = 0; k < MOST; k++)
        if (memory[k].begin && memory[k].gpu == gpu)
            sum += memory[k].size;
    return sum;
}

/* For the stand-in of NCCL: are these bytes memory of a GPU? */
int standin_is_device(const void *begin, size_t size)
{
    int found = 0;
    pthread_mutex_lock(&memory_lock);
    for (int k = 0; k < MOST && !found; k++)
        found = memory[k].begin && (char *)begin >= memory[k].begin &&
                (char *)begin + size <= memory[k].begin + memory[k].size;
    pthread_mutex_unlock(&memory_lock);
    return found;
}

static void *work(void *argument)
{
    struct stream *s = argument;
    pthread_mutex_lock(&s->lock);
    for (;;) {
        while (s->first == s->last && !s->ending)
            pthread_cond_wait(&s->changed, &s->lock);
        if (s->first == s->last)
            break;
        struct work next = s->queue[s->first % QUEUE];
        pthread_mutex_unlock(&s->lock);
        next.run(next.argument);
        pthread_mutex_lock(&s->lock);
        s->first++;
        pthread_cond_broadcast(&s->changed);
    }
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

/* For the stand-in of NCCL: puts work on a stream. A full queue makes the caller wait, as in CUDA. */
int standin_enqueue(void *stream, void (*run)(void *), void *argument)
{
    struct stream *s = stream;
    if (!s || s->alive != ALIVE)
        return INVALID_HANDLE;
    if (s->captured) {
        if (s->captured->num == QUEUE)
            return INVALID_VALUE;
        s->captured->nodes[s->captured->num++] = (struct work){run, argument};
        return 0;
    }
    pthread_mutex_lock(&s->lock);
    while (s->last - s->first == QUEUE)
        pthread_cond_wait(&s->changed, &s->lock);
    s->queue[s->last++ % QUEUE] = (struct work){run, argument};
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
    return 0;
}

/* For the stand-in of NCCL: is the stream captured, so that its work runs again and again? */
int standin_captures(void *stream) { return ((struct stream *)stream)->captured != NULL; }

static void drain(struct stream *s)
{
    pthread_mutex_lock(&s->lock);
    while (s->first != s->last)
        pthread_cond_wait(&s->changed, &s->lock);
    pthread_mutex_unlock(&s->lock);
}

int N(GetDeviceCount)(int *num) { *num = num_gpus(); return *num ? 0 : 100; }
int N(GetDevice)(int *device) { *device = current; return 0; }
int N(SetDevice)(int device) { if (device < 0 || device >= num_gpus()) return INVALID_DEVICE; current = device; return 0; }
int N(RuntimeGetVersion)(int *version) { *version = 13000; return 0; }
int N(DriverGetVersion)(int *version) { *version = 13010; return 0; }

const char *N(GetErrorString)(int code)
{
    return code == NOT_READY ? "device not ready" : code == OUT_OF_MEMORY ? "out of memory" :
           code == INVALID_HANDLE ? "invalid resource handle" : code == 100 ? "no GPU" : "invalid argument";
}

int N(Malloc)(void **pointer, size_t size)
{
    int code = OUT_OF_MEMORY;
    pthread_mutex_lock(&memory_lock);
    for (int k = 0; k < MOST && code && used(current) + size <= total(); k++)
        if (!memory[k].begin) {
            memory[k].begin = *pointer = aligned_alloc(4096, (size + 4095) / 4096 * 4096);
            memset(*pointer, 0x5A, size);
            memory[k].size = size;
            memory[k].gpu = current;
            code = 0;
        }
    pthread_mutex_unlock(&memory_lock);
    return code;
}

int N(Free)(void *pointer)
{
    int code = pointer ? INVALID_VALUE : 0;
    pthread_mutex_lock(&memory_lock);
    for (int k = 0; k < MOST && code; k++)
        if (memory[k].begin == pointer) {
            free(pointer);
            memory[k].begin = NULL;
            code = 0;
        }
    pthread_mutex_unlock(&memory_lock);
    return code;
}

int N(Memcpy)(void *target, const void *source, size_t size, int kind)
{
    if (kind != 1 && kind != 2)
        return INVALID_VALUE;
    if (!standin_is_device(kind == 1 ? target : source, size) || standin_is_device(kind == 1 ? source : target, size))
        return INVALID_VALUE;
    memcpy(target, source, size);
    return 0;
}

int N(MemGetInfo)(size_t *unused, size_t *all) { *all = total(); *unused = total() - used(current); return 0; }

int N(DeviceSynchronize)(void)
{
    for (int k = 0; k < num_streams; k++)
        if (streams[k]->alive == ALIVE)
            drain(streams[k]);
    return 0;
}

int N(StreamCreateWithFlags)(void **stream, unsigned flags)
{
    struct stream *s = calloc(1, sizeof *s);
    if (flags > 1)
        return INVALID_VALUE;
    s->alive = ALIVE;
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->changed, NULL);
    pthread_create(&s->thread, NULL, work, s);
    streams[num_streams++] = *stream = s;
    return 0;
}

int N(StreamSynchronize)(void *stream)
{
    struct stream *s = stream;
    if (!s || s->alive != ALIVE)
        return INVALID_HANDLE;
    drain(s);
    return 0;
}

int N(StreamDestroy)(void *stream)
{
    struct stream *s = stream;
    if (!s || s->alive != ALIVE)
        return INVALID_HANDLE;
    pthread_mutex_lock(&s->lock);
    s->ending = 1;
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
    pthread_join(s->thread, NULL);
    s->alive = 0; /* kept: a later use of it must be noticed */
    return 0;
}

int N(EventCreateWithFlags)(void **event, unsigned flags)
{
    struct event *e = calloc(1, sizeof *e);
    e->alive = ALIVE + (int)flags; /* 2: without times */
    pthread_mutex_init(&e->lock, NULL);
    *event = e;
    return 0;
}

int N(EventDestroy)(void *event)
{
    struct event *e = event;
    if (!e || !e->alive)
        return INVALID_HANDLE;
    e->alive = 0;
    return 0;
}

static void arrive(void *event)
{
    struct event *e = event;
    pthread_mutex_lock(&e->lock);
    e->at_s = seconds();
    e->reached++;
    pthread_mutex_unlock(&e->lock);
}

int N(EventRecord)(void *event, void *stream)
{
    struct event *e = event;
    if (!e || !e->alive)
        return INVALID_HANDLE;
    pthread_mutex_lock(&e->lock);
    e->asked++;
    pthread_mutex_unlock(&e->lock);
    return standin_enqueue(stream, arrive, e);
}

int N(EventQuery)(void *event)
{
    struct event *e = event;
    if (!e || !e->alive)
        return INVALID_HANDLE;
    pthread_mutex_lock(&e->lock);
    int code = e->reached < e->asked ? NOT_READY : 0;
    pthread_mutex_unlock(&e->lock);
    return code;
}

int N(EventElapsedTime)(float *milliseconds, void *begin, void *end)
{
    struct event *a = begin, *b = end;
    if (!a || !b || a->alive != ALIVE || b->alive != ALIVE || !a->asked || !b->asked)
        return INVALID_HANDLE;
    if (a->reached < a->asked || b->reached < b->asked)
        return NOT_READY;
    *milliseconds = (float)((b->at_s - a->at_s) * 1e3);
    return 0;
}

int N(DeviceGetAttribute)(int *value, int attribute, int device)
{
#ifdef HIP
    int major = 23, minor = 61, l2 = 19;
#else
    int major = 75, minor = 76, l2 = 38;
#endif
    if (device >= num_gpus())
        return INVALID_DEVICE;
    *value = attribute == major ? 9 : attribute == minor ? 0 : attribute == l2 ? 1 << 20 : -1;
    return *value < 0 ? INVALID_VALUE : 0;
}

int N(DeviceGetPCIBusId)(char *text, int size, int device)
{
    return snprintf(text, (size_t)size, "0000:%02X:00.0", device + 1) < size ? 0 : INVALID_VALUE;
}

int N(GetDeviceProperties)(char *properties, int device)
{
    snprintf(properties, 256, "Stand-in %d", device);
    return 0;
}

int N(StreamBeginCapture)(void *stream, int mode)
{
    struct stream *s = stream;
    if (!s || s->alive != ALIVE || s->captured || mode != 1) /* 1: of this thread */
        return INVALID_VALUE;
    s->captured = calloc(1, sizeof *s->captured);
    s->captured->alive = ALIVE;
    return 0;
}

int N(StreamEndCapture)(void *stream, void **graph)
{
    struct stream *s = stream;
    if (!s || s->alive != ALIVE || !s->captured)
        return INVALID_VALUE;
    *graph = s->captured;
    s->captured = NULL;
    return 0;
}

int N(GraphInstantiateWithFlags)(void **executable, void *graph, unsigned long long flags)
{
    struct graph *g = graph;
    if (!g || g->alive != ALIVE || flags)
        return INVALID_VALUE;
    struct graph *copy = malloc(sizeof *copy);
    *copy = *g;
    *executable = copy;
    return 0;
}

static void run_graph(void *argument)
{
    struct graph *g = argument;
    for (int k = 0; k < g->num; k++)
        g->nodes[k].run(g->nodes[k].argument);
}

int N(GraphLaunch)(void *executable, void *stream)
{
    struct graph *g = executable;
    return !g || g->alive != ALIVE ? INVALID_VALUE : standin_enqueue(stream, run_graph, g);
}

static int end_graph(void *graph)
{
    struct graph *g = graph;
    if (!g || g->alive != ALIVE)
        return INVALID_VALUE;
    g->alive = 0; /* kept: a later use of it must be noticed */
    return 0;
}

int N(GraphDestroy)(void *graph) { return end_graph(graph); }
int N(GraphExecDestroy)(void *executable) { return end_graph(executable); }
