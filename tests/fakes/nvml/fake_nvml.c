/*
 * A stand-in for libnvidia-ml.so.1, driven by a scenario file.
 *
 * FAKE_NVML_SCENARIO names the file; it is read when the library is initialised. One statement a line:
 *
 *   origin T                      time zero, CLOCK_MONOTONIC seconds (default: nvmlInit)
 *   driver VERSION
 *   device KEY UUID TOTAL_MIB NAME...   KEY is 0, 1, ... or 0.1 for a MIG instance of GPU 0
 *   points KEY SERIES T:VALUE ... piecewise constant from each T seconds on
 *   counter KEY SERIES BASE RATE  BASE + RATE * seconds
 *   reset KEY SERIES T            that counter restarts from 0 at T
 *   fault KEY SERIES CODE FROM UNTIL    SERIES or '*'; KEY or '*'; CODE is an nvmlReturn_t
 *   latency KEY SERIES MICROSECONDS
 *   process KEY PID MEMORY_MIB
 *   xid KEY NUMBER T              the driver reports this error at T, to whoever subscribed before
 *   link A B COUNT                NVLinks that join GPUs A and B directly
 *   switch_links KEY COUNT        NVLinks that lead to a switch
 *   ancestor A B LEVEL            nvmlGpuTopologyLevel_t
 *   peer A B STATUS               nvmlGpuP2PStatus_t for reads
 *
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

enum {
    MAX_DEVICES = 64,
    MAX_SERIES = 32,
    MAX_POINTS = 512,
    MAX_FAULTS = 64,
    MAX_PROCESSES = 16,
    MAX_XIDS = 16,
    MAX_LINKS = 18,
    NAME_LENGTH = 96,
};

typedef enum {
    SUCCESS = 0,
    UNINITIALIZED = 1,
    INVALID_ARGUMENT = 2,
    NOT_SUPPORTED = 3,
    NOT_FOUND = 6,
    INSUFFICIENT_SIZE = 7,
    DRIVER_NOT_LOADED = 9,
    TIMEOUT = 10,
    VERSION_MISMATCH = 25,
} Result;

typedef struct {
    char name[NAME_LENGTH];
    int is_counter;
    double base, rate, reset_at;
    int point_count;
    struct { double from, value; } points[MAX_POINTS];
    unsigned latency_us;
} Series;

typedef struct {
    char key[16], uuid[NAME_LENGTH], name[NAME_LENGTH];
    unsigned index;
    int is_mig;
    unsigned long long total_bytes;
    int series_count;
    Series series[MAX_SERIES];
    int process_count;
    struct { unsigned pid; unsigned long long bytes; } processes[MAX_PROCESSES];
    unsigned switch_links;
    unsigned links_to[MAX_DEVICES];
    int ancestor[MAX_DEVICES];
    int peer_status[MAX_DEVICES];
} Device;

typedef struct {
    char key[16], series[NAME_LENGTH];
    Result code;
    double from, until;
} Fault;

typedef struct {
    char key[16];
    unsigned long long number;
    double at;
    int delivered;
} Xid;

static Device devices[MAX_DEVICES];
static Xid xids[MAX_XIDS];
static int xid_count;
static int device_count, gpu_count, initialised;
static Fault faults[MAX_FAULTS];
static int fault_count;
static double origin;
static char driver[NAME_LENGTH];

#define EXPORT __attribute__((visibility("default")))

static double monotonic(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static double elapsed(void) { return monotonic() - origin; }

/* ---- Reading the scenario ------------------------------------------------------------------ */

static void refuse(const char *line) {
    fprintf(stderr, "fake NVML: cannot read the scenario line: %s\n", line);
    abort();
}

static Device *find_device(const char *key) {
    for (int i = 0; i < device_count; i++)
        if (strcmp(devices[i].key, key) == 0) return &devices[i];
    return NULL;
}

static Series *find_series(Device *device, const char *name, int create) {
    for (int i = 0; i < device->series_count; i++)
        if (strcmp(device->series[i].name, name) == 0) return &device->series[i];
    if (!create || device->series_count == MAX_SERIES) return NULL;
    Series *series = &device->series[device->series_count++];
    memset(series, 0, sizeof *series);
    snprintf(series->name, sizeof series->name, "%s", name);
    series->reset_at = INFINITY;
    return series;
}

