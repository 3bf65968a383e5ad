// The symbols of libcuda.so.1 that Baton uses: name, the version whose form is asked for,
// and its parameters. Names without a suffix: the driver picks the form by the version.
#ifndef BATON_CUDA_API_H
#define BATON_CUDA_API_H
#include <stddef.h>
#include <stdint.h>

typedef unsigned long long cu_ptr;
typedef struct { char b[64]; } cu_ipc;
typedef struct { int type, id; } cu_location;
typedef struct {
	int type, handles;
	cu_location at;
	void *windows;
	unsigned char flags[8];
} cu_prop;
typedef struct { cu_location at; int flags; } cu_access;
typedef struct {
	int order;
	cu_location src, dst;
	unsigned flags;
} cu_batch_attr;
typedef struct {
	size_t src_x, src_y, src_z, src_lod;
	int src_type;
	const void *src_host;
	cu_ptr src;
	void *src_array, *reserved0;
	size_t src_pitch, src_height;
	size_t dst_x, dst_y, dst_z, dst_lod;
	int dst_type;
	void *dst_host;
	cu_ptr dst;
	void *dst_array, *reserved1;
	size_t dst_pitch, dst_height;
	size_t width, height, depth;
} cu_copy3d;

enum {
	CU_NOT_READY = 600,
	CU_INVALID_VALUE = 1,
	CU_HOST = 1,
	CU_UNIFIED = 4,
	CU_POINTER_ORDINAL = 9,
	CU_POINTER_LEGACY = 10,
	CU_POINTER_KINDS = 14,
	CU_POINTER_POOL = 17,
	CU_DEVICE_SMS = 16,
	CU_DEVICE_COPY_ENGINES = 40,
	CU_FD = 1,
	CU_ON_DEVICE = 1,
	CU_PINNED = 1,
	CU_READ_WRITE = 3,
};

#define CUDA_REQUIRED(X) \
	X(cuInit, 2000, (unsigned)) \
	X(cuDriverGetVersion, 2020, (int *)) \
	X(cuGetErrorName, 6000, (int, const char **)) \
	X(cuGetErrorString, 6000, (int, const char **)) \
	X(cuDeviceGetCount, 2000, (int *)) \
	X(cuDeviceGet, 2000, (int *, int)) \
	X(cuDeviceGetName, 2000, (char *, int, int)) \
	X(cuDeviceGetUuid, 11040, (unsigned char *, int)) \
	X(cuDeviceGetAttribute, 2000, (int *, int, int)) \
	X(cuDeviceCanAccessPeer, 4000, (int *, int, int)) \
	X(cuDevicePrimaryCtxRetain, 7000, (void **, int)) \
	X(cuDevicePrimaryCtxRelease, 11000, (int)) \
	X(cuCtxSetCurrent, 4000, (void *)) \
	X(cuCtxEnablePeerAccess, 4000, (void *, unsigned)) \
	X(cuMemAlloc, 3020, (cu_ptr *, size_t)) \
	X(cuMemFree, 3020, (cu_ptr)) \
	X(cuMemcpyHtoD, 3020, (cu_ptr, const void *, size_t)) \
	X(cuMemcpyDtoH, 3020, (void *, cu_ptr, size_t)) \
	X(cuMemHostRegister, 6050, (void *, size_t, unsigned)) \
	X(cuMemHostUnregister, 4000, (void *)) \
	X(cuPointerGetAttribute, 4000, (void *, int, cu_ptr)) \
	X(cuMemGetAddressRange, 3020, (cu_ptr *, size_t *, cu_ptr)) \
	X(cuIpcGetMemHandle, 4010, (cu_ipc *, cu_ptr)) \
	X(cuIpcOpenMemHandle, 11000, (cu_ptr *, cu_ipc, unsigned)) \
	X(cuIpcCloseMemHandle, 4010, (cu_ptr)) \
	X(cuMemGetAllocationGranularity, 10020, (size_t *, const cu_prop *, int)) \
	X(cuMemCreate, 10020, (cu_ptr *, size_t, const cu_prop *, unsigned long long)) \
	X(cuMemRelease, 10020, (cu_ptr)) \
	X(cuMemRetainAllocationHandle, 11000, (cu_ptr *, void *)) \
	X(cuMemExportToShareableHandle, 10020, (void *, cu_ptr, int, unsigned long long)) \
	X(cuMemImportFromShareableHandle, 10020, (cu_ptr *, void *, int)) \
	X(cuMemAddressReserve, 10020, (cu_ptr *, size_t, size_t, cu_ptr, unsigned long long)) \
	X(cuMemAddressFree, 10020, (cu_ptr, size_t)) \
	X(cuMemMap, 10020, (cu_ptr, size_t, size_t, cu_ptr, unsigned long long)) \
	X(cuMemUnmap, 10020, (cu_ptr, size_t)) \
	X(cuMemSetAccess, 10020, (cu_ptr, size_t, const cu_access *, size_t)) \
	X(cuCtxGetStreamPriorityRange, 5050, (int *, int *)) \
	X(cuStreamCreateWithPriority, 5050, (void **, unsigned, int)) \
	X(cuStreamDestroy, 4000, (void *)) \
	X(cuEventCreate, 2000, (void **, unsigned)) \
	X(cuEventRecord, 2000, (void *, void *)) \
	X(cuEventQuery, 2000, (void *)) \
	X(cuEventDestroy, 4000, (void *)) \
	X(cuMemcpyAsync, 4000, (cu_ptr, cu_ptr, size_t, void *)) \
	X(cuMemcpy3DAsync, 3020, (const cu_copy3d *, void *)) \
	X(cuMemsetD8Async, 3020, (cu_ptr, unsigned char, size_t, void *)) \
	X(cuMemsetD2D8Async, 3020, (cu_ptr, size_t, unsigned char, size_t, size_t, void *))

// Drivers from 12.8 on; the form changed in 13.0.
typedef int (*cu_batch12)(cu_ptr *, cu_ptr *, size_t *, size_t, cu_batch_attr *, size_t *, size_t, size_t *, void *);
typedef int (*cu_batch13)(cu_ptr *, cu_ptr *, size_t *, size_t, cu_batch_attr *, size_t *, size_t, void *);

struct cuda_api {
#define X(name, version, args) int (*name) args;
	CUDA_REQUIRED(X)
#undef X
	cu_batch12 batch12; // one of the two, or none
	cu_batch13 batch13;
};
#endif
