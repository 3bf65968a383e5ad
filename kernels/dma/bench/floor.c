// What bounds the rows of `baton bench gpu`: the driver's own calls in the shapes of those rows,
// from one loop in one process, with no table of blocks, no mover and no message around them.
//
//   gcc -O2 -Wall -Wextra -Werror -I kernels/cuda -o floor kernels/dma/bench/floor.c kernels/cuda/shim.c kernels/cuda/submit.c -ldl
//   ./floor [--rounds N] [--save FILE]
//
// GPU 1 pulls what destination rank 0 takes of source rank 0 when llama-70b goes from TP4 to TP8:
// K and V of 80 layers, 160 planes, blocks of 64 tokens, of each token 256 of the source's 512
// bytes; a block is a fragment of 16 KiB in each plane. The end is looked for again and again, as
// a mover does. A first round is not counted. --save writes what `baton bench gpu --save` does.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "api.h"
#include "shim.h"

enum { PLANES = 160, POOL = 256, BLOCK = 64, WIDTH = 256, SHARE = 128, PARTS = 4, AHEAD = CUDA_STREAMS };
enum { MAX_ROUNDS = 1000, MAX_ROWS = 64, MESSAGE = 64 };
static const long MiB = 1 << 20;

static int rounds = 21, shrink = 1; // --shrink takes an n-th of the planes and of flat bytes, for tests

// What was measured, in the order of the table.
struct row {
	char name[64], what[160], note[80];
	const char *unit;
	double value, samples[MAX_ROUNDS];
};
static struct row rows[MAX_ROWS];
static int row_count;

static double now(void) { // microseconds
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec * 1e6 + (double)t.tv_nsec * 1e-3;
}

static void pause_us(int us) {
	struct timespec t = {us / 1000000, us % 1000000 * 1000L};
	if (us) nanosleep(&t, NULL);
}

static int ascending(const void *a, const void *b) {
	return (*(const double *)a > *(const double *)b) - (*(const double *)a < *(const double *)b);
}

// median sorts the samples of all rounds.
static double median(double *samples) {
	qsort(samples, (size_t)rounds, sizeof *samples, ascending);
	return samples[rounds / 2];
}

// add keeps a row and prints it. name, what and note are plain words, without quotes.
static void add(const char *name, const char *what, const char *note, const char *unit, double *samples) {
	if (row_count == MAX_ROWS) abort();
	struct row *r = &rows[row_count++];
	snprintf(r->name, sizeof r->name, "floor/%s", name);
	snprintf(r->what, sizeof r->what, "%s", what);
	snprintf(r->note, sizeof r->note, "%s", note);
	r->unit = unit, r->value = median(samples);
	memcpy(r->samples, samples, (size_t)rounds * sizeof *samples);
	printf("%-32s %9.2f (%.2f to %.2f) %-16s %s%s%s\n", r->name, r->value, samples[0], samples[rounds - 1], unit, what, *note ? "; " : "", note);
	fflush(stdout); // a process made later writes none of it again
}

// Two processes over a socket pair.

static int receive(int fd, char *message, int look) {
	for (int got = 0; got < MESSAGE;) {
		ssize_t n = recv(fd, message + got, (size_t)(MESSAGE - got), look ? MSG_DONTWAIT : 0);
		if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR)) return 0;
		if (n > 0) got += (int)n;
	}
	return 1;
}

static void answers(const char *name, const char *what, int look, int wait) {
	int fd[2];
	char message[MESSAGE] = "";
	double took[MAX_ROUNDS];
	if (socketpair(AF_UNIX, SOCK_STREAM, 0, fd)) perror("socketpair"), exit(1);
	pid_t child = fork();
	if (child < 0) perror("fork"), exit(1);
	if (!child) {
		close(fd[0]);
		while (receive(fd[1], message, look) && send(fd[1], message, MESSAGE, MSG_NOSIGNAL) == MESSAGE)
			;
		_exit(0);
	}
	close(fd[1]);
	for (int i = -1; i < rounds; i++) {
		pause_us(wait);
		double began = now();
		if (send(fd[0], message, MESSAGE, MSG_NOSIGNAL) != MESSAGE || !receive(fd[0], message, look)) fprintf(stderr, "floor: no answer\n"), exit(1);
		if (i >= 0) took[i] = now() - began;
	}
	close(fd[0]);
	waitpid(child, NULL, 0);
	add(name, what, "", "us", took);
}

// What a batch of strided copies takes, as in the driver's ABI.
struct operand { int kind; cu_ptr at; size_t pitch, rows; cu_location hint; };
struct operation { struct operand src, dst; size_t width, height, depth; int order; unsigned flags; };