static void add_device(const char *rest, const char *line) {
    if (device_count == MAX_DEVICES) refuse(line);
    Device *device = &devices[device_count++];
    memset(device, 0, sizeof *device);
    unsigned long long total_mib;
    if (sscanf(rest, "%15s %95s %llu %95[^\n]", device->key, device->uuid, &total_mib,
               device->name) != 4)
        refuse(line);
    device->total_bytes = total_mib << 20;
    device->index = (unsigned)atoi(device->key);
    const char *dot = strchr(device->key, '.');
    device->is_mig = dot != NULL;
    if (!dot) gpu_count++;
    for (int i = 0; i < MAX_DEVICES; i++) device->ancestor[i] = 50;
}

static void add_points(Series *series, char *list, const char *line) {
    char *state = NULL;
    for (char *word = strtok_r(list, " ", &state); word; word = strtok_r(NULL, " ", &state)) {
        if (series->point_count == MAX_POINTS) refuse(line);
        int n = series->point_count++;
        if (sscanf(word, "%lf:%lf", &series->points[n].from, &series->points[n].value) != 2)
            refuse(line);
    }
}

static void add_pair(const char *verb, const char *rest, const char *line) {
    char a_key[16], b_key[16];
    int value;
    if (sscanf(rest, "%15s %15s %d", a_key, b_key, &value) != 3) refuse(line);
    Device *a = find_device(a_key), *b = find_device(b_key);
    if (!a || !b) refuse(line);
    for (int turn = 0; turn < 2; turn++) {
        if (!strcmp(verb, "link")) a->links_to[b - devices] = (unsigned)value;
        else if (!strcmp(verb, "ancestor")) a->ancestor[b - devices] = value;
        else a->peer_status[b - devices] = value;
        Device *swap = a; a = b; b = swap;
    }
}

static void add_to_device(const char *verb, char *rest, const char *line) {
    char key[16], name[NAME_LENGTH] = "";
    int used = 0;
    if (sscanf(rest, "%15s %95s %n", key, name, &used) < 2) refuse(line);
    Device *device = find_device(key);
    if (!device) refuse(line);
    char *tail = rest + used;
    if (!strcmp(verb, "process")) {
        unsigned long long mib;
        if (device->process_count == MAX_PROCESSES || sscanf(tail, "%llu", &mib) != 1) refuse(line);
        device->processes[device->process_count].pid = (unsigned)atoi(name);
        device->processes[device->process_count++].bytes = mib << 20;
        return;
    }
    if (!strcmp(verb, "switch_links")) { device->switch_links = (unsigned)atoi(name); return; }
    Series *series = find_series(device, name, 1);
    if (!series) refuse(line);
    if (!strcmp(verb, "points")) { series->point_count = 0; add_points(series, tail, line); }
    else if (!strcmp(verb, "counter")) {
        series->is_counter = 1;
        if (sscanf(tail, "%lf %lf", &series->base, &series->rate) != 2) refuse(line);
    }
    else if (!strcmp(verb, "reset")) series->reset_at = atof(tail);
    else if (!strcmp(verb, "latency")) series->latency_us = (unsigned)atoi(tail);
    else refuse(line);
}

static void add_fault(const char *rest, const char *line) {
    if (fault_count == MAX_FAULTS) refuse(line);
    Fault *fault = &faults[fault_count++];
    int code;
    if (sscanf(rest, "%15s %95s %d %lf %lf", fault->key, fault->series, &code, &fault->from,
               &fault->until) != 5)
        refuse(line);
    fault->code = (Result)code;
}

static void add_xid(const char *rest, const char *line) {
    if (xid_count == MAX_XIDS) refuse(line);
    Xid *xid = &xids[xid_count++];
    xid->delivered = 0;
    if (sscanf(rest, "%15s %llu %lf", xid->key, &xid->number, &xid->at) != 3) refuse(line);
}

