/* A stand-in for NVIDIA's driver (libcuda.so.1): it takes memory from the host, and knows what is
 * alive. Every call is counted and logged, and any of them can be made to fail. It computes nothing,
 * but for kernels that `fake_emulate` was given for the CPU.
 *
 * Settings come from the environment, when a call needs them:
 *   FAKE_CUDA_VERSION (13000), FAKE_CUDA_GPUS (1; CUDA_VISIBLE_DEVICES chooses among them),
 *   FAKE_CUDA_CAPABILITY (90),
 *   FAKE_CUDA_MEMORY (bytes of a GPU), FAKE_CUDA_FAILS (NAME=CODE: this function always fails).
 * Own functions for tests begin with fake_. */
#define _GNU_SOURCE
#include "fake_cuda.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { OUT_OF_MEMORY = 2, NOT_FOUND = 500, NO_BINARY = 209, INVALID_VALUE = 1, INVALID_IMAGE = 200, NOT_SUPPORTED = 801 };
enum { MOST = 4096, LOG = 1 << 20 };

enum { ALIGNMENT = 256, SYSTEM_PAGE = 4096 };

static struct { enum Kind kind; char *start; size_t size; } objects[MOST];
static size_t used, log_size;
static long calls, fails_at, lost_at, alive[KINDS];
static int fails_with;
static char log_text[LOG], failed_name[64];

long fake_setting(const char *name, long otherwise) {
  const char *text = getenv(name);
  return text ? strtol(text, NULL, 10) : otherwise;
}

/* The n-th call from now on fails with a code; 0: none does. */
void fake_fail_at(long n, int code) { fails_at = n ? calls + n : 0, fails_with = code; failed_name[0] = 0; }
/* From the n-th call on, all fail, as after an illegal access of a kernel; 0: none does. */
void fake_lose_at(long n) { lost_at = n ? calls + n : 0; }
const char *fake_failed(void) { return failed_name; }
long fake_calls(void) { return calls; }
long fake_alive(int kind) { return alive[kind]; }
const char *fake_log(void) { return log_text; }
void fake_clear_log(void) { log_text[0] = 0, log_size = 0; }

int fake_enter(const char *name, const char *format, ...) {
  size_t at = log_size;
  va_list more;
  if (at < LOG - 1024) {
    at += snprintf(log_text + at, 512, "%s", name);
    va_start(more, format);
    at += vsnprintf(log_text + at, 500, format, more);
    va_end(more);
    strcpy(log_text + at, "\n");
    log_size = at + 1;
  }
  const char *always = getenv("FAKE_CUDA_FAILS");
  size_t length = strlen(name);
  if (always && !strncmp(always, name, length) && always[length] == '=') return atoi(always + length + 1);
  calls++;
  int lost = lost_at && calls >= lost_at;
  if (!lost && calls != fails_at) return 0;
  if (!failed_name[0]) strncpy(failed_name, name, sizeof failed_name - 1);
  return lost ? 719 : fails_with; /* cudaErrorLaunchFailure */
}

size_t fake_total_memory(void) { return fake_setting("FAKE_CUDA_MEMORY", 1L << 30); }
size_t fake_free_memory(void) { return fake_total_memory() - used; }

