/* A stand-in for NCCL (libnccl.so.2), on top of fake_driver.c: its "GPUs" are memory of processes, which
 * add up through a file that they share. A sum is computed at once, within the call. If another rank has
 * died, has aborted, adds something else, or lets it wait for FAKE_NCCL_PATIENCE milliseconds (for ever,
 * if that is not set), the stream hangs as on a GPU, until the communicator is aborted.
 *
 * FAKE_NCCL_FOLDER is where that file lies. Faults, from the environment; RANK says for whom:
 *   FAKE_NCCL_FAILS (NAME=CODE@RANK: this function fails), FAKE_NCCL_ABSENT (this rank never joins),
 *   FAKE_NCCL_ASYNC (COUNT@RANK: after so many sums, one hangs and its error comes asynchronously). */
#define _GNU_SOURCE
#include "fake_cuda.h"

#include <fcntl.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum { OK, UNHANDLED_CUDA, SYSTEM, INTERNAL, INVALID_ARGUMENT, INVALID_USAGE, REMOTE, IN_PROGRESS };
enum { ID_BYTES = 128, MOST_RANKS = 8, PIECE = 1 << 16, FLOAT32 = 7, SUM = 0 };
typedef struct { char text[ID_BYTES]; } Id;
typedef struct { size_t size; unsigned magic, version; int blocking; } Config;

/* What the ranks share. */
struct shared {
  atomic_int joined, gone[MOST_RANKS], pids[MOST_RANKS], gpus[MOST_RANKS];
  atomic_long came[MOST_RANKS], left[MOST_RANKS], sizes[MOST_RANKS];
  float room[MOST_RANKS][PIECE];
};
struct communicator {
  struct shared *shared;
  int rank, ranks, is_joined, is_slow, async_error;
  long sums, pieces;
  atomic_int is_aborted, is_inside;
};
static char last_error[256];

static int fails(const char *name, int rank) {
  const char *given = getenv("FAKE_NCCL_FAILS");
  char wanted[64];
  int code, at;
  if (!given || sscanf(given, "%63[^=]=%d@%d", wanted, &code, &at) != 3 || strcmp(wanted, name) || at != rank) return OK;
  snprintf(last_error, sizeof last_error, "as the test\nasked, in %s", name);
  return code;
}

/* A process that is there, and no zombie. */
static int lives(int pid) {
  char path[64], state = 'Z';
  snprintf(path, sizeof path, "/proc/%d/stat", pid);
  FILE *file = fopen(path, "r");
  if (!file) return 0;
  if (fscanf(file, "%*d (%*[^)]) %c", &state) != 1) state = 'Z';
  fclose(file);
  return state != 'Z';
}

int ncclGetVersion(int *version) { *version = 23203; return OK; }
const char *ncclGetErrorString(int code) { return code == OK ? "no error" : code == INVALID_USAGE ? "invalid usage" : "unhandled cuda error (run with NCCL_DEBUG=INFO for details)"; }
const char *ncclGetLastError(const void *communicator) { return last_error; }

int ncclGetUniqueId(Id *id) {
  int code = fails(__func__, 0);
  if (code) return code;
  memset(id, 7, sizeof *id);
  int length = snprintf(id->text, ID_BYTES - 1, "%s/nccl-XXXXXX", getenv("FAKE_NCCL_FOLDER"));
  if (length >= ID_BYTES - 1) return SYSTEM;
  int file = mkstemp(id->text);
  if (file < 0 || ftruncate(file, sizeof(struct shared))) return SYSTEM;
  return close(file), OK;
}

/* The communicator of a rank that has all others is there; the file has no name any more. */
static int joined(struct communicator *one) {
  struct shared *shared = one->shared;
  if (atomic_load(&shared->joined) < one->ranks) return IN_PROGRESS;
  for (int i = 0; i < one->ranks; i++)
    for (int j = 0; j < i; j++)
      if (shared->gpus[i] == shared->gpus[j]) {
        snprintf(last_error, sizeof last_error, "Duplicate GPU detected : rank %d and rank %d both on GPU %d", i, j, shared->gpus[i]);
        return INVALID_USAGE;
      }
  one->is_joined = 1;
  return OK;
}

