/* A libnvidia-ml.so.1 for tests: NVML without a driver, which answers what a file says.
 *
 * NVML_STUB_STATE names the file. It is read at every call, so a test can change GPUs while a process runs. A line is
 * KEY VALUE; a key of one GPU begins with its index, as in `2.name Tesla V100`. What has no line isn't supported.
 *   count N     init 0     driver TEXT     noise TEXT (printed on standard output at the start)
 *   N.handle N.uuid N.name N.bus N.memory (MiB) N.memory_v1 (MiB, else as N.memory) N.used (MiB) N.mig (0 or 1)
 *   N.migs SLOT,SLOT,... (slots in which there is a MIG instance) and of each N.mig.SLOT.uuid, .name, .memory, .used,
 *   .processes, .gi, .ci, .slices (of compute:of GPU)
 *   N.utilization (%) N.temperature (C) N.power (mW) N.ecc (uncorrected errors) N.processes (PID:MiB, blanks between)
 *   N.sm_clock N.memory_clock (MHz) N.energy (mJ) N.clock_events (bits) N.throttle_reasons (the same, by the older name)
 *   N.rows CORRECTABLE:UNCORRECTABLE:PENDING:FAILED N.links KIND:BUS (of what each NVLink leads to, `-` = it is down)
 *   N.xid SEQUENCE:CODE[:GPU INSTANCE] (told once for each sequence, each higher than the one before)
 * Instead of a value: `!15` returns that nvmlReturn_t, `!hang` waits for ever, `!crash` is a segmentation fault.
 */
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SUCCESS, UNINITIALIZED, INVALID_ARGUMENT, NOT_SUPPORTED, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7, TIMEOUT = 10 };
enum { TEXT_MAX = 1024, MIG_HANDLES = 1000, SLOTS = 100, NO_GPU = -1 };
typedef unsigned long long u64;
typedef struct { u64 total, free, used; } memory_v1;
typedef struct { unsigned version; u64 total, reserved, free, used; } memory_v2;
typedef struct { char legacy[16]; unsigned domain, bus, device, device_id, subsystem_id; char bus_id[32]; } pci_info;
typedef struct { unsigned version, sensor; int celsius; } temperature_v1;

static int initialized;

static int gpu_of(void *handle) { return (int)(uintptr_t)handle - 1; }
static int is_instance(int gpu) { return gpu >= MIG_HANDLES; }

/* The value of a key. */
static int ask(int gpu, const char *name, char *value) {
    char key[64], line[TEXT_MAX];
    if (gpu == NO_GPU) snprintf(key, sizeof key, "%s ", name);
    else if (is_instance(gpu))
        snprintf(key, sizeof key, "%d.mig.%d.%s ", (gpu - MIG_HANDLES) / SLOTS, (gpu - MIG_HANDLES) % SLOTS, name);
    else snprintf(key, sizeof key, "%d.%s ", gpu, name);
    const char *path = getenv("NVML_STUB_STATE");
    FILE *state = path ? fopen(path, "r") : NULL;
    int found = 0;
    while (state && !found && fgets(line, sizeof line, state)) found = !strncmp(line, key, strlen(key));
    if (state) fclose(state);
    if (!found) return NOT_SUPPORTED;
    line[strcspn(line, "\n")] = 0;
    strcpy(value, line + strlen(key));
    if (!strcmp(value, "!hang")) for (;;) pause();
    if (!strcmp(value, "!crash")) { raise(SIGSEGV); }
    return value[0] == '!' ? atoi(value + 1) : SUCCESS;
}

static int number(int gpu, const char *name, u64 *result) {
    char value[TEXT_MAX];
    int said = ask(gpu, name, value);
    if (said == SUCCESS) *result = strtoull(value, NULL, 0);
    return said;
}

static int count_of(int gpu, const char *name, unsigned *result) {
    u64 value = 0;
    int said = number(gpu, name, &value);
    if (said == SUCCESS) *result = (unsigned)value;
    return said;
}

static int text(int gpu, const char *name, char *result, unsigned size) {
    char value[TEXT_MAX];
    int said = ask(gpu, name, value);
    if (said == SUCCESS) snprintf(result, size, "%s", value);
    return said;
}