static const struct cuda_api *a;
static int (*batch)(size_t n, struct operation *ops, unsigned long long flags, void *stream); // or NULL
static uint64_t ctx[2];
static struct cuda_lane lanes[2];
static uint64_t from, to; // on GPU 0 and on GPU 1
static char *pinned;

static void ok(int rc, const char *what) {
	char name[64] = "", text[160] = "";
	if (!rc) return;
	if (a) cuda_error(a, rc, name, text, sizeof name);
	fprintf(stderr, "floor: %s: %d %s: %s\n", what, rc, name, text);
	exit(1);
}

static void *p(uint64_t x) { return (void *)(uintptr_t)x; }

static void await(uint64_t event) {
	int rc;
	while ((rc = a->cuEventQuery(p(event))) == CU_NOT_READY)
		;
	ok(rc, "waiting for copies");
}

static void record(const struct cuda_lane *l, int i) { ok(a->cuEventRecord(p(l->events[i]), p(l->streams[i])), "cuEventRecord"); }

static double flat_took(int gpu, cu_ptr dst, cu_ptr src, size_t n) {
	double began = now();
	ok(a->cuMemcpyAsync(dst, src, n, p(lanes[gpu].streams[0])), "cuMemcpyAsync");
	record(&lanes[gpu], 0);
	await(lanes[gpu].events[0]);
	return now() - began;
}

enum how { CALLS, QUEUED, BATCH };
// A way to move some blocks. parts are calls of as many planes each that a block, or a run of
// consecutive blocks, is cut into; calls go to streams in turn.
struct way {
	const char *name, *what;
	int blocks, scattered, parts, streams;
	enum how how;
	int wait; // microseconds before each
	const char *unit;
};

static int build(const struct way *w, cu_copy3d *list) {
	int n = 0, calls = w->scattered ? w->blocks : 1, depth = PLANES / shrink / w->parts;
	for (int i = 0; i < calls; i++)
		for (int k = 0; k < w->parts; k++) {
			cu_ptr src = (cu_ptr)(w->scattered ? i * 37 % SHARE * 2 : 0), dst = (cu_ptr)(w->scattered ? i * 53 % SHARE * 2 : 0);
			cu_copy3d *c = &list[n++];
			memset(c, 0, sizeof *c);
			c->src_type = c->dst_type = CU_UNIFIED;
			c->src = from + (src + (cu_ptr)(k * depth) * POOL) * BLOCK * 2 * WIDTH;
			c->dst = to + (dst + (cu_ptr)(k * depth) * POOL) * BLOCK * WIDTH;
			c->src_pitch = 2 * WIDTH, c->dst_pitch = WIDTH;
			c->src_height = c->dst_height = POOL * BLOCK;
			c->width = WIDTH, c->height = (size_t)(BLOCK * (w->scattered ? 1 : w->blocks)), c->depth = (size_t)depth;
		}
	return n;
}

static void submit(const struct way *w, const cu_copy3d *list, int n) {
	static struct operation ops[SHARE * PARTS];
	struct cuda_lane *l = &lanes[1];
	if (w->how == BATCH) {
		for (int i = 0; i < n; i++) {
			const cu_copy3d *c = &list[i];
			ops[i] = (struct operation){{1, c->src, c->src_pitch, c->src_height, {CU_ON_DEVICE, 0}}, {1, c->dst, c->dst_pitch, c->dst_height, {CU_ON_DEVICE, 1}},
				c->width, c->height, c->depth, 1, 1}; // read in the stream's order, by copy engines
		}
		ok(batch((size_t)n, ops, 0, p(l->streams[0])), "cuMemcpy3DBatchAsync");
	}
	for (int i = 0; w->how != BATCH && i < n; i++) ok(a->cuMemcpy3DAsync(&list[i], p(l->streams[i % w->streams])), "cuMemcpy3DAsync");
	for (int i = 0; i < w->streams; i++) record(l, i);
}

static double go(const struct way *w, const cu_copy3d *list, int n, double *submitted) {
	struct cuda_lane *l = &lanes[1];
	uint64_t gate = l->events[CUDA_STREAMS - 1];
	if (w->how == QUEUED) { // behind a flat copy of milliseconds
		ok(a->cuMemcpyAsync(to, from, (size_t)(1024 * MiB / shrink), p(l->streams[0])), "cuMemcpyAsync");
		ok(a->cuEventRecord(p(gate), p(l->streams[0])), "cuEventRecord");
	}
	double began = now();
	submit(w, list, n);
	*submitted = now() - began;
	if (w->how == QUEUED) await(gate), began = now();
	for (int i = 0; i < w->streams; i++) await(l->events[i]);
	return now() - began;
}