static void read_line(char *line) {
    char verb[24];
    int used = 0;
    if (sscanf(line, "%23s %n", verb, &used) < 1 || verb[0] == '#') return;
    char *rest = line + used;
    if (!strcmp(verb, "origin")) origin = atof(rest);
    else if (!strcmp(verb, "driver")) sscanf(rest, "%95s", driver);
    else if (!strcmp(verb, "device")) add_device(rest, line);
    else if (!strcmp(verb, "fault")) add_fault(rest, line);
    else if (!strcmp(verb, "xid")) add_xid(rest, line);
    else if (!strcmp(verb, "link") || !strcmp(verb, "ancestor") || !strcmp(verb, "peer"))
        add_pair(verb, rest, line);
    else add_to_device(verb, rest, line);
}

static void read_scenario(void) {
    device_count = gpu_count = fault_count = xid_count = 0;
    origin = monotonic();
    snprintf(driver, sizeof driver, "999.01");
    const char *path = getenv("FAKE_NVML_SCENARIO");
    FILE *file = path ? fopen(path, "r") : NULL;
    if (!file) return;
    char *line = NULL;
    size_t capacity = 0;
    ssize_t length;
    while ((length = getline(&line, &capacity, file)) >= 0) {
        if (length && line[length - 1] == '\n') line[length - 1] = 0;
        read_line(line);
    }
    free(line);
    fclose(file);
}

/* ---- What every call goes through ---------------------------------------------------------- */

static Result fault_of(const char *key, const char *series) {
    double now = elapsed();
    for (int i = 0; i < fault_count; i++) {
        const Fault *f = &faults[i];
        int here = !strcmp(f->key, "*") || !strcmp(f->key, key);
        int this_one = !strcmp(f->series, "*") || !strcmp(f->series, series);
        if (here && this_one && now >= f->from && now < f->until) return f->code;
    }
    return SUCCESS;
}

static Result check(const Device *device, const char *what) {
    if (!initialised) return UNINITIALIZED;
    if (device < devices || device >= devices + device_count) return INVALID_ARGUMENT;
    return fault_of(device->key, what);
}

static double value_at(const Series *series, double now) {
    if (series->is_counter)
        return now >= series->reset_at ? series->rate * (now - series->reset_at)
                                       : series->base + series->rate * now;
    double value = series->point_count ? series->points[0].value : 0;
    for (int i = 0; i < series->point_count && series->points[i].from <= now; i++)
        value = series->points[i].value;
    return value;
}

static Result query(Device *device, const char *name, double *value) {
    Result result = check(device, name);
    if (result) return result;
    const Series *series = find_series(device, name, 0);
    if (!series || (!series->is_counter && !series->point_count)) return NOT_SUPPORTED;
    if (series->latency_us) usleep(series->latency_us);
    *value = value_at(series, elapsed());
    return SUCCESS;
}

static Result query_unsigned(Device *device, const char *name, unsigned *out) {
    double value = 0;
    Result result = query(device, name, &value);
    if (!result) *out = (unsigned)value;
    return result;
}

static Result query_wide(Device *device, const char *name, unsigned long long *out) {
    double value = 0;
    Result result = query(device, name, &value);
    if (!result) *out = (unsigned long long)value;
    return result;
}

/* ---- The library ----------------------------------------------------------------------------- */

/* Samplers of several cells open NVML at once, each in its thread. */
static pthread_mutex_t opening = PTHREAD_MUTEX_INITIALIZER;

EXPORT Result nvmlInit_v2(void) {
    pthread_mutex_lock(&opening);
    if (initialised == 0) read_scenario();
    Result result = fault_of("*", "init");
    if (!result) initialised++;
    pthread_mutex_unlock(&opening);
    return result;
}
EXPORT Result nvmlInitWithFlags(unsigned flags) { (void)flags; return nvmlInit_v2(); }
EXPORT Result nvmlShutdown(void) {
    if (!initialised) return UNINITIALIZED;
    initialised--;
    return SUCCESS;
}

EXPORT const char *nvmlErrorString(Result result) {
    switch ((int)result) {
    case 1: return "Uninitialized";
    case 2: return "Invalid Argument";
    case 3: return "Not Supported";
    case 4: return "Insufficient Permissions";
    case 6: return "Not Found";
    case 9: return "Driver Not Loaded";
    case 10: return "Timeout";
    case 15: return "GPU is lost";
    case 16: return "GPU requires reset";
    case 18: return "Driver/library version mismatch";
    default: return "Unknown Error";
    }
}