int nvmlInitWithFlags(unsigned flags) {
    char value[TEXT_MAX];
    (void)flags;
    if (ask(NO_GPU, "noise", value) == SUCCESS) { puts(value); fflush(stdout); }
    int said = ask(NO_GPU, "init", value);
    initialized = said == SUCCESS || said == NOT_SUPPORTED;
    return initialized ? SUCCESS : said;
}
int nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
int nvmlShutdown(void) { return SUCCESS; }
const char *nvmlErrorString(int code) { return code == 777 ? "an error that no binding knows" : "Unknown Error"; }

int nvmlSystemGetDriverVersion(char *result, unsigned size) { return text(NO_GPU, "driver", result, size); }
int nvmlSystemGetCudaDriverVersion_v2(int *version) { *version = 12080; return SUCCESS; }
int nvmlSystemGetCudaDriverVersion(int *version) { return nvmlSystemGetCudaDriverVersion_v2(version); }

int nvmlDeviceGetCount_v2(unsigned *count) {
    return initialized ? count_of(NO_GPU, "count", count) : UNINITIALIZED;
}
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **handle) {
    char value[TEXT_MAX];
    unsigned count = 0;
    int said = nvmlDeviceGetCount_v2(&count);
    if (said != SUCCESS) return said;
    if (index >= count) return INVALID_ARGUMENT;
    said = ask((int)index, "handle", value);
    *handle = (void *)(uintptr_t)(index + 1);
    return said == NOT_SUPPORTED ? SUCCESS : said;
}
int nvmlDeviceGetIndex(void *handle, unsigned *index) { *index = (unsigned)gpu_of(handle); return SUCCESS; }
int nvmlDeviceGetMinorNumber(void *handle, unsigned *number) { return nvmlDeviceGetIndex(handle, number); }
int nvmlDeviceGetUUID(void *handle, char *result, unsigned size) { return text(gpu_of(handle), "uuid", result, size); }
int nvmlDeviceGetName(void *handle, char *result, unsigned size) { return text(gpu_of(handle), "name", result, size); }
int nvmlDeviceGetPciInfo_v3(void *handle, pci_info *info) {
    memset(info, 0, sizeof *info);
    int said = text(gpu_of(handle), "bus", info->bus_id, sizeof info->bus_id);
    if (said == SUCCESS) sscanf(info->bus_id, "%x:%x:%x", &info->domain, &info->bus, &info->device);
    return said;
}

int nvmlDeviceGetMemoryInfo_v2(void *handle, memory_v2 *memory) {
    u64 total = 0, used = 0;
    int said = number(gpu_of(handle), "memory", &total);
    number(gpu_of(handle), "used", &used);
    if (said != SUCCESS) return said;
    *memory = (memory_v2){memory->version, total << 20, 0, (total - used) << 20, used << 20};
    return SUCCESS;
}
int nvmlDeviceGetMemoryInfo(void *handle, memory_v1 *memory) {
    u64 total = 0;
    int said = number(gpu_of(handle), "memory_v1", &total);
    if (said == NOT_SUPPORTED) said = number(gpu_of(handle), "memory", &total);
    if (said == SUCCESS) *memory = (memory_v1){total << 20, total << 20, 0};
    return said;
}

int nvmlDeviceGetMigMode(void *handle, unsigned *current, unsigned *pending) {
    int said = count_of(gpu_of(handle), "mig", current);
    *pending = *current;
    return said;
}
int nvmlDeviceGetMaxMigDeviceCount(void *handle, unsigned *count) {
    (void)handle;
    *count = 7;
    return SUCCESS;
}
int nvmlDeviceGetMigDeviceHandleByIndex(void *handle, unsigned slot, void **instance) {
    char value[TEXT_MAX];
    int said = ask(gpu_of(handle), "migs", value);
    *instance = (void *)(uintptr_t)(MIG_HANDLES + gpu_of(handle) * SLOTS + (int)slot + 1);
    if (said != SUCCESS) return said == NOT_SUPPORTED ? NOT_FOUND : said;
    for (char *word = strtok(value, ","); word; word = strtok(NULL, ","))
        if ((unsigned)atoi(word) == slot) return SUCCESS;
    return NOT_FOUND;
}
int nvmlDeviceIsMigDeviceHandle(void *handle, unsigned *is_mig) {
    *is_mig = is_instance(gpu_of(handle));
    return SUCCESS;
}
int nvmlDeviceGetDeviceHandleFromMigDeviceHandle(void *handle, void **parent) {
    *parent = (void *)(uintptr_t)((gpu_of(handle) - MIG_HANDLES) / SLOTS + 1);
    return SUCCESS;
}
int nvmlDeviceGetGpuInstanceId(void *handle, unsigned *id) { return count_of(gpu_of(handle), "gi", id); }
int nvmlDeviceGetComputeInstanceId(void *handle, unsigned *id) { return count_of(gpu_of(handle), "ci", id); }
typedef struct { unsigned processors, copy, decoders, encoders, jpeg, ofa, gpu_slices, compute_slices; u64 memory; } attributes;
int nvmlDeviceGetAttributes_v2(void *handle, attributes *told) {
    char value[TEXT_MAX];
    int said = ask(gpu_of(handle), "slices", value);
    memset(told, 0, sizeof *told);
    if (said == SUCCESS) sscanf(value, "%u:%u", &told->compute_slices, &told->gpu_slices);
    if (said == SUCCESS) number(gpu_of(handle), "memory", &told->memory);
    return said;
}