// last is the last row of the last call of a list, at either end.
static cu_ptr last(const cu_copy3d *c, cu_ptr at, size_t pitch) { return at + ((c->depth - 1) * c->src_height + c->height - 1) * pitch; }

static void copies(const struct way *w) {
	static cu_copy3d list[SHARE * PARTS];
	static unsigned char mark, want[WIDTH], got[WIDTH];
	double took[MAX_ROUNDS], submitted[MAX_ROUNDS], bytes = 0;
	char what[160], note[80];
	if (w->how == BATCH && !batch) return; // a driver before 13.0
	int n = build(w, list);
	for (int i = 0; i < n; i++) bytes += (double)(list[i].width * list[i].height * list[i].depth);
	memset(want, ++mark, sizeof want);
	ok(cuda_put(a, ctx[0], last(&list[n - 1], list[n - 1].src, 2 * WIDTH), want, WIDTH), "cuMemcpyHtoD");
	ok(a->cuCtxSetCurrent(p(ctx[1])), "cuCtxSetCurrent");
	for (int i = -1; i < rounds; i++) {
		pause_us(w->wait);
		took[i < 0 ? 0 : i] = go(w, list, n, &submitted[i < 0 ? 0 : i]);
	}
	ok(cuda_get(a, ctx[1], got, last(&list[n - 1], list[n - 1].dst, WIDTH), WIDTH), "cuMemcpyDtoH");
	if (memcmp(want, got, WIDTH)) fprintf(stderr, "floor: %s: the last row did not arrive\n", w->name), exit(1);
	double rate = bytes / median(took) / 1e3;
	const int us = !strcmp(w->unit, "us");
	for (int i = 0; i < rounds && !us; i++) took[i] = bytes / took[i] / 1e3;
	snprintf(what, sizeof what, "%s, %.1f MiB", w->what, bytes / (double)MiB);
	if (us) snprintf(note, sizeof note, "%.0f GB/s", rate);
	else snprintf(note, sizeof note, "%.0f us, submitted in %.0f", bytes / rate / 1e3, median(submitted));
	add(w->name, what, note, w->unit, took);
}

static const struct way ways[] = {
	{"one-block", "one strided call, one block of 64 tokens", 1, 0, 1, 1, CALLS, 0, "us"},
	{"one-block-idle", "the same after 20 ms without a copy", 1, 0, 1, 1, CALLS, 20000, "us"},
	{"consecutive-256", "one strided call, 256 tokens of consecutive blocks", 4, 0, 1, 1, CALLS, 0, "us"},
	{"consecutive-256-halves", "the same, halves of the planes on two streams", 4, 0, 2, 2, CALLS, 0, "us"},
	{"consecutive-256-quarters", "the same, quarters on four", 4, 0, 4, 4, CALLS, 0, "us"},
	{"consecutive-1024", "one strided call, 1024 tokens of consecutive blocks", 16, 0, 1, 1, CALLS, 0, "us"},
	{"scattered-8192", "a strided call for each of 128 scattered blocks, one stream", SHARE, 1, 1, 1, CALLS, 0, "GB/s"},
	{"scattered-8192-2-streams", "the same, two streams", SHARE, 1, 1, 2, CALLS, 0, "GB/s"},
	{"scattered-8192-8-streams", "the same, eight streams", SHARE, 1, 1, 8, CALLS, 0, "GB/s"},
	{"scattered-8192-halves", "the same, halves of a block's planes on two streams", SHARE, 1, 2, 2, CALLS, 0, "GB/s"},
	{"scattered-8192-queued", "the same on one stream, queued before the first begins", SHARE, 1, 1, 1, QUEUED, 0, "GB/s"},
	{"scattered-8192-batch", "one batch of 128 strided copies", SHARE, 1, 1, 1, BATCH, 0, "GB/s"},
};

static void flat(void) {
	double rate[MAX_ROUNDS];
	size_t n = (size_t)(1024 * MiB / shrink);
	char what[160];
	ok(a->cuCtxSetCurrent(p(ctx[1])), "cuCtxSetCurrent");
	for (int i = -1; i < rounds; i++) rate[i < 0 ? 0 : i] = (double)n / flat_took(1, to, from, n) / 1e3;
	snprintf(what, sizeof what, "one flat copy of %zu MiB between the GPUs", n / (size_t)MiB);
	add("memcpy-peer", what, "", "GB/s", rate);
}

