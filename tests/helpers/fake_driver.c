/* NVIDIA's driver without a GPU: libcuda.so.1 as cuda-bindings finds it, and as much of libnvidia-ml.so.1.

   It is as strict as the driver's documentation and does what a processor can do of it: copies are copied. What it
   was given goes into FAKE_CUDA_LOG, a line of JSON for each call. What the machine is like is told by the
   environment:

   FAKE_CUDA_DRIVER   the CUDA version that it serves, 13000
   FAKE_CUDA_DEVICES  how many GPUs the machine has, 1
   CUDA_VISIBLE_DEVICES  which of them the process sees, by number, as the real one takes it
   FAKE_CUDA_P2P      a row for each GPU, apart by ';', a letter for each peer: A reaches it and adds to it natively,
                      p does so for some operations alone, a reaches it, - does not; all A where it is not set
   FAKE_CUDA_MIG      set: GPUs are slices of one, which have its bus and no way to each other
   FAKE_CUDA_SMS      132
   FAKE_CUDA_REFUSE   name=code of calls that are refused, apart by ','
*/
#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { OK = 0, INVALID_VALUE = 1, NO_DEVICE = 100, INVALID_DEVICE = 101, NOT_FOUND = 500, BUS = 0x1b };
typedef int Result;
typedef unsigned long long Pointer;
typedef struct { int type, id; } Location;
typedef struct { int order; Location source, target; unsigned flags; } Attributes;

static const char *told(const char *name, const char *otherwise) {
    const char *text = getenv(name);
    return text && *text ? text : otherwise;
}
static int number(const char *name, int otherwise) {
    const char *text = told(name, NULL);
    return text ? atoi(text) : otherwise;
}
static int all(void) { return number("FAKE_CUDA_DEVICES", 1); }
static int slices(void) { return getenv("FAKE_CUDA_MIG") != NULL; }

/* A call's refusal, where one is asked for. */
static Result refused(const char *call) {
    const char *list = told("FAKE_CUDA_REFUSE", "");
    size_t n = strlen(call);
    for (const char *at = list; (at = strstr(at, call)); at += n)
        if ((at == list || at[-1] == ',') && at[n] == '=') return atoi(at + n + 1);
    return OK;
}
#define REFUSABLE do { Result code = refused(__func__); if (code) return code; } while (0)

static FILE *opened(void) {
    const char *path = getenv("FAKE_CUDA_LOG");
    return path ? fopen(path, "a") : fopen("/dev/null", "a");
}
static void list(FILE *log, const char *name, const size_t *values, size_t n) {
    fprintf(log, ", \"%s\": [", name);
    for (size_t i = 0; i < n; i++) fprintf(log, "%s%zu", i ? ", " : "", values[i]);
    fputc(']', log);
}

/* The number among the machine's of a GPU that the process sees, -1 where it sees no such one. */
static int physical(int ordinal) {
    const char *text = getenv("CUDA_VISIBLE_DEVICES");
    if (ordinal < 0) return -1;
    if (!text) return ordinal < all() ? ordinal : -1;
    for (const char *at = text; *at; at++) {
        char *end;
        long found = strtol(at, &end, 10);
        if (end == at || found < 0 || found >= all()) return -1;
        if (ordinal-- == 0) return (int)found;
        if (*(at = end) == 0) return -1;
    }
    return -1;
}
static int visible(void) {
    int count = 0;
    while (physical(count) >= 0) count++;
    return count;
}
static char link_of(int from, int to) {
    const char *row = told("FAKE_CUDA_P2P", NULL);
    if (from == to) return '=';
    if (slices()) return '-';
    for (; row && from; from--)
        if ((row = strchr(row, ';'))) row++;
    return row ? row[to] : 'A';
}
static int bus_of(int gpu) { return slices() ? BUS : BUS + gpu; }

Result cuInit(unsigned flags) { REFUSABLE; return flags ? INVALID_VALUE : visible() ? OK : NO_DEVICE; }
Result cuDriverGetVersion(int *version) { *version = number("FAKE_CUDA_DRIVER", 13000); return OK; }
Result cuDeviceGetCount(int *count) { *count = visible(); return OK; }
Result cuDeviceGet(int *device, int ordinal) {
    if (physical(ordinal) < 0) return INVALID_DEVICE;
    *device = ordinal;
    return OK;
}
Result cuDeviceGetName(char *name, int length, int device) {
    if (physical(device) < 0) return INVALID_DEVICE;
    snprintf(name, length, slices() ? "NVIDIA Fake MIG 1g.10gb" : "NVIDIA Fake");
    return OK;
}
Result cuDeviceGetPCIBusId(char *text, int length, int device) {
    if (physical(device) < 0) return INVALID_DEVICE;
    snprintf(text, length, "0000:%02X:00.0", bus_of(physical(device)));
    return OK;
}
Result cuDeviceGetByPCIBusId(int *device, const char *text) {
    for (int i = 0; physical(i) >= 0; i++) {
        char own[16];
        cuDeviceGetPCIBusId(own, sizeof own, i);
        if (!strcasecmp(own, text)) { *device = i; return OK; }
    }
    return INVALID_DEVICE;
}
Result cuDeviceGetUuid(unsigned char *uuid, int device) {
    if (physical(device) < 0) return INVALID_DEVICE;
    memset(uuid, slices() ? 0x3c : 0x9a, 16);
    uuid[15] = (unsigned char)physical(device);
    return OK;
}
Result cuDeviceGetAttribute(int *value, int attribute, int device) {
    enum { MULTIPROCESSORS = 16, MAJOR = 75, MINOR = 76 };
    if (physical(device) < 0) return INVALID_DEVICE;
    *value = attribute == MULTIPROCESSORS ? number("FAKE_CUDA_SMS", 132) : attribute == MAJOR ? 9 : 0;
    return attribute > 0 ? OK : INVALID_VALUE;
}
Result cuDeviceCanAccessPeer(int *can, int device, int peer) {
    REFUSABLE;
    if (physical(device) < 0 || physical(peer) < 0) return INVALID_DEVICE;
    char found = link_of(physical(device), physical(peer));
    *can = found != '-' && found != '=';
    return OK;
}
Result cuDeviceGetP2PAttribute(int *value, int attribute, int device, int peer) {
    enum { ACCESS = 2, ATOMICS = 3, PARTIAL = 5 };
    REFUSABLE;
    if (physical(device) < 0 || physical(peer) < 0 || device == peer) return INVALID_DEVICE;
    if (attribute < 1 || attribute > PARTIAL) return INVALID_VALUE;
    if (attribute == PARTIAL && number("FAKE_CUDA_DRIVER", 13000) < 13000) return INVALID_VALUE;
    char found = link_of(physical(device), physical(peer));
    *value = attribute == ACCESS ? found != '-' : attribute == ATOMICS ? found == 'A' || found == 'p' : found == 'p';
    return OK;
}

