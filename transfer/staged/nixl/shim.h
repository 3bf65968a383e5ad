#ifndef BATON_NIXL_SHIM_H
#define BATON_NIXL_SHIM_H

#include <stddef.h>
#include <stdint.h>

/* Why a call failed, beside the library's own statuses, which are >= -99. */
enum {
	NX_NO_LIBRARY = -100, /* the loader refuses the file */
	NX_NO_SYMBOL = -101,  /* it lacks functions */
	NX_STUB = -102,       /* it is the stand-in that does nothing */
	NX_NO_BACKEND = -103, /* the backend cannot be had here, or knows no host memory */
	NX_METADATA = -104,   /* the peer's metadata are of no use */
	NX_MEMORY = -105,     /* malloc */
};

/* Statuses of a read. */
enum { NX_DONE = 0, NX_BUSY = 1 };

struct nx_lib;   /* the table of functions; lives as long as the process */
struct nx_agent; /* one agent, its backend, its registered memory, its prepared lists */

/* Opens the library at an absolute path without symbolic links. why gets a reason. */
int nx_open(const char *path, struct nx_lib **out, char *why, size_t n);

/* Makes an agent over bytes of host memory from addr. params is key, value, key, value,
 * each ending with a NUL, and an empty key. serves: peers read from it. One thread at a time uses an agent. */
int nx_agent_new(struct nx_lib *lib, const char *name, const char *backend, const char *params, int serves, uint64_t addr,
		 uint64_t bytes, struct nx_agent **out, char *why, size_t n);

/* What a peer needs to read the agent's memory; the caller frees data. */
int nx_agent_metadata(struct nx_agent *a, void **data, size_t *len, char *why, size_t n);

/* Memory cut into chunks. */
struct nx_chunks {
	uint64_t addr;
	int64_t bytes; /* of each */
	int32_t count;
};

/* Takes the metadata of the peer agent name, and prepares the chunks of both sides. The
 * smaller ones say how much one read brings. */
int nx_agent_connect(struct nx_agent *a, const char *name, const void *data, size_t len, struct nx_chunks own,
		     struct nx_chunks peer, char *why, size_t n);

/* One read of the first bytes of a chunk of the peer into an own one. Layout equals read in Go. */
struct nx_read {
	int64_t bytes;
	uint64_t req;          /* the library's; 0: none */
	int32_t local, remote; /* chunks */
	int32_t status;        /* NX_DONE, NX_BUSY, or how it failed */
	int32_t posted;        /* the memory may have been touched */
};

/* Starts reads in order, for some 500 us but one at least: a post may do the whole copy.
 * Returns how many were started, or failed to. */
int32_t nx_agent_start(struct nx_agent *a, struct nx_read *r, int32_t n);

/* Starts one read of the first count chunks, a descriptor for each, as r. A post may do the
 * whole copy, however long that takes. */
void nx_agent_start_rows(struct nx_agent *a, struct nx_read *r, int32_t count);

/* Asks after the reads that are NX_BUSY until one has ended, for wait_us at most. Returns
 * how many have ended, and forgets their requests. */
int32_t nx_agent_wait(struct nx_agent *a, struct nx_read *r, int32_t n, int32_t wait_us);

/* Ends the agent with all that it has in hand: the n reads too. Nothing reads or writes
 * its memory for it any more when it returns. */
void nx_agent_end(struct nx_agent *a, struct nx_read *r, int32_t n);

#endif
