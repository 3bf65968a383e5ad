// dlopen and dlsym with addresses as numbers.
#ifndef BATON_DL_SHIM_H
#define BATON_DL_SHIM_H
#include <stddef.h>
#include <stdint.h>

// dl_open loads name with all its symbols resolved and kept to itself. 0: text says why.
uint64_t dl_open(const char *name, char *text, size_t size);
// dl_symbol is 0 when there is none.
uint64_t dl_symbol(uint64_t handle, const char *name);
#endif