int ncclCommInitRankConfig(struct communicator **made, int ranks, Id id, int rank, const Config *config) {
  int code = fake_enter(__func__, " %d of %d", rank, ranks) ? UNHANDLED_CUDA : fails(__func__, rank);
  if (code) return code;
  if (config->size < 20 || config->magic != 0xcafebeef || config->version < 21400 || config->blocking) return INVALID_ARGUMENT;
  if (rank < 0 || rank >= ranks || ranks > MOST_RANKS || id.text[ID_BYTES - 1] != 7) return INVALID_ARGUMENT;
  int file = open(id.text, O_RDWR);
  if (file < 0) return SYSTEM;
  struct communicator *one = fake_new(COMMUNICATOR, sizeof *one);
  memset(one, 0, sizeof *one);
  one->shared = mmap(NULL, sizeof(struct shared), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  close(file);
  if (one->shared == MAP_FAILED) return SYSTEM;
  one->rank = rank, one->ranks = ranks, *made = one;
  one->shared->pids[rank] = getpid(), one->shared->gpus[rank] = fake_gpu(), one->shared->sizes[rank] = 0;
  if (fake_setting("FAKE_NCCL_ABSENT", -1) == rank) return IN_PROGRESS;
  if (atomic_fetch_add(&one->shared->joined, 1) + 1 == ranks) unlink(id.text);
  return IN_PROGRESS;
}

static long now(void) { struct timespec at; clock_gettime(CLOCK_MONOTONIC, &at); return at.tv_sec * 1000 + at.tv_nsec / 1000000; }

/* Wait until a rank has come or left so often. 0: it never will. */
static int waited(struct communicator *one, atomic_long *count, int rank, long number) {
  long patience = fake_setting("FAKE_NCCL_PATIENCE", 0), end = now() + patience;
  for (long looks = 0; atomic_load(count) < number; looks++) {
    if (patience && now() > end) return 0;
    if (one->is_aborted || one->shared->gone[rank]) return 0;
    if (looks % 256 == 255 && !lives(one->shared->pids[rank]) && atomic_load(count) < number) return 0;
    if (looks < 1000) sched_yield(); else usleep(100);
  }
  return 1;
}

static int added(struct communicator *one, const float *from, float *to, size_t count, size_t size) {
  struct shared *shared = one->shared;
  int rank = one->rank;
  for (int i = 0; i < one->ranks; i++)
    if (!waited(one, &shared->left[i], i, one->pieces)) return 0;
  memcpy(shared->room[rank], from, count * sizeof *from);
  shared->sizes[rank] = size;
  one->pieces++;
  atomic_fetch_add(&shared->came[rank], 1);
  for (int i = 0; i < one->ranks; i++)
    if (!waited(one, &shared->came[i], i, one->pieces) || shared->sizes[i] != (long)size) return 0;
  for (size_t n = 0; n < count; n++) {
    float total = shared->room[0][n];
    for (int i = 1; i < one->ranks; i++) total += shared->room[i][n];
    to[n] = total;
  }
  atomic_fetch_add(&shared->left[rank], 1);
  return 1;
}

static int hangs(struct communicator *one) {
  long count;
  int rank;
  const char *given = getenv("FAKE_NCCL_ASYNC");
  if (!given || sscanf(given, "%ld@%d", &count, &rank) != 2 || rank != one->rank || one->sums < count) return 0;
  snprintf(last_error, sizeof last_error, "a link is down");
  return one->async_error = REMOTE;
}

int ncclAllReduce(const void *from, void *to, size_t count, int type, int operation, struct communicator *one, Handle stream) {
  int code = fake_enter(__func__, " %zu stream %d", count, stream != NULL) ? UNHANDLED_CUDA : fails(__func__, one->rank);
  if (code) return code;
  if (fake_capturing()) return fake_refuse(__func__);
  if (!one->is_joined || type != FLOAT32 || operation != SUM) return INVALID_USAGE;
  if (!fake_holds(DEVICE, from, 4 * count) || !fake_holds(DEVICE, to, 4 * count)) return INVALID_ARGUMENT;
  one->sums++;
  one->is_inside = 1;
  int is_whole = !fake_is_stuck() && !hangs(one);
  for (size_t done = 0; is_whole && done < count; done += PIECE) {
    size_t piece = count - done < PIECE ? count - done : PIECE;
    is_whole = added(one, (const float *)from + done, (float *)to + done, piece, count);
  }
  if (!is_whole && !one->is_aborted) fake_stick(1);
  one->is_inside = 0;
  one->is_slow = one->sums % 3 == 0 && !one->async_error; /* as though a connection were made behind the caller */
  return one->is_slow ? IN_PROGRESS : OK;
}

int ncclCommGetAsyncError(struct communicator *one, int *error) {
  *error = one->async_error;
  if (one->async_error) return OK;
  if (!one->is_joined) *error = joined(one);
  else if (one->is_slow) one->is_slow = 0, *error = IN_PROGRESS;
  return OK;
}

int ncclCommAbort(struct communicator *one) {
  one->is_aborted = 1;
  one->shared->gone[one->rank] = 1;
  while (one->is_inside) usleep(100);
  fake_stick(0);
  munmap(one->shared, sizeof(struct shared));
  return fake_delete(COMMUNICATOR, one) ? OK : INVALID_ARGUMENT;
}