EXPORT Result nvmlSystemGetDriverVersion(char *text, unsigned length) {
    snprintf(text, length, "%s", driver);
    return initialised ? fault_of("*", "driver") : UNINITIALIZED;
}
EXPORT Result nvmlDeviceGetCount_v2(unsigned *count) {
    *count = (unsigned)gpu_count;
    return initialised ? fault_of("*", "count") : UNINITIALIZED;
}
EXPORT Result nvmlDeviceGetHandleByIndex_v2(unsigned index, Device **handle) {
    if (!initialised) return UNINITIALIZED;
    for (int i = 0; i < device_count; i++)
        if (!devices[i].is_mig && devices[i].index == index) {
            *handle = &devices[i];
            return check(*handle, "handle");
        }
    return INVALID_ARGUMENT;
}
EXPORT Result nvmlDeviceGetUUID(Device *device, char *text, unsigned length) {
    Result result = check(device, "uuid");
    if (!result) snprintf(text, length, "%s", device->uuid);
    return result;
}
EXPORT Result nvmlDeviceGetName(Device *device, char *text, unsigned length) {
    Result result = check(device, "name");
    if (!result) snprintf(text, length, "%s", device->name);
    return result;
}

typedef struct { char legacy[16]; unsigned domain, bus, device, id, subsystem; char id_text[32]; } Pci;

static void describe_pci(const Device *device, Pci *pci) {
    memset(pci, 0, sizeof *pci);
    pci->bus = device->index + 1;
    snprintf(pci->id_text, sizeof pci->id_text, "00000000:%02X:00.0", pci->bus);
}
EXPORT Result nvmlDeviceGetPciInfo_v3(Device *device, Pci *pci) {
    Result result = check(device, "pci");
    if (!result) describe_pci(device, pci);
    return result;
}
EXPORT Result nvmlDeviceGetCpuAffinity(Device *device, unsigned words, unsigned long *mask) {
    Result result = check(device, "affinity");
    if (!result) { memset(mask, 0, words * sizeof *mask); mask[0] = 3ul << (2 * device->index); }
    return result;
}

typedef struct { unsigned gpu, memory; } Utilization;
EXPORT Result nvmlDeviceGetUtilizationRates(Device *device, Utilization *rates) {
    rates->memory = 0;
    return query_unsigned(device, "utilization", &rates->gpu);
}

typedef struct { unsigned long long total, free, used; } Memory;
typedef struct { unsigned version; unsigned long long total, reserved, free, used; } MemoryV2;
EXPORT Result nvmlDeviceGetMemoryInfo(Device *device, Memory *memory) {
    unsigned long long mib = 0;
    Result result = query_wide(device, "memory_mib", &mib);
    if (result == NOT_SUPPORTED && device->total_bytes) result = SUCCESS; /* the total is known */
    memory->total = device->total_bytes;
    memory->used = mib << 20;
    memory->free = memory->total - memory->used;
    return result;
}
EXPORT Result nvmlDeviceGetMemoryInfo_v2(Device *device, MemoryV2 *memory) {
    if (memory->version != 0x02000028) return VERSION_MISMATCH;
    unsigned long long mib = 0;
    Result result = query_wide(device, "memory_mib", &mib);
    memory->total = device->total_bytes;
    memory->reserved = 0;
    memory->used = mib << 20;
    memory->free = memory->total - memory->used;
    return result;
}

EXPORT Result nvmlDeviceGetPowerUsage(Device *device, unsigned *milliwatts) {
    return query_unsigned(device, "power_mw", milliwatts);
}
EXPORT Result nvmlDeviceGetEnforcedPowerLimit(Device *device, unsigned *milliwatts) {
    return query_unsigned(device, "power_limit_mw", milliwatts);
}
EXPORT Result nvmlDeviceGetTotalEnergyConsumption(Device *device, unsigned long long *millijoules) {
    return query_wide(device, "energy_mj", millijoules);
}

