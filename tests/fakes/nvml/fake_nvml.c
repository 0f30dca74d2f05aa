/*
 * A stand-in for libnvidia-ml.so.1, driven by a scenario file.
 *
 * FAKE_NVML_SCENARIO names the file; it is read when the library is initialised. One statement a line:
 *
 *   origin T                      time zero, CLOCK_MONOTONIC seconds (default: nvmlInit)
 *   gpu INDEX UUID NAME...
 *   SERIES INDEX RATE BASE        a value: BASE + RATE * seconds; the last statement counts
 *   wait.SERIES INDEX 0 US        to read it takes so many microseconds
 *   fault INDEX SERIES CODE FROM UNTIL    SERIES or '*'; INDEX or '*'; CODE is an nvmlReturn_t
 *   process INDEX PID MEMORY_MIB
 *   xid INDEX NUMBER T            the driver reports this error at T, to whoever subscribed before
 *   link A B COUNT                NVLinks that join GPUs A and B directly
 *   ancestor A B LEVEL            nvmlGpuTopologyLevel_t
 *   peer A B STATUS               nvmlGpuP2PStatus_t for reads
 *
 * Series that are no metrics: total_mib, mig, and switch_links, the NVLinks that lead to a switch.
 * A series that is not given is "not supported".
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { MAX_GPUS = 64, MAX_FACTS = 4096, MAX_FAULTS = 64, MAX_LINKS = 18, NAME_LENGTH = 96 };

typedef enum {
    SUCCESS = 0,
    UNINITIALIZED = 1,
    INVALID_ARGUMENT = 2,
    NOT_SUPPORTED = 3,
    INSUFFICIENT_SIZE = 7,
    TIMEOUT = 10,
    VERSION_MISMATCH = 25,
} Result;

typedef struct { char uuid[NAME_LENGTH], name[NAME_LENGTH]; } Gpu;
typedef struct { char name[NAME_LENGTH]; int gpu; double number, value; int told; } Fact;
typedef struct { char key[16], series[NAME_LENGTH]; int code; double from, until; } Fault;

static Gpu gpus[MAX_GPUS];
static Fact facts[MAX_FACTS];
static Fault faults[MAX_FAULTS];
static int gpu_count, fact_count, fault_count, initialised;
static double origin;

#define EXPORT __attribute__((visibility("default")))

static double elapsed(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9 - origin;
}

static void read_line(const char *line) {
    char verb[NAME_LENGTH];
    int used = 0, index, understood = 0;
    if (sscanf(line, "%95s %n", verb, &used) < 1) return;
    const char *rest = line + used;
    if (!strcmp(verb, "origin")) understood = sscanf(rest, "%lf", &origin) == 1;
    else if (!strcmp(verb, "gpu")) {
        Gpu *gpu = &gpus[gpu_count];
        understood = gpu_count < MAX_GPUS
            && sscanf(rest, "%d %95s %95[^\n]", &index, gpu->uuid, gpu->name) == 3
            && index == gpu_count++;
    } else if (!strcmp(verb, "fault")) {
        Fault *fault = &faults[fault_count++];
        understood = fault_count < MAX_FAULTS
            && sscanf(rest, "%15s %95s %d %lf %lf", fault->key, fault->series, &fault->code,
                      &fault->from, &fault->until) == 5;
    } else {
        Fact *fact = &facts[fact_count++];
        snprintf(fact->name, sizeof fact->name, "%s", verb);
        fact->told = 0;
        understood = fact_count < MAX_FACTS
            && sscanf(rest, "%d %lf %lf", &fact->gpu, &fact->number, &fact->value) == 3;
    }
    if (understood) return;
    fprintf(stderr, "fake NVML: cannot read the scenario line: %s\n", line);
    abort();
}

static void read_scenario(void) {
    gpu_count = fact_count = fault_count = 0;
    origin = 0;
    origin = elapsed();
    const char *path = getenv("FAKE_NVML_SCENARIO");
    FILE *file = path ? fopen(path, "r") : NULL;
    if (!file) return;
    char line[1024];
    while (fgets(line, sizeof line, file)) read_line(line);
    fclose(file);
}

/* ---- What every call goes through ---------------------------------------------------------- */

