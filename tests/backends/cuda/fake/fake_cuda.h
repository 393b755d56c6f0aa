/* What both halves of the stand-in for CUDA share. See fake_driver.c. */
#include <stddef.h>

typedef void *Handle;
enum { KINDS = 7 };
enum Kind { DEVICE, PINNED, MODULE, STREAM, EVENT, GRAPH, COMMUNICATOR };

/* Counts and logs a call. Not 0: the call fails with this code, as a test has asked for. */
int fake_enter(const char *name, const char *format, ...);
/* A new object of so many bytes, or NULL if there is no room for it. */
Handle fake_new(enum Kind kind, size_t size);
/* Forgets an object; 0 if there is none of this kind. */
int fake_delete(enum Kind kind, Handle object);
/* Whether so many bytes from an address on lie in one living object of a kind. */
int fake_holds(enum Kind kind, const void *start, size_t size);
size_t fake_free_memory(void);
size_t fake_total_memory(void);
long fake_setting(const char *name, long otherwise);

/* The number that GPU 0 of this process has on the machine. */
int fake_gpu(void);
/* The GPU waits for something that does not come: all that is given to it meanwhile is not done, and
 * who waits for it waits. */
void fake_stick(int is_stuck);
int fake_is_stuck(void);
void fake_wait(void);

/* A node of a graph: a kernel, a copy (`from`) or a fill. Values are those at the time of capture. */
enum { MOST_ARGUMENTS = 64 };
typedef int (*Compute)(const unsigned *grid, const unsigned *block, void **arguments);
struct node {
  Compute compute;
  unsigned grid[3], block[3], count;
  unsigned long long values[MOST_ARGUMENTS];
  void *to;
  const void *from;
  size_t size;
  int value;
};
/* Whether this stream is captured; and, if not, whether this thread captures another one. */
int fake_captured(Handle stream);
int fake_capturing(void);
/* Adds a node to what is captured. */
void fake_record(const struct node *node);
/* Computes a kernel. */
int fake_compute(const struct node *node, void **arguments);
/* A call that must not come in capture: the graph will not be made. The code of the error. */
int fake_refuse(const char *name);
