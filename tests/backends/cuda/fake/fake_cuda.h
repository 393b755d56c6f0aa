/* What both halves of the stand-in for CUDA share. See fake_driver.c. */
#include <stddef.h>

typedef void *Handle;
enum { KINDS = 6 };
enum Kind { DEVICE, PINNED, MODULE, STREAM, EVENT, GRAPH };

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