/* What nvitop wants beside that. */
int nvmlDeviceGetUtilizationRates(void *handle, unsigned *rates) {
    rates[1] = 0;
    return count_of(gpu_of(handle), "utilization", rates);
}
int nvmlDeviceGetTemperature(void *handle, unsigned sensor, unsigned *celsius) {
    (void)sensor;
    return count_of(gpu_of(handle), "temperature", celsius);
}
int nvmlDeviceGetTemperatureV(void *handle, temperature_v1 *told) {
    return count_of(gpu_of(handle), "temperature", (unsigned *)&told->celsius);
}
int nvmlDeviceGetPowerUsage(void *handle, unsigned *milliwatts) {
    return count_of(gpu_of(handle), "power", milliwatts);
}
typedef struct { unsigned pid; u64 used; unsigned gpu_instance, compute_instance; } process_info;
int nvmlDeviceGetComputeRunningProcesses_v3(void *handle, unsigned *count, process_info *infos) {
    char value[TEXT_MAX];
    unsigned room = *count, found = 0;
    int said = ask(gpu_of(handle), "processes", value);
    *count = 0;
    if (said == NOT_SUPPORTED) return SUCCESS;
    if (said != SUCCESS) return said;
    for (char *word = strtok(value, " "); word; word = strtok(NULL, " "), found++) {
        unsigned pid = 0;
        u64 used = 0;
        sscanf(word, "%u:%llu", &pid, &used);
        if (infos && found < room) infos[found] = (process_info){pid, used << 20, ~0u, ~0u};
    }
    *count = found;
    return infos && found <= room ? SUCCESS : found ? INSUFFICIENT_SIZE : SUCCESS;
}
static int nothing_runs(unsigned *count) { *count = 0; return SUCCESS; }
int nvmlDeviceGetGraphicsRunningProcesses_v3(void *handle, unsigned *count, void *infos) {
    (void)handle, (void)infos;
    return nothing_runs(count);
}
int nvmlDeviceGetBAR1MemoryInfo(void *handle, memory_v1 *memory) { return nvmlDeviceGetMemoryInfo(handle, memory); }
int nvmlDeviceGetTotalEccErrors(void *handle, int error, int counter, u64 *count) {
    (void)error, (void)counter;
    return number(gpu_of(handle), "ecc", count);
}
int nvmlDeviceGetClockInfo(void *handle, unsigned type, unsigned *mhz) {
    return count_of(gpu_of(handle), type == 1 ? "sm_clock" : type == 2 ? "memory_clock" : "graphics_clock", mhz);
}
int nvmlDeviceGetTotalEnergyConsumption(void *handle, u64 *millijoules) {
    return number(gpu_of(handle), "energy", millijoules);
}
int nvmlDeviceGetCurrentClocksEventReasons(void *handle, u64 *bits) {
    return number(gpu_of(handle), "clock_events", bits);
}
int nvmlDeviceGetCurrentClocksThrottleReasons(void *handle, u64 *bits) {
    return number(gpu_of(handle), "throttle_reasons", bits);
}
int nvmlDeviceGetRemappedRows(void *handle, unsigned *correctable, unsigned *uncorrectable, unsigned *pending,
                              unsigned *failed) {
    char value[TEXT_MAX];
    int said = ask(gpu_of(handle), "rows", value);
    if (said == SUCCESS) sscanf(value, "%u:%u:%u:%u", correctable, uncorrectable, pending, failed);
    return said;
}
/* The word of a GPU's links that is about one of them. */
static int link_of(void *handle, unsigned link, char *word) {
    char value[TEXT_MAX];
    int said = ask(gpu_of(handle), "links", value);
    if (said != SUCCESS) return said;
    char *next = strtok(value, " ");
    while (next && link--) next = strtok(NULL, " ");
    if (!next) return INVALID_ARGUMENT;
    strcpy(word, next);
    return word[0] == '!' ? atoi(word + 1) : SUCCESS;
}
int nvmlDeviceGetNvLinkState(void *handle, unsigned link, unsigned *active) {
    char word[TEXT_MAX];
    int said = link_of(handle, link, word);
    if (said == SUCCESS) *active = word[0] != '-';
    return said;
}
int nvmlDeviceGetNvLinkRemoteDeviceType(void *handle, unsigned link, unsigned *kind) {
    char word[TEXT_MAX];
    int said = link_of(handle, link, word);
    if (said == SUCCESS) *kind = (unsigned)atoi(word);
    return said;
}
int nvmlDeviceGetNvLinkRemotePciInfo_v2(void *handle, unsigned link, pci_info *info) {
    char word[TEXT_MAX];
    int said = link_of(handle, link, word);
    memset(info, 0, sizeof *info);
    if (said == SUCCESS) snprintf(info->bus_id, sizeof info->bus_id, "%s", strchr(word, ':') + 1);
    return said;
}