// chunks moves a share between GPU 0, rows of 256 bytes out of 512, and chunks of pinned memory:
// one strided call a chunk on one stream, eight under way.
static double chunks(int packs, size_t chunk, size_t bytes) {
	struct cuda_lane *l = &lanes[0];
	double began = now();
	for (size_t i = 0; i < bytes / chunk; i++) {
		int k = (int)(i % AHEAD);
		cu_copy3d c = {.width = WIDTH, .height = chunk / WIDTH, .depth = 1};
		if (i >= AHEAD) await(l->events[k]);
		if (packs) {
			c.src_type = CU_UNIFIED, c.src = from + i * chunk * 2, c.src_pitch = 2 * WIDTH;
			c.dst_type = CU_HOST, c.dst_host = pinned + (size_t)k * chunk, c.dst_pitch = WIDTH;
		} else {
			c.dst_type = CU_UNIFIED, c.dst = from + i * chunk * 2, c.dst_pitch = 2 * WIDTH;
			c.src_type = CU_HOST, c.src_host = pinned + (size_t)k * chunk, c.src_pitch = WIDTH;
		}
		ok(a->cuMemcpy3DAsync(&c, p(l->streams[0])), "cuMemcpy3DAsync");
		ok(a->cuEventRecord(p(l->events[k]), p(l->streams[0])), "cuEventRecord");
	}
	for (int k = 0; k < AHEAD; k++) await(l->events[k]);
	return now() - began;
}

static void host(int packs, int mib) {
	double ratio[MAX_ROUNDS], rate[MAX_ROUNDS];
	char name[64], what[160], note[80];
	size_t n = (size_t)(256 * MiB / shrink), chunk = (size_t)(mib * MiB / shrink), bytes = (size_t)PLANES / shrink * SHARE * BLOCK * WIDTH;
	cu_ptr h = (cu_ptr)(uintptr_t)pinned;
	ok(a->cuCtxSetCurrent(p(ctx[0])), "cuCtxSetCurrent");
	for (int i = -1; i < rounds; i++) {
		int k = i < 0 ? 0 : i;
		double base = (double)n / (packs ? flat_took(0, h, from, n) : flat_took(0, from, h, n)) / 1e3;
		rate[k] = (double)bytes / chunks(packs, chunk, bytes) / 1e3;
		ratio[k] = rate[k] / base;
	}
	snprintf(name, sizeof name, "host-%s-%zuk", packs ? "pack" : "unpack", chunk >> 10);
	snprintf(what, sizeof what, "%s pinned host memory, %zu MiB in chunks of %zu KiB, one stream", packs ? "into" : "from", bytes / (size_t)MiB, chunk >> 10);
	snprintf(note, sizeof note, "%.1f GB/s", median(rate));
	add(name, what, note, "x of flat copy", ratio);
}

