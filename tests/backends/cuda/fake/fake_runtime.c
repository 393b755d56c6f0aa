/* A stand-in for the CUDA runtime (libcudart.so.13), on top of fake_driver.c. Copies happen at
 * once. An asynchronous copy between the GPU and memory of the host that is not pinned says so in
 * the log. While a stream is captured, what comes on it is recorded and not done, and whatever must
 * not come then is refused, says so in the log, and costs the graph. */
#include "fake_cuda.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { OK = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, INVALID_HANDLE = 400, INVALIDATED = 901 };
static int device;
void fake_begin_capture(Handle stream);
struct node *fake_end_capture(int *count);

#define CALL(...) do { int code = fake_enter(__func__, __VA_ARGS__); if (code) return code; } while (0)
#define NOT_IN_CAPTURE do { if (fake_capturing()) return fake_refuse(__func__); } while (0)

int cudaGetDeviceCount(int *count) { CALL(""); *count = fake_setting("FAKE_CUDA_GPUS", 1); return OK; }
int cudaGetDevice(int *index) { CALL(""); *index = device; return OK; }
int cudaSetDevice(int index) { CALL(" %d", index); device = index; return OK; }
int cudaMemGetInfo(size_t *free_bytes, size_t *total) { CALL(""); *free_bytes = fake_free_memory(); *total = fake_total_memory(); return OK; }
const char *cudaGetErrorName(int code) { return code == OUT_OF_MEMORY ? "cudaErrorMemoryAllocation" : "cudaErrorFake"; }
const char *cudaGetErrorString(int code) { return code == OUT_OF_MEMORY ? "out of memory" : "as the test asked"; }
int cudaGetLastError(void) { return OK; }
int cudaPeekAtLastError(void) { return OK; }

static int take(enum Kind kind, Handle *start, size_t size) {
  *start = NULL;
  if (!size) return OK;
  *start = fake_new(kind, size);
  return *start ? OK : OUT_OF_MEMORY;
}
int cudaMalloc(Handle *start, size_t size) { CALL(" %zu", size); NOT_IN_CAPTURE; return take(DEVICE, start, size); }
int cudaMallocHost(Handle *start, size_t size) { CALL(" %zu", size); NOT_IN_CAPTURE; return take(PINNED, start, size); }
/* What frees has freed even where it fails: a program can do nothing more about it. */
int cudaFree(Handle start) { NOT_IN_CAPTURE; fake_wait(); int known = !start || fake_delete(DEVICE, start); CALL(""); return known ? OK : INVALID_VALUE; }
int cudaFreeHost(Handle start) { NOT_IN_CAPTURE; int known = !start || fake_delete(PINNED, start); CALL(""); return known ? OK : INVALID_VALUE; }

static const char *place(const void *start, size_t size) {
  if (fake_holds(DEVICE, start, size)) return "device";
  return fake_holds(PINNED, start, size) ? "pinned" : "pageable";
}
int cudaMemcpyAsync(void *to, const void *from, size_t size, int kind, Handle stream) {
  CALL(" %zu %s to %s stream %d", size, place(from, size), place(to, size), stream != NULL);
  int device_to = kind == 1 || kind == 3, device_from = kind == 2 || kind == 3;
  if (device_to != fake_holds(DEVICE, to, size) || device_from != fake_holds(DEVICE, from, size)) return INVALID_VALUE;
  if (fake_captured(stream)) {
    if (place(from, size)[1] == 'a' || place(to, size)[1] == 'a') return fake_refuse("a copy of pageable memory");
    struct node node = {.to = to, .from = from, .size = size};
    fake_record(&node);
    return OK;
  }
  NOT_IN_CAPTURE;
  if (!fake_is_stuck()) memcpy(to, from, size);
  return OK;
}
int cudaMemcpyPeerAsync(void *to, int a, const void *from, int b, size_t size, Handle stream) { CALL(" %zu", size); memcpy(to, from, size); return OK; }
int cudaMemsetAsync(void *to, int value, size_t size, Handle stream) {
  CALL(" %zu %d", size, value);
  if (!fake_holds(DEVICE, to, size)) return INVALID_VALUE;
  struct node node = {.to = to, .size = size, .value = value};
  if (fake_captured(stream)) return fake_record(&node), OK;
  NOT_IN_CAPTURE;
  if (!fake_is_stuck()) memset(to, value, size);
  return OK;
}

