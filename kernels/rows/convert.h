#ifndef BATON_ROWS_CONVERT_H
#define BATON_ROWS_CONVERT_H

#include <stdint.h>

/* A 2-D body, the two innermost loops of an op: n rows of run bytes of the source, which
 * lie ss apart there and ds apart at the destination. */
typedef void (*copy2d_fn)(char *d, const char *s, int64_t n, int64_t run, int64_t ds, int64_t ss);

/* What converts for a kind (shim.h), as package float does bit by bit; vector: on 8
 * elements at once, where the CPU can. NULL for a kind that is no conversion. */
copy2d_fn rows_convert(int32_t kind, int vector);

#endif