Result cuMemcpyBatchAsync(Pointer *targets, Pointer *sources, size_t *sizes, size_t count, Attributes *given,
                          size_t *starts, size_t kinds, void *stream) {
    REFUSABLE;
    if ((uintptr_t)stream <= 2 || !count || !kinds || kinds > count || starts[0]) return INVALID_VALUE;
    for (size_t i = 0; i < kinds; i++) {
        if (given[i].order < 1 || given[i].order > 3 || given[i].flags > 1) return INVALID_VALUE;
        if (starts[i] >= count || (i && starts[i] <= starts[i - 1])) return INVALID_VALUE;
    }
    for (size_t i = 0; i < count; i++)
        if (!sizes[i]) return INVALID_VALUE;
    for (size_t i = count; i--;) /* in no order that anybody may rely on */
        memcpy((void *)targets[i], (void *)sources[i], sizes[i]);
    size_t flags[64], orders[64];
    for (size_t i = 0; i < kinds && i < 64; i++) flags[i] = given[i].flags, orders[i] = given[i].order;
    FILE *log = opened();
    fprintf(log, "{\"call\": \"%s\", \"stream\": %zu", __func__, (size_t)stream);
    list(log, "sizes", sizes, count);
    list(log, "starts", starts, kinds);
    list(log, "flags", flags, kinds);
    list(log, "orders", orders, kinds);
    list(log, "sources", (size_t *)sources, count);
    list(log, "targets", (size_t *)targets, count);
    fputs("}\n", log);
    fclose(log);
    return OK;
}

/* NVML sees every GPU of the machine, whatever the process does. */
Result nvmlInit_v2(void) { return refused("nvmlInit_v2"); }
Result nvmlDeviceGetHandleByPciBusId_v2(const char *text, void **device) {
    for (int i = 0; i < all(); i++) {
        char own[16];
        snprintf(own, sizeof own, "0000:%02X:00.0", bus_of(i));
        if (!strcasecmp(own, text)) { *device = (void *)(uintptr_t)(i + 1); return OK; }
    }
    return 6;
}
Result nvmlDeviceGetP2PStatus(void *one, void *other, int index, int *status) {
    enum { READ, WRITE, NVLINK, ATOMICS };
    char found = link_of((int)(uintptr_t)one - 1, (int)(uintptr_t)other - 1);
    if (index == ATOMICS) *status = found == 'A' ? 0 : 1;
    else *status = found == '-' ? 1 : 0;
    return OK;
}

typedef struct { const char *name; void *call; int since; } Entry;
Result cuGetProcAddress_v2(const char *, void **, int, uint64_t, int *);
#define ENTRY(call, since) {#call, (void *)call, since}
static const Entry TABLE[] = {
    ENTRY(cuInit, 0), ENTRY(cuDriverGetVersion, 0), ENTRY(cuDeviceGet, 0), ENTRY(cuDeviceGetCount, 0),
    ENTRY(cuDeviceGetName, 0), ENTRY(cuDeviceGetPCIBusId, 0), ENTRY(cuDeviceGetByPCIBusId, 0),
    ENTRY(cuDeviceGetUuid, 0), ENTRY(cuDeviceGetAttribute, 0), ENTRY(cuDeviceCanAccessPeer, 0),
    ENTRY(cuDeviceGetP2PAttribute, 8000),
    ENTRY(cuMemcpyBatchAsync, 13000), /* the second of that name: the first, of 12.8, takes one argument more */
    {"cuGetProcAddress", (void *)cuGetProcAddress_v2, 0},
};
Result cuGetProcAddress_v2(const char *name, void **call, int version, uint64_t flags, int *status) {
    (void)version, (void)flags;
    for (size_t i = 0; i < sizeof TABLE / sizeof *TABLE; i++)
        if (!strcmp(name, TABLE[i].name) && TABLE[i].since <= number("FAKE_CUDA_DRIVER", 13000)) {
            *call = TABLE[i].call;
            if (status) *status = 0;
            return OK;
        }
    *call = NULL;
    if (status) *status = 1;
    return NOT_FOUND;
}
Result cuGetProcAddress(const char *name, void **call, int version, uint64_t flags) {
    return cuGetProcAddress_v2(name, call, version, flags, NULL);
}
