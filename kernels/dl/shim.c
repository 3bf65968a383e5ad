#include "shim.h"

#include <dlfcn.h>
#include <stdio.h>

uint64_t dl_open(const char *name, char *text, size_t size) {
	void *h = dlopen(name, RTLD_NOW | RTLD_LOCAL);
	if (!h) {
		const char *why = dlerror();
		snprintf(text, size, "%s", why ? why : name);
	}
	return (uint64_t)(uintptr_t)h;
}

uint64_t dl_symbol(uint64_t handle, const char *name) {
	return (uint64_t)(uintptr_t)dlsym((void *)(uintptr_t)handle, name);
}
