/* Runs a compiled kernel once: `program INPUT OUTPUT`.
 *
 * INPUT holds for each tensor five int32 (DLPack's type code, bits and lanes; dimensions; padding),
 * the shape as int64, and the data; OUTPUT gets the data of all of them as the kernel left it.
 * It stands in for TVM's runtime: each of the kernel's parallel tasks is a thread.
 */
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <tvm/ffi/c_api.h>

#define MOST 32
#define TASKS 3

typedef struct {
  void* sync;
  int32_t num_task;
} ParallelGroup;
typedef int (*Task)(int task_id, ParallelGroup* group, void* data);

int __tvm_ffi_k(void* self, const TVMFFIAny* args, int32_t num_args, TVMFFIAny* result);

typedef struct {
  Task task;
  void* data;
  ParallelGroup* group;
  int id, failed;
} Thread;

static void* run(void* one) {
  Thread* thread = one;
  thread->failed = thread->task(thread->id, thread->group, thread->data);
  return NULL;
}

static int launch(Task task, void* data, int num_task) {
  pthread_barrier_t barrier;
  ParallelGroup group = {&barrier, num_task == 0 ? TASKS : num_task};
  Thread threads[MOST];
  pthread_t ids[MOST];
  int failed = 0;
  if (group.num_task > MOST || pthread_barrier_init(&barrier, NULL, group.num_task)) exit(5);
  for (int i = 0; i < group.num_task; ++i) {
    threads[i] = (Thread){task, data, &group, i, 0};
    if (pthread_create(&ids[i], NULL, run, &threads[i])) exit(5);
  }
  for (int i = 0; i < group.num_task; ++i) {
    pthread_join(ids[i], NULL);
    failed |= threads[i].failed;
  }
  pthread_barrier_destroy(&barrier);
  return failed;
}

static int meet(int task_id, ParallelGroup* group) {
  pthread_barrier_wait(group->sync);
  return 0;
}

static void* allocate(int type, int id, uint64_t size, int code, int bits) {
  return aligned_alloc(64, (size + 63) / 64 * 64);
}

static int release(int type, int id, void* data) {
  free(data);
  return 0;
}

/* A module calls these through pointers, which the runtime sets when it loads the module. */
int (*__TVMBackendParallelLaunch)(Task task, void* data, int num_task) = launch;
int (*__TVMBackendParallelBarrier)(int task_id, ParallelGroup* group) = meet;
void* (*__TVMBackendAllocWorkspace)(int type, int id, uint64_t size, int code, int bits) = allocate;
int (*__TVMBackendFreeWorkspace)(int type, int id, void* data) = release;

void TVMFFIErrorSetRaisedFromCStrParts(const char* kind, const char** parts, int32_t count) {
  fprintf(stderr, "%s: ", kind);
  for (int i = 0; i < count; ++i) fputs(parts[i] ? parts[i] : "", stderr);
  fputc('\n', stderr);
}

void TVMFFIErrorSetRaisedFromCStr(const char* kind, const char* message) {
  TVMFFIErrorSetRaisedFromCStrParts(kind, &message, 1);
}

static void take(void* into, size_t size, FILE* file) {
  if (fread(into, 1, size, file) != size) exit(3);
}

static size_t size_of(const DLTensor* tensor) {
  size_t size = tensor->dtype.bits / 8;
  for (int i = 0; i < tensor->ndim; ++i) size *= tensor->shape[i];
  return size;
}

int main(int argc, char** argv) {
  static DLTensor tensors[MOST];
  static TVMFFIAny args[MOST];
  TVMFFIAny result = {0};
  int32_t head[5], count = 0;
  FILE* input = argc == 3 ? fopen(argv[1], "rb") : NULL;
  if (!input) return 2;
  for (; count < MOST && fread(head, sizeof(head), 1, input) == 1; ++count) {
    DLTensor* tensor = &tensors[count];
    tensor->dtype = (DLDataType){head[0], head[1], head[2]};
    tensor->ndim = head[3];
    tensor->device = (DLDevice){kDLCPU, 0};
    tensor->shape = calloc(head[3] + 1, sizeof(int64_t));
    take(tensor->shape, head[3] * sizeof(int64_t), input);
    tensor->data = aligned_alloc(64, (size_of(tensor) + 127) / 64 * 64);
    take(tensor->data, size_of(tensor), input);
    args[count].type_index = kTVMFFIDLTensorPtr;
    args[count].v_ptr = tensor;
  }
  if (__tvm_ffi_k(NULL, args, count, &result)) return 1;
  FILE* output = fopen(argv[2], "wb");
  for (int i = 0; output && i < count; ++i) {
    fwrite(tensors[i].data, 1, size_of(&tensors[i]), output);
  }
  return output && fclose(output) == 0 ? 0 : 4;
}