static int index_of(const Gpu *gpu) { return (int)(gpu - gpus); }

static Result fault_of(const char *key, const char *series) {
    double now = elapsed();
    for (int i = 0; i < fault_count; i++) {
        const Fault *f = &faults[i];
        int here = !strcmp(f->key, "*") || !strcmp(f->key, key);
        int this_one = !strcmp(f->series, "*") || !strcmp(f->series, series);
        if (here && this_one && now >= f->from && now < f->until) return (Result)f->code;
    }
    return SUCCESS;
}

static Result on_host(const char *what) { return initialised ? fault_of("*", what) : UNINITIALIZED; }

static Result check(const Gpu *gpu, const char *what) {
    char key[16];
    if (!initialised) return UNINITIALIZED;
    if (gpu < gpus || gpu >= gpus + gpu_count) return INVALID_ARGUMENT;
    snprintf(key, sizeof key, "%d", index_of(gpu));
    return fault_of(key, what);
}

static const Fact *find(const Gpu *gpu, const char *name) {
    for (int i = fact_count - 1; i >= 0; i--)
        if (facts[i].gpu == index_of(gpu) && !strcmp(facts[i].name, name)) return &facts[i];
    return NULL;
}

/* What a statement of two GPUs says of them, in either order. */
static int between(const Gpu *a, const Gpu *b, const char *name, int otherwise) {
    for (int i = 0; i < fact_count; i++) {
        int first = facts[i].gpu, second = (int)facts[i].number;
        if (strcmp(facts[i].name, name)) continue;
        if ((first == index_of(a) && second == index_of(b)) ||
            (first == index_of(b) && second == index_of(a)))
            return (int)facts[i].value;
    }
    return otherwise;
}

static unsigned long long known(const Gpu *gpu, const char *name) {
    const Fact *fact = find(gpu, name);
    return fact ? (unsigned long long)fact->value : 0;
}

static Result query(const Gpu *gpu, const char *name, double *value) {
    char waits[NAME_LENGTH];
    Result result = check(gpu, name);
    if (result) return result;
    const Fact *fact = find(gpu, name);
    if (!fact) return NOT_SUPPORTED;
    snprintf(waits, sizeof waits, "wait.%s", name);
    usleep((unsigned)known(gpu, waits));
    *value = fact->value + fact->number * elapsed();
    return SUCCESS;
}

/* A function whose only answer is the value of a series. */
#define READER(function, type, series)              \
    EXPORT Result function(Gpu *gpu, type *out) {   \
        double value = 0;                           \
        Result result = query(gpu, series, &value); \
        if (!result) *out = (type)value;            \
        return result;                              \
    }

/* ---- The library ----------------------------------------------------------------------------- */

/* Threads of one process may open NVML at once. */
static pthread_mutex_t opening = PTHREAD_MUTEX_INITIALIZER;

EXPORT Result nvmlInitWithFlags(unsigned flags) {
    (void)flags;
    pthread_mutex_lock(&opening);
    if (initialised == 0) read_scenario();
    Result result = fault_of("*", "init");
    if (!result) initialised++;
    pthread_mutex_unlock(&opening);
    return result;
}
EXPORT Result nvmlShutdown(void) {
    if (!initialised) return UNINITIALIZED;
    initialised--;
    return SUCCESS;
}
EXPORT Result nvmlSystemGetDriverVersion(char *text, unsigned length) {
    snprintf(text, length, "999.01");
    return on_host("driver");
}
EXPORT Result nvmlDeviceGetCount_v2(unsigned *count) {
    *count = (unsigned)gpu_count;
    return on_host("count");
}
EXPORT Result nvmlDeviceGetHandleByIndex_v2(unsigned index, Gpu **handle) {
    *handle = &gpus[index];
    return check(*handle, "handle");
}
EXPORT Result nvmlDeviceGetUUID(Gpu *gpu, char *text, unsigned length) {
    snprintf(text, length, "%s", gpu->uuid);
    return check(gpu, "uuid");
}
EXPORT Result nvmlDeviceGetName(Gpu *gpu, char *text, unsigned length) {
    snprintf(text, length, "%s", gpu->name);
    return check(gpu, "name");
}