typedef struct { unsigned version; int sensor, celsius; } TemperatureV1;
EXPORT Result nvmlDeviceGetTemperatureV(Device *device, TemperatureV1 *temperature) {
    double value = 0;
    Result result = query(device, "temperature", &value);
    temperature->celsius = (int)value;
    return result;
}
EXPORT Result nvmlDeviceGetClockInfo(Device *device, int clock, unsigned *mhz) {
    return query_unsigned(device, clock == 2 ? "memory_clock" : "sm_clock", mhz);
}
EXPORT Result nvmlDeviceGetCurrentClocksEventReasons(Device *device, unsigned long long *mask) {
    return query_wide(device, "reasons", mask);
}
EXPORT Result nvmlDeviceGetPcieThroughput(Device *device, int counter, unsigned *kib) {
    (void)device; (void)counter; (void)kib;
    fprintf(stderr, "fake NVML: nvmlDeviceGetPcieThroughput takes 21 ms; nothing may call it\n");
    abort();
}

EXPORT Result nvmlDeviceGetTotalEccErrors(Device *device, int kind, int counter,
                                          unsigned long long *count) {
    (void)counter;
    return query_wide(device, kind ? "ecc_uncorrected" : "ecc_corrected", count);
}
EXPORT Result nvmlDeviceGetRemappedRows(Device *device, unsigned *corrected, unsigned *uncorrected,
                                        unsigned *pending, unsigned *failure) {
    *uncorrected = *pending = *failure = 0;
    return query_unsigned(device, "remapped_rows", corrected);
}

typedef struct {
    uint32_t field, scope;
    int64_t timestamp_us, latency_us;
    int type, result;
    union { double as_double; unsigned as_unsigned; unsigned long long as_wide; } value;
} FieldValue;

static const char *field_series(uint32_t field) {
    switch (field) {
    case 138: return "nvlink_tx_kib";
    case 139: return "nvlink_rx_kib";
    case 197: return "pcie_tx_bytes";
    case 198: return "pcie_rx_bytes";
    case 202: return "nvlink_tx_bytes";
    case 204: return "nvlink_rx_bytes";
    default: return "unknown field";
    }
}
EXPORT Result nvmlDeviceGetFieldValues(Device *device, int count, FieldValue *values) {
    Result result = check(device, "fields");
    for (int i = 0; !result && i < count; i++) {
        values[i].type = 3;
        values[i].result = (int)query_wide(device, field_series(values[i].field),
                                           &values[i].value.as_wide);
    }
    return result;
}

typedef struct { unsigned pid; unsigned long long bytes; unsigned gpu_instance, compute_instance; } Process;
EXPORT Result nvmlDeviceGetComputeRunningProcesses_v3(Device *device, unsigned *count,
                                                      Process *processes) {
    Result result = check(device, "processes");
    if (result) return result;
    unsigned capacity = *count;
    *count = (unsigned)device->process_count;
    if (capacity < *count) return INSUFFICIENT_SIZE;
    for (unsigned i = 0; i < *count; i++)
        processes[i] = (Process){device->processes[i].pid, device->processes[i].bytes, ~0u, ~0u};
    return SUCCESS;
}

/* ---- Events: one set, of XIDs ------------------------------------------------------------------ */

typedef struct { double subscribed_at[MAX_DEVICES]; } EventSet;
typedef struct {
    Device *device;
    unsigned long long type, data;
    unsigned gpu_instance, compute_instance;
} Event;
enum { XID_EVENT = 8 };

EXPORT Result nvmlEventSetCreate(EventSet **set) {
    *set = malloc(sizeof **set);
    for (int i = 0; i < MAX_DEVICES; i++) (*set)->subscribed_at[i] = INFINITY;
    return initialised ? SUCCESS : UNINITIALIZED;
}
EXPORT Result nvmlEventSetFree(EventSet *set) { free(set); return SUCCESS; }
EXPORT Result nvmlDeviceGetSupportedEventTypes(Device *device, unsigned long long *types) {
    *types = XID_EVENT;
    return check(device, "events");
}
EXPORT Result nvmlDeviceRegisterEvents(Device *device, unsigned long long types, EventSet *set) {
    Result result = check(device, "events");
    if (!result && types & XID_EVENT) set->subscribed_at[device - devices] = elapsed();
    return result;
}
EXPORT Result nvmlEventSetWait_v2(EventSet *set, Event *event, unsigned timeout_ms) {
    (void)timeout_ms;
    Result result = initialised ? fault_of("*", "events") : UNINITIALIZED;
    if (result) return result;
    double now = elapsed();
    for (int i = 0; i < xid_count; i++) {
        Device *device = find_device(xids[i].key);
        if (!device || xids[i].delivered || xids[i].at > now) continue;
        if (set->subscribed_at[device - devices] > xids[i].at) continue;
        xids[i].delivered = 1;
        *event = (Event){device, XID_EVENT, xids[i].number, ~0u, ~0u};
        return SUCCESS;
    }
    return TIMEOUT;
}