/* The page behind the memory can be neither read nor written. */
static size_t pages(size_t size) { return (size + SYSTEM_PAGE - 1) / SYSTEM_PAGE * SYSTEM_PAGE; }
static size_t aligned(size_t size) { return (size + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT; }
static char *take(size_t size) {
  char *found = mmap(NULL, pages(size) + SYSTEM_PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (found == MAP_FAILED) abort();
  mprotect(found + pages(size), SYSTEM_PAGE, PROT_NONE);
  memset(found, 0xFF, pages(size)); /* no number, and no index */
  return found + pages(size) - aligned(size);
}
static void give_back(char *start, size_t size) {
  munmap(start + aligned(size) - pages(size), pages(size) + SYSTEM_PAGE);
}

Handle fake_new(enum Kind kind, size_t size) {
  if (kind == DEVICE && size > fake_free_memory()) return NULL;
  for (int i = 0; i < MOST; i++) {
    if (objects[i].start) continue;
    objects[i].kind = kind, objects[i].size = size;
    objects[i].start = take(size);
    if (kind == DEVICE) used += size;
    alive[kind]++;
    return objects[i].start;
  }
  return NULL;
}

int fake_delete(enum Kind kind, Handle object) {
  for (int i = 0; i < MOST; i++) {
    if (!object || objects[i].start != object || objects[i].kind != kind) continue;
    if (kind == DEVICE) used -= objects[i].size;
    give_back(objects[i].start, objects[i].size);
    objects[i].start = NULL;
    alive[kind]--;
    return 1;
  }
  return 0;
}

int fake_holds(enum Kind kind, const void *start, size_t size) {
  const char *from = start;
  for (int i = 0; i < MOST; i++)
    if (objects[i].start && objects[i].kind == kind && from >= objects[i].start &&
        from + size <= objects[i].start + objects[i].size)
      return 1;
  return 0;
}

#define CALL(...) do { int code = fake_enter(__func__, __VA_ARGS__); if (code) return code; } while (0)

/* How many GPUs this process sees, and which one of the machine's is the first. */
static int gpus(int *first) {
  const char *text = getenv("CUDA_VISIBLE_DEVICES");
  long all = fake_setting("FAKE_CUDA_GPUS", 1), count = 0;
  *first = 0;
  if (!text) return all;
  for (char *end; ; text = end + 1, count++) {
    long number = strtol(text, &end, 10);
    if (end == text || number >= all) return count;
    if (!count) *first = number;
    if (*end != ',') return count + 1;
  }
}
int fake_gpu(void) { int first; gpus(&first); return first; }
static int gpu_count(void) { int first; return gpus(&first); }

static volatile int stuck;
void fake_stick(int is_stuck) { stuck = is_stuck; }
int fake_is_stuck(void) { return stuck; }
void fake_wait(void) { while (stuck) usleep(1000); }

int cuInit(unsigned flags) { CALL(" %u", flags); return gpu_count() ? 0 : 100; }
int cuDriverGetVersion(int *version) { CALL(""); *version = fake_setting("FAKE_CUDA_VERSION", 13000); return 0; }
int cuDeviceGetCount(int *count) { CALL(""); *count = gpu_count(); return 0; }
int cuDeviceGet(int *device, int index) { CALL(" %d", index); *device = index; return 0; }
int cuDeviceGetName(char *name, int length, int device) { CALL(" %d", device); snprintf(name, length, "Fake GPU"); return 0; }
int cuDeviceTotalMem_v2(size_t *bytes, int device) { CALL(" %d", device); *bytes = fake_total_memory(); return 0; }
int cuDeviceGetAttribute(int *value, int attribute, int device) {
  CALL(" %d %d", attribute, device);
  long capability = fake_setting("FAKE_CUDA_CAPABILITY", 90);
  *value = attribute == 75 ? capability / 10 : attribute == 76 ? capability % 10 : 0;
  return 0;
}
static long contexts;
long fake_contexts(void) { return contexts; }
int cuDevicePrimaryCtxRetain(Handle *context, int device) { CALL(" %d", device); contexts++; *context = &contexts; return 0; }
int cuDevicePrimaryCtxRelease_v2(int device) { contexts--; CALL(" %d", device); return 0; }
int cuCtxPushCurrent_v2(Handle context) { CALL(""); return 0; }
int cuCtxPopCurrent_v2(Handle *context) { CALL(""); return 0; }
int cuMemGetInfo_v2(size_t *free_bytes, size_t *total) { CALL(""); *free_bytes = fake_free_memory(); *total = fake_total_memory(); return 0; }

int cuGetErrorName(int code, const char **name) { *name = code == OUT_OF_MEMORY ? "CUDA_ERROR_OUT_OF_MEMORY" : "CUDA_ERROR_FAKE"; return 0; }
int cuGetErrorString(int code, const char **text) { *text = code == OUT_OF_MEMORY ? "out of memory" : "as the test asked"; return 0; }

/* A module is made of an image that must be an ELF file for this GPU. Behind the first 64 bytes it may
 * name a library with functions emulated_NAME(grid, block, arguments), which compute its kernels;
 * byte 60 is 1 then. The module keeps what dlopen gave. */
int cuModuleLoadData(Handle *module, const void *image) {
  const unsigned char *bytes = image;
  CALL(" %02x%c%c%c", bytes[0], bytes[1], bytes[2], bytes[3]);
  if (fake_capturing()) return fake_refuse(__func__);
  if (memcmp(bytes, "\177ELF", 4)) return INVALID_IMAGE;
  long made_for = bytes[49], capability = fake_setting("FAKE_CUDA_CAPABILITY", 90); /* of e_flags */
  if (made_for / 10 != capability / 10 || made_for > capability) return NO_BINARY;
  void *kernels = bytes[60] == 1 ? dlopen((const char *)bytes + 64, RTLD_NOW | RTLD_LOCAL) : NULL;
  if (bytes[60] == 1 && !kernels) return INVALID_IMAGE;
  *module = fake_new(MODULE, 64);
  *(void **)*module = kernels;
  return 0;
}
struct function { Handle module; char name[128]; };
static struct function table[1024];
int cuModuleUnload(Handle module) {
  void *kernels = fake_holds(MODULE, module, 1) ? *(void **)module : NULL;
  int known = fake_delete(MODULE, module);
  if (kernels) dlclose(kernels);
  for (int i = 0; i < 1024; i++) if (table[i].module == module) table[i].module = NULL;
  CALL("");
  return known ? 0 : INVALID_VALUE;
}
int cuModuleGetFunction(Handle *function, Handle module, const char *name) {
  CALL(" %s", name);
  if (!fake_holds(MODULE, module, 1)) return INVALID_VALUE;
  struct function *unused = NULL;
  for (int i = 0; i < 1024; i++) {
    if (!table[i].module) { if (!unused) unused = &table[i]; continue; }
    if (table[i].module == module && !strcmp(table[i].name, name)) { *function = &table[i]; return 0; }
  }
  if (!unused) return NOT_FOUND;
  unused->module = module, strncpy(unused->name, name, sizeof unused->name - 1);
  *function = unused;
  return 0;
}
int cuFuncSetAttribute(Handle function, int attribute, int value) { CALL(" %s %d=%d", ((struct function *)function)->name, attribute, value); return 0; }
int cuTensorMapEncodeTiled(void) { CALL(""); return 0; }

/* The library that computes kernels whose module names none; NULL: nothing computes them. */
static void *emulated;
void fake_emulate(void *library) { emulated = library; }

/* Capture belongs to a thread, as with cudaStreamCaptureModeThreadLocal. */
static __thread Handle captured_stream;
static __thread int is_refused;
static __thread struct node *nodes;
static __thread int node_count;
int fake_capturing(void) { return captured_stream != NULL; }
int fake_captured(Handle stream) { return stream && stream == captured_stream; }
void fake_begin_capture(Handle stream) { captured_stream = stream, is_refused = 0, nodes = NULL, node_count = 0; }
/* The nodes, or NULL if something was refused; their number. */
struct node *fake_end_capture(int *count) {
  struct node *found = nodes ? nodes : malloc(1);
  captured_stream = NULL, nodes = NULL, *count = node_count;
  if (!is_refused) return found;
  free(found);
  return NULL;
}
void fake_record(const struct node *node) {
  nodes = realloc(nodes, (node_count + 1) * sizeof *nodes);
  nodes[node_count++] = *node;
}
/* Kernels of several threads run one after the other: the emulator has one GPU. */
static pthread_mutex_t computing = PTHREAD_MUTEX_INITIALIZER;
int fake_compute(const struct node *node, void **arguments) {
  pthread_mutex_lock(&computing);
  int code = node->compute(node->grid, node->block, arguments);
  pthread_mutex_unlock(&computing);
  return code;
}
int fake_refuse(const char *name) {
  fake_enter("IN CAPTURE: ", "%s", name);
  is_refused = 1;
  return 900; /* cudaErrorStreamCaptureUnsupported */
}

/* CUlaunchAttribute; 6 is CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION. FAKE_CUDA_EARLY=0: a
 * driver that refuses it. */
struct attribute { int id, unused; union { int number; char bytes[64]; } value; };
struct config { unsigned grid[3], block[3], shared; Handle stream; const struct attribute *attributes; unsigned count; };
enum { EARLY = 6 };
/* The only attribute that a launch may have. */
static int is_early(const struct config *c) {
  if (c->count > 1 || (c->count && c->attributes[0].id != EARLY)) abort();
  return c->count && c->attributes[0].value.number;
}
int cuLaunchKernelEx(const struct config *c, Handle function, void **arguments, void **extra) {
  const char *name = ((struct function *)function)->name;
  CALL(" %s grid %u,%u,%u block %u,%u,%u shared %u stream %d early %d", name,
       c->grid[0], c->grid[1], c->grid[2], c->block[0], c->block[1], c->block[2], c->shared, c->stream != NULL, is_early(c));
  if (is_early(c) && !fake_setting("FAKE_CUDA_EARLY", 1)) return NOT_SUPPORTED;
  for (int i = 0; i < 3; i++) if (!c->grid[i] || !c->block[i]) return INVALID_VALUE;
  if (fake_capturing() && !fake_captured(c->stream)) return fake_refuse("a launch on another stream");
  void *of_module = *(void **)((struct function *)function)->module, *kernels = of_module ? of_module : emulated;
  struct node node = {0};
  if (kernels) {
    char symbol[160];
    snprintf(symbol, sizeof symbol, "emulated_%s", name);
    node.compute = (Compute)dlsym(kernels, symbol);
    if (!node.compute) return NOT_FOUND;
  }
  memcpy(node.grid, c->grid, sizeof node.grid), memcpy(node.block, c->block, sizeof node.block);
  if (fake_is_stuck()) return 0;
  if (!fake_captured(c->stream)) return node.compute ? fake_compute(&node, arguments) : 0;
  if (node.compute) {
    char symbol[160];
    snprintf(symbol, sizeof symbol, "arguments_%s", name);
    const unsigned *count = dlsym(kernels, symbol);
    if (!count || *count > MOST_ARGUMENTS) return NOT_FOUND;
    node.count = *count;
    for (unsigned i = 0; i < *count; i++) memcpy(&node.values[i], arguments[i], 8);
  }
  fake_record(&node);
  return 0;
}