typedef struct { char legacy[16]; unsigned domain, bus, device, id, subsystem; char id_text[32]; } Pci;

static void describe_pci(const Gpu *gpu, Pci *pci) {
    memset(pci, 0, sizeof *pci);
    pci->bus = (unsigned)index_of(gpu) + 1;
    snprintf(pci->id_text, sizeof pci->id_text, "00000000:%02X:00.0", pci->bus);
}
EXPORT Result nvmlDeviceGetPciInfo_v3(Gpu *gpu, Pci *pci) {
    describe_pci(gpu, pci);
    return check(gpu, "pci");
}
EXPORT Result nvmlDeviceGetCpuAffinity(Gpu *gpu, unsigned words, unsigned long *mask) {
    memset(mask, 0, words * sizeof *mask);
    mask[0] = 3ul << (2 * index_of(gpu));
    return check(gpu, "affinity");
}
EXPORT Result nvmlDeviceGetMigMode(Gpu *gpu, unsigned *current, unsigned *pending) {
    *current = *pending = (unsigned)known(gpu, "mig");
    return check(gpu, "mig");
}

typedef struct { unsigned long long total, free, used; } Memory;
typedef struct { unsigned version; unsigned long long total, reserved, free, used; } MemoryV2;
EXPORT Result nvmlDeviceGetMemoryInfo(Gpu *gpu, Memory *memory) {
    /* The total is known where what is used is not. */
    *memory = (Memory){known(gpu, "total_mib") << 20, 0, known(gpu, "memory_mib") << 20};
    return check(gpu, "memory_mib");
}
EXPORT Result nvmlDeviceGetMemoryInfo_v2(Gpu *gpu, MemoryV2 *memory) {
    if (memory->version != 0x02000028) return VERSION_MISMATCH;
    memory->used = known(gpu, "memory_mib") << 20;
    return find(gpu, "memory_mib") ? check(gpu, "memory_mib") : NOT_SUPPORTED;
}

typedef struct { unsigned gpu, memory; } Utilization;
READER(read_utilization, unsigned, "utilization")
EXPORT Result nvmlDeviceGetUtilizationRates(Gpu *gpu, Utilization *rates) {
    rates->memory = 0;
    return read_utilization(gpu, &rates->gpu);
}
typedef struct { unsigned version; int sensor, celsius; } TemperatureV1;
READER(read_temperature, int, "temperature")
EXPORT Result nvmlDeviceGetTemperatureV(Gpu *gpu, TemperatureV1 *temperature) {
    return read_temperature(gpu, &temperature->celsius);
}
READER(read_sm_clock, unsigned, "sm_clock")
READER(read_memory_clock, unsigned, "memory_clock")
EXPORT Result nvmlDeviceGetClockInfo(Gpu *gpu, int clock, unsigned *mhz) {
    return (clock == 2 ? read_memory_clock : read_sm_clock)(gpu, mhz);
}
READER(read_corrected, unsigned long long, "ecc_corrected")
READER(read_uncorrected, unsigned long long, "ecc_uncorrected")
EXPORT Result nvmlDeviceGetTotalEccErrors(Gpu *gpu, int kind, int counter, unsigned long long *count) {
    (void)counter;
    return (kind ? read_uncorrected : read_corrected)(gpu, count);
}
READER(read_remapped, unsigned, "remapped_rows")
EXPORT Result nvmlDeviceGetRemappedRows(Gpu *gpu, unsigned *corrected, unsigned *uncorrected,
                                        unsigned *pending, unsigned *failure) {
    *uncorrected = *pending = *failure = 0;
    return read_remapped(gpu, corrected);
}
READER(nvmlDeviceGetPowerUsage, unsigned, "power_mw")
READER(nvmlDeviceGetEnforcedPowerLimit, unsigned, "power_limit_mw")
READER(nvmlDeviceGetTotalEnergyConsumption, unsigned long long, "energy_mj")
READER(nvmlDeviceGetCurrentClocksEventReasons, unsigned long long, "reasons")
EXPORT Result nvmlDeviceGetPcieThroughput(void) {
    fprintf(stderr, "fake NVML: nvmlDeviceGetPcieThroughput takes 21 ms; nothing may call it\n");
    abort();
}