int cudaStreamCreateWithFlags(Handle *stream, unsigned flags) { CALL(" %u", flags); return take(STREAM, stream, 8); }
int cudaStreamCreate(Handle *stream) { CALL(""); return take(STREAM, stream, 8); }
int cudaStreamDestroy(Handle stream) { int known = fake_delete(STREAM, stream); CALL(""); return known ? OK : INVALID_HANDLE; }
int cudaStreamSynchronize(Handle stream) { CALL(" stream %d", stream != NULL); NOT_IN_CAPTURE; fake_wait(); return OK; }
int cudaStreamWaitEvent(Handle stream, Handle event, unsigned flags) { CALL(""); return OK; }
int cudaEventCreate(Handle *event) { CALL(""); return take(EVENT, event, 8); }
int cudaEventCreateWithFlags(Handle *event, unsigned flags) { CALL(" %u", flags); return take(EVENT, event, 8); }
int cudaEventDestroy(Handle event) { int known = fake_delete(EVENT, event); CALL(""); return known ? OK : INVALID_HANDLE; }
int cudaEventRecord(Handle event, Handle stream) { CALL(""); NOT_IN_CAPTURE; return OK; }
int cudaEventSynchronize(Handle event) { CALL(""); NOT_IN_CAPTURE; fake_wait(); return OK; }
int cudaEventElapsedTime(float *milliseconds, Handle from, Handle to) { CALL(""); *milliseconds = 1; return OK; }

struct graph { struct node *nodes; int count; };
static Handle new_graph(struct node *nodes, int count) {
  struct graph *graph = fake_new(GRAPH, sizeof *graph);
  if (graph) graph->nodes = nodes, graph->count = count;
  return graph;
}
static int delete_graph(Handle graph) {
  if (!fake_holds(GRAPH, graph, sizeof(struct graph))) return 0;
  free(((struct graph *)graph)->nodes);
  return fake_delete(GRAPH, graph);
}
static struct node *copied(const struct graph *graph) {
  size_t size = graph->count * sizeof *graph->nodes;
  return memcpy(malloc(size + 1), graph->nodes, size);
}

int cudaStreamBeginCapture(Handle stream, int mode) {
  CALL(" %d", mode);
  if (!stream) return 900; /* the default stream cannot be captured */
  NOT_IN_CAPTURE;
  fake_begin_capture(stream);
  return OK;
}
int cudaStreamEndCapture(Handle stream, Handle *graph) {
  int count, captured = fake_captured(stream);
  struct node *nodes = captured ? fake_end_capture(&count) : NULL;
  *graph = NULL;
  int code = fake_enter(__func__, " of %d nodes", nodes ? count : 0);
  if (code || !nodes) return free(nodes), code ? code : INVALIDATED;
  *graph = new_graph(nodes, count);
  return *graph ? OK : OUT_OF_MEMORY;
}
int cudaGraphInstantiate(Handle *ready, Handle graph, unsigned long long flags) {
  CALL("");
  NOT_IN_CAPTURE;
  if (!fake_holds(GRAPH, graph, sizeof(struct graph))) return INVALID_HANDLE;
  *ready = new_graph(copied(graph), ((struct graph *)graph)->count);
  return *ready ? OK : OUT_OF_MEMORY;
}
int cudaGraphLaunch(Handle handle, Handle stream) {
  CALL("");
  NOT_IN_CAPTURE;
  struct graph *graph = handle;
  if (!fake_holds(GRAPH, graph, sizeof *graph)) return INVALID_HANDLE;
  for (struct node *node = graph->nodes; node < graph->nodes + graph->count; node++) {
    void *arguments[MOST_ARGUMENTS];
    for (unsigned i = 0; i < node->count; i++) arguments[i] = &node->values[i];
    if (node->compute) { int failed = fake_compute(node, arguments); if (failed) return failed; }
    if (node->to && !fake_holds(DEVICE, node->to, node->size) && !fake_holds(PINNED, node->to, node->size)) return INVALID_VALUE;
    if (node->to && node->from) memcpy(node->to, node->from, node->size);
    if (node->to && !node->from) memset(node->to, node->value, node->size);
  }
  return OK;
}
int cudaGraphDestroy(Handle graph) { int known = delete_graph(graph); CALL(""); return known ? OK : INVALID_HANDLE; }
int cudaGraphExecDestroy(Handle graph) { int known = delete_graph(graph); CALL(""); return known ? OK : INVALID_HANDLE; }

/* cudaDevAttr: 10 warp, 1 threads of a block, 8 shared memory, 16 multiprocessors, 75 and 76
 * capability; the rest only has to be some number. */
int cudaDeviceGetAttribute(int *value, int attribute, int index) {
  CALL(" %d", attribute);
  long capability = fake_setting("FAKE_CUDA_CAPABILITY", 90);
  switch (attribute) {
    case 10: *value = 32; break;
    case 8: *value = 49152; break;
    case 16: *value = 132; break;
    case 75: *value = capability / 10; break;
    case 76: *value = capability % 10; break;
    default: *value = 1024;
  }
  return OK;
}
int cudaGetDeviceProperties(void *properties, int index) { CALL(""); strcpy(properties, "Fake GPU"); return OK; }
