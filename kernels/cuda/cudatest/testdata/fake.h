// A CUDA driver without a GPU: device memory is shared host memory, copies are executed
// when somebody asks for an event, and what a real driver would punish is counted.
#ifndef FAKE_CUDA_H
#define FAKE_CUDA_H
#define _GNU_SOURCE
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api.h"

enum {
	OK = 0, INVALID = 1, NO_MEMORY = 2, NOT_INITIALIZED = 3, NO_DEVICE = 101, BAD_CONTEXT = 201, ALREADY_MAPPED = 208,
	BAD_HANDLE = 400, NOT_FOUND = 500, NOT_READY = 600, ILLEGAL = 700, PEER_ENABLED = 704, PINNED_ALREADY = 712,
};
enum { DEVICES = 4, GRAIN = 2 << 20, MAX_PITCH = 0x7fffffff };

// What a test reads, and the holds, which it writes. The order is cudatest.Counts'.
struct counts {
	int64_t allocs, opens, phys, reserved, maps, streams, events, contexts, pins; // live
	int64_t violations;                                                                            // use of freed memory and the like
	int64_t slow;                                                                                  // copies of memory opened in another context
	int64_t strided, flat, batches, batched, sets, bytes;
	int64_t pinned, pageable; // copies between a GPU and host memory
	int64_t hold; // while not zero nothing progresses
	int64_t hold_pins, held_pins; // while the first is not zero no memory is pinned; calls that wait for it
};
extern struct counts fake_cuda;

struct context { int device, retained, peers, sticky; };
extern struct context contexts[DEVICES];
extern __thread struct context *current;
extern pthread_mutex_t lock;

enum kind { ALLOC, IPC, MAPPED, PINNED };
struct range {
	uintptr_t at;
	size_t size;
	enum kind kind;
	int device, fd, access; // access: bit for each device
	struct context *opened;
	struct phys *phys;
	unsigned char key[64];
	struct range *next;
};
extern struct range *ranges;

struct phys { size_t size; int device, fd, refs, imported; };

// fault is the error that the environment asks a call to fail with, else 0.
int fault(const char *call);
// enter is what every call begins with.
int enter(const char *call);
// touch finds whether all bytes from at on are live memory, and pending copies that use some.
int touch(uintptr_t at, size_t n, struct range **first);
int pending(uintptr_t at, size_t n);
// host looks at n bytes of host memory: INVALID when some are not mapped or are a GPU's.
int host(uintptr_t at, size_t n, int *pinned);
int device_count(void);
int version(void);
struct entry { const char *name; int since; void *f; };
extern struct entry memory_table[], stream_table[];

#define CALL(name) \
	pthread_mutex_lock(&lock); \
	int rc = enter(name); \
	if (!rc)
#define LEAVE \
	pthread_mutex_unlock(&lock); \
	return rc
#endif
