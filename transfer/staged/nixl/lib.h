#ifndef BATON_NIXL_LIB_H
#define BATON_NIXL_LIB_H

/* The library as the files of the shim share it. */

#include "shim.h"

#include <stdbool.h>

typedef void *handle; /* every object of the library */

enum { HOST_MEMORY = 0, READ = 0, LOCKED = 1 };

/* The settings of an agent as the library reads them. */
struct settings {
	bool progress, listen;
	int port;
	int sync;
	unsigned workers;
	uint64_t progress_us, listen_us;
	bool telemetry;
};

/* The functions that are needed, all of them. */
#define FUNCTIONS(F)                                                                                                   \
	F(bool, is_stub, (void))                                                                                       \
	F(int, create_configured_agent, (const char *, const struct settings *, handle *))                             \
	F(int, destroy_agent, (handle))                                                                                \
	F(int, get_plugin_params, (handle, const char *, handle *, handle *))                                          \
	F(int, mem_list_size, (handle, size_t *))                                                                      \
	F(int, mem_list_get, (handle, size_t, int *))                                                                  \
	F(int, destroy_mem_list, (handle))                                                                             \
	F(int, create_params, (handle *))                                                                              \
	F(int, params_add, (handle, const char *, const char *))                                                       \
	F(int, destroy_params, (handle))                                                                               \
	F(int, create_backend, (handle, const char *, handle, handle *))                                               \
	F(int, destroy_backend, (handle))                                                                              \
	F(int, create_opt_args, (handle *))                                                                            \
	F(int, opt_args_add_backend, (handle, handle))                                                                 \
	F(int, destroy_opt_args, (handle))                                                                             \
	F(int, create_reg_dlist, (int, handle *))                                                                      \
	F(int, reg_dlist_add_desc, (handle, uintptr_t, size_t, uint64_t, const void *, size_t))                        \
	F(int, destroy_reg_dlist, (handle))                                                                            \
	F(int, register_mem, (handle, handle, handle))                                                                 \
	F(int, get_local_md, (handle, void **, size_t *))                                                              \
	F(int, load_remote_md, (handle, const void *, size_t, char **))                                                \
	F(int, create_xfer_dlist, (int, handle *))                                                                     \
	F(int, xfer_dlist_add_desc, (handle, uintptr_t, size_t, uint64_t))                                             \
	F(int, destroy_xfer_dlist, (handle))                                                                           \
	F(int, prep_xfer_dlist, (handle, const char *, handle, handle *, handle))                                      \
	F(int, release_xfer_dlist_handle, (handle, handle))                                                            \
	F(int, make_xfer_req, (handle, int, handle, const int *, size_t, handle, const int *, size_t, handle *, handle)) \
	F(int, create_xfer_req, (handle, int, handle, handle, const char *, handle *, handle))                         \
	F(int, post_xfer_req, (handle, handle, handle))                                                                \
	F(int, get_xfer_status, (handle, handle))                                                                      \
	F(int, release_xfer_req, (handle, handle))                                                                     \
	F(int, destroy_xfer_req, (handle))

/* Functions that a release may lack: what they do is done without them, later or dearer. */
#define OPTIONAL(F) F(int, agent_make_connection, (handle, const char *, handle))

struct nx_lib {
#define FIELD(RETURN, NAME, ARGS) RETURN(*NAME) ARGS;
	FUNCTIONS(FIELD)
	OPTIONAL(FIELD)
#undef FIELD
};

struct nx_agent {
	struct nx_lib *lib;
	handle agent, backend, opt;
	handle local, remote; /* prepared lists of chunks */
	struct nx_chunks own, peer;
	int64_t whole; /* bytes of a read that has its descriptors prepared */
	char *name; /* of the peer's agent */
};

/* Posts the request of a read if it was made, with status, and says in the read how that went. */
void nx_post(struct nx_agent *a, struct nx_read *r, int status, handle req);

#endif