/* Events: of each GPU that is registered, the code of a sequence that wasn't told yet. */
enum { GPUS = 64 };
typedef struct { void *device; u64 type, code; unsigned gpu_instance, compute_instance; } event_data;
static int watched[GPUS];
static long told[GPUS];
static int xid_of(int gpu, long *sequence, unsigned *code, unsigned *instance) {
    char value[TEXT_MAX];
    *instance = ~0u;
    return ask(gpu, "xid", value) == SUCCESS && sscanf(value, "%ld:%u:%u", sequence, code, instance) >= 2;
}
int nvmlEventSetCreate(void **set) { *set = watched; return SUCCESS; }
int nvmlEventSetFree(void *set) { (void)set; return SUCCESS; }
int nvmlDeviceRegisterEvents(void *handle, u64 types, void *set) {
    int gpu = gpu_of(handle);
    unsigned code = 0, instance = 0;
    (void)types, (void)set;
    if (gpu < 0 || gpu >= GPUS) return INVALID_ARGUMENT;
    if (!xid_of(gpu, &told[gpu], &code, &instance)) told[gpu] = 0; /* what was before isn't told */
    watched[gpu] = 1;
    return SUCCESS;
}
int nvmlEventSetWait_v2(void *set, event_data *data, unsigned timeout_ms) {
    (void)set, (void)timeout_ms;
    for (int gpu = 0; gpu < GPUS; gpu++) {
        long sequence = 0;
        unsigned code = 0, instance = 0;
        if (!watched[gpu] || !xid_of(gpu, &sequence, &code, &instance) || sequence <= told[gpu]) continue;
        told[gpu] = sequence;
        *data = (event_data){(void *)(uintptr_t)(gpu + 1), 8, code, instance, ~0u};
        return SUCCESS;
    }
    return TIMEOUT;
}
#define UNSUPPORTED(name) int name(void) { return NOT_SUPPORTED; }
UNSUPPORTED(nvmlDeviceGetComputeMode)
UNSUPPORTED(nvmlDeviceGetCudaComputeCapability)
UNSUPPORTED(nvmlDeviceGetDecoderUtilization)
UNSUPPORTED(nvmlDeviceGetDisplayActive)
UNSUPPORTED(nvmlDeviceGetDriverModel)
UNSUPPORTED(nvmlDeviceGetDriverModel_v2)
UNSUPPORTED(nvmlDeviceGetEncoderUtilization)
UNSUPPORTED(nvmlDeviceGetFanSpeed)
UNSUPPORTED(nvmlDeviceGetMaxClockInfo)
UNSUPPORTED(nvmlDeviceGetPcieThroughput)
UNSUPPORTED(nvmlDeviceGetPerformanceState)
UNSUPPORTED(nvmlDeviceGetPersistenceMode)
UNSUPPORTED(nvmlDeviceGetPowerManagementLimit)