static int open_gpus(int32_t *version, struct cuda_device *d) {
	struct cuda_api *table = NULL;
	char missing[64] = "";
	int32_t n = 0;
	int (*look)(const char *, void **, int, uint64_t, int *) = NULL;
	void *lib = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
	if (lib) *(void **)&look = dlsym(lib, "cuGetProcAddress_v2");
	if (!look) fprintf(stderr, "floor: no CUDA driver: %s\n", dlerror()), exit(1);
	int rc = cuda_load((uint64_t)(uintptr_t)look, 12000, &table, version, missing, sizeof missing);
	if (rc < 0) fprintf(stderr, "floor: the CUDA driver is older than 12.0, or lacks %s\n", missing), exit(1);
	a = table;
	ok(rc, "cuInit");
	int status = 0;
	if (look("cuMemcpy3DBatchAsync", (void **)&batch, 13000, 0, &status) || status) batch = NULL;
	ok(cuda_count(a, &n), "cuDeviceGetCount");
	if (n < 2) fprintf(stderr, "floor: two GPUs are needed, and there are %d\n", n), exit(1);
	ok(cuda_describe(a, 0, d), "cuDeviceGet");
	size_t bytes = (size_t)PLANES / shrink * POOL * BLOCK * 2 * WIDTH, room = (size_t)(256 * MiB / shrink);
	for (int i = 0; i < 2; i++) {
		ok(cuda_retain(a, i, &ctx[i]), "cuDevicePrimaryCtxRetain");
		ok(cuda_lane_make(a, ctx[i], CUDA_STREAMS, &lanes[i]), "cuStreamCreateWithPriority");
		ok(cuda_alloc(a, ctx[i], (int64_t)bytes, i ? &to : &from), "cuMemAlloc");
	}
	ok(cuda_enable_peer(a, ctx[1], ctx[0]), "cuCtxEnablePeerAccess");
	pinned = mmap(NULL, room, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
	if (pinned == MAP_FAILED) perror("floor: mmap"), exit(1);
	ok(cuda_pin(a, ctx[0], (uint64_t)(uintptr_t)pinned, (int64_t)room, 0), "cuMemHostRegister");
	return n;
}

static void close_gpus(void) {
	ok(cuda_unpin(a, ctx[0], (uint64_t)(uintptr_t)pinned), "cuMemHostUnregister");
	for (int i = 0; i < 2; i++) {
		ok(cuda_lane_free(a, ctx[i], &lanes[i]), "cuStreamDestroy");
		ok(cuda_free(a, ctx[i], i ? to : from), "cuMemFree");
		ok(cuda_release(a, i), "cuDevicePrimaryCtxRelease");
	}
}

static void processor(char name[128]) {
	char line[256];
	FILE *f = fopen("/proc/cpuinfo", "r");
	snprintf(name, 128, "unknown processor");
	while (f && fgets(line, sizeof line, f) && sscanf(line, "model name%*[\t :]%127[^\n]", name) != 1)
		;
	if (f) fclose(f);
}

static void save(const char *path, int gpus, const struct cuda_device *d, int version) {
	char date[16], cpu[128];
	time_t t = time(NULL);
	FILE *f = fopen(path, "w");
	if (!f) perror(path), exit(1);
	strftime(date, sizeof date, "%Y-%m-%d", gmtime(&t));
	processor(cpu);
	fprintf(f, "{\n \"date\": \"%s\",\n \"go\": \"gcc %s\",\n \"cores\": %ld,\n", date, __VERSION__, sysconf(_SC_NPROCESSORS_ONLN));
	fprintf(f, " \"cpu\": \"2 of %d %s, CUDA %d.%d, %s\",\n", gpus, d->name, version / 1000, version % 1000 / 10, cpu);
	fprintf(f, " \"command\": \"./floor --rounds %d\",\n \"rows\": [", rounds);
	for (int i = 0; i < row_count; i++) {
		const struct row *r = &rows[i];
		fprintf(f, "%s\n  {\n   \"name\": \"%s\",\n   \"what\": \"%s\",\n   \"unit\": \"%s\",\n", i ? "," : "", r->name, r->what, r->unit);
		fprintf(f, "   \"value\": %.3f,\n   \"note\": \"%s\",\n   \"met\": true,\n   \"samples\": [", r->value, r->note);
		for (int k = 0; k < rounds; k++) fprintf(f, "%s%.3f", k ? ", " : "", r->samples[k]);
		fprintf(f, "]\n  }");
	}
	fprintf(f, "\n ]\n}\n");
	if (fclose(f)) perror(path), exit(1);
}

static int usage(void) { return fprintf(stderr, "usage: floor [--rounds 1..%d] [--save FILE] [--shrink 1, 2, 4, 8, 16 or 32]\n", MAX_ROUNDS), 2; }

int main(int argc, char **argv) {
	const char *path = NULL;
	for (int i = 1; i < argc; i += 2) {
		if (i + 1 == argc) return usage();
		if (!strcmp(argv[i], "--rounds")) rounds = atoi(argv[i + 1]);
		else if (!strcmp(argv[i], "--shrink")) shrink = atoi(argv[i + 1]);
		else if (!strcmp(argv[i], "--save")) path = argv[i + 1];
		else return usage();
	}
	if (rounds < 1 || rounds > MAX_ROUNDS || shrink < 1 || shrink > 32 || shrink & (shrink - 1)) return usage();
	// Processes are made before there is a driver in this one.
	answers("answer-looking", "a message of 64 bytes to another process and back, both look for it", 1, 0);
	answers("answer-sleeping", "the same, both sleep until it is there", 0, 0);
	answers("answer-looking-idle", "both look, 20 ms after the last", 1, 20000);
	answers("answer-sleeping-idle", "both sleep, 20 ms after the last", 0, 20000);
	struct cuda_device d;
	int32_t version = 0, gpus = open_gpus(&version, &d);
	flat();
	for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) copies(&ways[i]);
	for (int packs = 1; packs >= 0; packs--)
		for (int mib = 1; mib <= 16; mib *= 4) host(packs, mib);
	close_gpus();
	if (path) save(path, gpus, &d, version);
	return 0;
}