typedef struct {
    uint32_t field, scope;
    int64_t timestamp_us, latency_us;
    int type, result;
    union { double as_double; unsigned as_unsigned; unsigned long long as_wide; } value;
} FieldValue;

EXPORT Result nvmlDeviceGetFieldValues(Gpu *gpu, int count, FieldValue *values) {
    Result result = check(gpu, "fields");
    for (int i = 0; !result && i < count; i++) {
        uint32_t field = values[i].field;
        double value = 0;
        values[i].type = 3;
        values[i].result = (int)query(gpu, field == 197   ? "pcie_tx_bytes"
                                           : field == 198 ? "pcie_rx_bytes"
                                           : field == 138 ? "nvlink_tx_kib"
                                           : field == 202 ? "nvlink_tx_bytes" : "unknown", &value);
        values[i].value.as_wide = (unsigned long long)value;
    }
    return result;
}

typedef struct { unsigned pid; unsigned long long bytes; unsigned gpu_instance, compute_instance; } Process;
EXPORT Result nvmlDeviceGetComputeRunningProcesses_v3(Gpu *gpu, unsigned *count, Process *processes) {
    Result result = check(gpu, "processes");
    unsigned capacity = *count, found = 0;
    for (int i = 0; !result && i < fact_count; i++) {
        const Fact *fact = &facts[i];
        if (fact->gpu != index_of(gpu) || strcmp(fact->name, "process")) continue;
        if (found < capacity)
            processes[found] = (Process){(unsigned)fact->number,
                                         (unsigned long long)fact->value << 20, ~0u, ~0u};
        found++;
    }
    *count = found;
    return result ? result : found > capacity ? INSUFFICIENT_SIZE : SUCCESS;
}

/* ---- Events: one set, of XIDs ------------------------------------------------------------------ */

typedef struct { double subscribed_at[MAX_GPUS]; } EventSet;
typedef struct {
    Gpu *gpu;
    unsigned long long type, data;
    unsigned gpu_instance, compute_instance;
} Event;
enum { XID_EVENT = 8 };

EXPORT Result nvmlEventSetCreate(EventSet **set) {
    *set = malloc(sizeof **set);
    for (int i = 0; i < MAX_GPUS; i++) (*set)->subscribed_at[i] = INFINITY;
    return initialised ? SUCCESS : UNINITIALIZED;
}
EXPORT Result nvmlEventSetFree(EventSet *set) { free(set); return SUCCESS; }
EXPORT Result nvmlDeviceGetSupportedEventTypes(Gpu *gpu, unsigned long long *types) {
    *types = XID_EVENT;
    return check(gpu, "events");
}
EXPORT Result nvmlDeviceRegisterEvents(Gpu *gpu, unsigned long long types, EventSet *set) {
    Result result = check(gpu, "events");
    if (!result && types & XID_EVENT) set->subscribed_at[index_of(gpu)] = elapsed();
    return result;
}
EXPORT Result nvmlEventSetWait_v2(EventSet *set, Event *event, unsigned timeout_ms) {
    (void)timeout_ms;
    Result result = on_host("events");
    double now = elapsed();
    for (int i = 0; !result && i < fact_count; i++) {
        Fact *xid = &facts[i];
        if (strcmp(xid->name, "xid") || xid->told || xid->value > now) continue;
        if (set->subscribed_at[xid->gpu] > xid->value) continue;
        xid->told = 1;
        *event = (Event){&gpus[xid->gpu], XID_EVENT, (unsigned long long)xid->number, ~0u, ~0u};
        return SUCCESS;
    }
    return result ? result : TIMEOUT;
}

