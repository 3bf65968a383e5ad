#include "lib.h"

#include <stdlib.h>

void nx_agent_start_rows(struct nx_agent *a, struct nx_read *r, int32_t count)
{
	handle req = NULL;
	int *chunks = malloc((size_t)count * sizeof *chunks);
	r->status = NX_MEMORY;
	if (!chunks)
		return;
	for (int32_t i = 0; i < count; i++)
		chunks[i] = i;
	int status = a->lib->make_xfer_req(a->agent, READ, a->local, chunks, (size_t)count, a->remote, chunks, (size_t)count, &req, a->opt);
	free(chunks);
	nx_post(a, r, status, req);
}