/* ---- MIG --------------------------------------------------------------------------------------- */

EXPORT Result nvmlDeviceGetMigMode(Device *device, unsigned *current, unsigned *pending) {
    *current = *pending = 0;
    for (int i = 0; i < device_count; i++)
        *current |= devices[i].is_mig && devices[i].index == device->index;
    return check(device, "mig");
}

/* ---- Topology ---------------------------------------------------------------------------------- */

EXPORT Result nvmlDeviceGetTopologyCommonAncestor(Device *a, Device *b, int *level) {
    *level = a->ancestor[b - devices];
    return check(a, "topology");
}
EXPORT Result nvmlDeviceGetP2PStatus(Device *a, Device *b, int capability, int *status) {
    int joined = a->links_to[b - devices] || (a->switch_links && b->switch_links);
    *status = capability == 2 ? (joined ? 0 : 5) : a->peer_status[b - devices];
    return check(a, "topology");
}
static Device *link_end(Device *device, unsigned link) {
    unsigned first = 0;
    for (int i = 0; i < device_count; i++) {
        if (link < first + device->links_to[i]) return &devices[i];
        first += device->links_to[i];
    }
    return NULL;
}
EXPORT Result nvmlDeviceGetNvLinkState(Device *device, unsigned link, unsigned *active) {
    if (link >= MAX_LINKS) return INVALID_ARGUMENT;
    *active = link_end(device, link) != NULL || link < device->switch_links;
    return check(device, "nvlink");
}
EXPORT Result nvmlDeviceGetNvLinkRemotePciInfo_v2(Device *device, unsigned link, Pci *pci) {
    const Device *end = link_end(device, link);
    if (!end) return NOT_SUPPORTED;
    describe_pci(end, pci);
    return check(device, "nvlink");
}

/* ---- GPM ----------------------------------------------------------------------------------------- */

typedef struct { double taken_at; Device *device; } GpmSample;
typedef struct { unsigned version, supported; } GpmSupport;
typedef struct { unsigned id; int result; double value; struct { char *a, *b, *c; } info; } GpmMetric;
typedef struct { unsigned version, count; GpmSample *first, *second; GpmMetric metrics[]; } GpmRequest;

EXPORT Result nvmlGpmQueryDeviceSupport(Device *device, GpmSupport *support) {
    support->supported = find_series(device, "sm_activity", 0) != NULL;
    return check(device, "gpm");
}
EXPORT Result nvmlGpmSampleAlloc(GpmSample **sample) {
    *sample = calloc(1, sizeof **sample);
    return SUCCESS;
}
EXPORT Result nvmlGpmSampleFree(GpmSample *sample) { free(sample); return SUCCESS; }
EXPORT Result nvmlGpmSampleGet(Device *device, GpmSample *sample) {
    sample->taken_at = elapsed();
    sample->device = device;
    return check(device, "gpm");
}
static const char *gpm_series(unsigned id) {
    switch (id) {
    case 1: return "engine_activity";
    case 2: return "sm_activity";
    case 3: return "sm_occupancy";
    case 5: return "tensor_activity";
    case 10: return "dram_activity";
    case 20: return "pcie_tx_rate";
    case 21: return "pcie_rx_rate";
    case 60: return "nvlink_rx_rate";
    case 61: return "nvlink_tx_rate";
    default: return "unknown metric";
    }
}
EXPORT Result nvmlGpmMetricsGet(GpmRequest *request) {
    if (request->version != 1) return VERSION_MISMATCH;
    const GpmSample *first = request->first, *second = request->second;
    if (first->device != second->device || second->taken_at - first->taken_at < 0.1)
        return INVALID_ARGUMENT;
    for (unsigned i = 0; i < request->count; i++) {
        GpmMetric *metric = &request->metrics[i];
        metric->result = (int)query(second->device, gpm_series(metric->id), &metric->value);
    }
    return SUCCESS;
}