/* ---- Topology ---------------------------------------------------------------------------------- */

EXPORT Result nvmlDeviceGetTopologyCommonAncestor(Gpu *a, Gpu *b, int *level) {
    *level = between(a, b, "ancestor", 50);
    return check(a, "topology");
}
EXPORT Result nvmlDeviceGetP2PStatus(Gpu *a, Gpu *b, int capability, int *status) {
    int switched = known(a, "switch_links") && known(b, "switch_links");
    int joined = switched || between(a, b, "link", 0);
    *status = capability == 2 ? (joined ? 0 : 5) : between(a, b, "peer", 0);
    return check(a, "topology");
}
static const Gpu *link_end(const Gpu *gpu, unsigned link) {
    unsigned first = 0;
    for (const Gpu *other = gpus; other < gpus + gpu_count; other++) {
        first += (unsigned)between(gpu, other, "link", 0);
        if (link < first) return other;
    }
    return NULL;
}
EXPORT Result nvmlDeviceGetNvLinkState(Gpu *gpu, unsigned link, unsigned *active) {
    if (link >= MAX_LINKS) return INVALID_ARGUMENT;
    *active = link_end(gpu, link) != NULL || link < known(gpu, "switch_links");
    return check(gpu, "nvlink");
}
EXPORT Result nvmlDeviceGetNvLinkRemotePciInfo_v2(Gpu *gpu, unsigned link, Pci *pci) {
    const Gpu *end = link_end(gpu, link);
    if (!end) return NOT_SUPPORTED;
    describe_pci(end, pci);
    return check(gpu, "nvlink");
}

/* ---- GPM ----------------------------------------------------------------------------------------- */

typedef struct { double taken_at; Gpu *gpu; } GpmSample;
typedef struct { unsigned version, supported; } GpmSupport;
typedef struct { unsigned id; int result; double value; struct { char *a, *b, *c; } info; } GpmMetric;
typedef struct { unsigned version, count; GpmSample *first, *second; GpmMetric metrics[]; } GpmRequest;

EXPORT Result nvmlGpmQueryDeviceSupport(Gpu *gpu, GpmSupport *support) {
    support->supported = find(gpu, "gpm.2") != NULL;
    return check(gpu, "gpm");
}
EXPORT Result nvmlGpmSampleAlloc(GpmSample **sample) {
    *sample = calloc(1, sizeof **sample);
    return SUCCESS;
}
EXPORT Result nvmlGpmSampleFree(GpmSample *sample) { free(sample); return SUCCESS; }
EXPORT Result nvmlGpmSampleGet(Gpu *gpu, GpmSample *sample) {
    *sample = (GpmSample){elapsed(), gpu};
    return check(gpu, "gpm");
}
EXPORT Result nvmlGpmMetricsGet(GpmRequest *request) {
    if (request->version != 1) return VERSION_MISMATCH;
    const GpmSample *first = request->first, *second = request->second;
    if (first->gpu != second->gpu || second->taken_at - first->taken_at < 0.1)
        return INVALID_ARGUMENT;
    for (unsigned i = 0; i < request->count; i++) {
        GpmMetric *metric = &request->metrics[i];
        char series[16];
        snprintf(series, sizeof series, "gpm.%u", metric->id);
        metric->result = (int)query(second->gpu, series, &metric->value);
    }
    return SUCCESS;
}
