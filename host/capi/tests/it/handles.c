/* Handles that one thread closes while others use them, handles that are closed twice, and values that are no handles. Every
 * status is compared with the one that the header documents. The test runs it with an allocator that overwrites freed memory.
 *
 *     handles MANAGER KEY_FILE NAME FABRIC_SOCKET
 *
 * At the end another node calls SERVED while this one leaves.
 */
#define _GNU_SOURCE
#include <ferrolite.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* SILENCE_S: the longest time without a step, after which a signal ends the program. A call ends a little earlier, and tells why. */
enum { SILENCE_S = 90, TIMEOUT_MS = 80000, ROUNDS = 20, WAITERS = 3, SLOTS = 4, TURNS = 300 };
enum { FUNCTION = 100, SERVED = 200, SILENT = 201 };

static fl_node *node;

static void fail(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    fprintf(stderr, "handles: ");
    vfprintf(stderr, format, arguments);
    fprintf(stderr, "\n");
    exit(1);
}

static void expect(fl_status status, fl_status want, const char *what) {
    alarm(SILENCE_S);
    if (status != want)
        fail("%s: %s, not %s (%s)", what, fl_status_text(status), fl_status_text(want), fl_last_error());
}

static void expect_either(fl_status status, fl_status one, fl_status other, const char *what) {
    alarm(SILENCE_S);
    if (status != one && status != other)
        fail("%s: %s (%s)", what, fl_status_text(status), fl_last_error());
}

/* ---- Threads that wait ---- */

typedef struct {
    pthread_t thread;
    _Atomic int id;
    void *handle;
    fl_status (*wait)(void *handle);
    _Atomic int ended;
    fl_status status;
} waiter;

static void *run(void *given) {
    waiter *me = given;
    me->id = gettid();
    me->status = me->wait(me->handle);
    me->ended = 1;
    return NULL;
}

static void begin(waiter *one, fl_status (*wait)(void *), void *handle) {
    *one = (waiter){.handle = handle, .wait = wait};
    if (pthread_create(&one->thread, NULL, run, one) != 0)
        fail("no thread");
}

static void pause_briefly(void) {
    nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
}

/* Waits until the thread sleeps in its call, or has ended. */
static void until_asleep(waiter *one) {
    for (int tries = 0; tries < TIMEOUT_MS; tries++, pause_briefly()) {
        char path[64], text[512];
        if (one->ended)
            return;
        if (!one->id)
            continue;
        snprintf(path, sizeof path, "/proc/self/task/%d/stat", one->id);
        FILE *file = fopen(path, "r");
        size_t len = file ? fread(text, 1, sizeof text - 1, file) : 0;
        if (file)
            fclose(file);
        text[len] = 0;
        char *state = strrchr(text, ')');
        if (state && state[1] && state[2] == 'S')
            return;
    }
    fail("a thread neither waits nor ends");
}

static fl_status end(waiter *one) {
    pthread_join(one->thread, NULL);
    return one->status;
}

static fl_status wait_request(void *function) {
    fl_request *request = NULL;
    fl_status status = fl_receive(function, TIMEOUT_MS, &request);
    if (status == FL_OK)
        fail("a request that nobody has made");
    return status;
}

static fl_status wait_node(void *unused) {
    uint16_t id;
    (void)unused;
    return fl_find_node(node, "nobody", TIMEOUT_MS, &id);
}

static fl_status wait_barrier(void *peer) {
    uint16_t group[2] = {fl_node_id(node), (uint16_t)(uintptr_t)peer};
    return fl_barrier(node, "never", group, 2, TIMEOUT_MS);
}

static fl_status wait_name(void *unused) {
    fl_region *region = NULL;
    (void)unused;
    return fl_map(node, "never", FL_READ, TIMEOUT_MS, &region);
}

/* ---- A function is closed while threads wait for its requests ---- */

static void close_while_waiting(void) {
    for (int round = 0; round < ROUNDS; round++) {
        fl_function *function = NULL;
        waiter all[WAITERS];
        expect(fl_register(node, FUNCTION, 64, 4, &function), FL_OK, "register: the number is free again");
        for (int i = 0; i < WAITERS; i++)
            begin(&all[i], wait_request, function);
        for (int i = 0; i < WAITERS; i++)
            until_asleep(&all[i]);
        expect(fl_unregister(function), FL_OK, "unregister while threads wait");
        for (int i = 0; i < WAITERS; i++)
            expect_either(end(&all[i]), FL_NO_SUCH_FUNCTION, FL_CLOSED, "receive from a function that was closed");
        expect(fl_unregister(function), FL_CLOSED, "unregister again");
    }
}

/* ---- Handles that are closed, and values that are no handles ---- */

static fl_status call_self(void *unused) {
    char reply[8];
    size_t len = 0;
    (void)unused;
    return fl_call(node, fl_node_id(node), FUNCTION, "abc", 3, reply, sizeof reply, &len, TIMEOUT_MS);
}

static void closed_regions(void) {
    fl_region *region = NULL;
    uint64_t word = 0;
    expect(fl_malloc(node, fl_node_id(node), 4096, FL_ALL, TIMEOUT_MS, &region), FL_OK, "malloc");
    expect(fl_free(region, TIMEOUT_MS), FL_OK, "free");
    expect(fl_free(region, TIMEOUT_MS), FL_CLOSED, "free again");
    expect(fl_unmap(region), FL_CLOSED, "unmap after free");
    expect(fl_read(region, 0, &word, 8, TIMEOUT_MS), FL_CLOSED, "read after free");
    expect(fl_write(region, 0, &word, 8, TIMEOUT_MS), FL_CLOSED, "write after free");
    expect(fl_memset(region, 0, 8, 1, TIMEOUT_MS), FL_CLOSED, "memset after free");
    expect(fl_fetch_add(region, 0, 1, TIMEOUT_MS, &word), FL_CLOSED, "fetch_add after free");
    expect(fl_compare_swap(region, 0, 0, 1, TIMEOUT_MS, &word), FL_CLOSED, "compare_swap after free");
    expect(fl_publish(region, "late", TIMEOUT_MS), FL_CLOSED, "publish after free");
    if (fl_region_len(region) != 0 || fl_region_node(region) != 0)
        fail("a region that was freed has a length or a node");
}

static void closed_requests(void) {
    fl_function *function = NULL;
    fl_request *request = NULL;
    char bytes[2] = "";
    size_t len = 0;
    waiter caller;
    expect(fl_register(node, FUNCTION, 64, 4, &function), FL_OK, "register");
    begin(&caller, call_self, NULL);
    expect(fl_receive(function, TIMEOUT_MS, &request), FL_OK, "receive");
    expect(fl_request_copy(request, bytes, sizeof bytes, &len), FL_OK, "copy");
    if (len != 3 || memcmp(bytes, "ab", 2) != 0 || memcmp(fl_request_data(request), "abc", 3) != 0)
        fail("the request is not what was sent");
    expect(fl_unregister(function), FL_OK, "unregister");
    expect(fl_reply(request, "", 0, TIMEOUT_MS), FL_OK, "a request that was received is replied to afterwards");
    expect(end(&caller), FL_OK, "call");
    expect(fl_reply(request, "", 0, TIMEOUT_MS), FL_CLOSED, "reply again");
    expect(fl_reject(request), FL_CLOSED, "reject after the reply");
    expect(fl_request_copy(request, bytes, sizeof bytes, &len), FL_CLOSED, "copy after the reply");
    if (fl_request_len(request) != 0 || fl_request_data(request) || fl_request_from(request) != 0)
        fail("a request that was replied to has content");
    expect(fl_receive(function, TIMEOUT_MS, &request), FL_CLOSED, "receive after unregister");
}

static void no_handles(void) {
    fl_region *address = (fl_region *)&node, *small = (fl_region *)(uintptr_t)42;
    uint64_t word = 0;
    size_t count = 0;
    expect(fl_read(NULL, 0, &word, 8, TIMEOUT_MS), FL_INVALID_ARGUMENT, "read of null");
    expect(fl_read(address, 0, &word, 8, TIMEOUT_MS), FL_INVALID_ARGUMENT, "read of an address");
    expect(fl_read(small, 0, &word, 8, TIMEOUT_MS), FL_INVALID_ARGUMENT, "read of a small number");
    expect(fl_read((fl_region *)node, 0, &word, 8, TIMEOUT_MS), FL_INVALID_ARGUMENT, "read of a node");
    expect(fl_unmap((fl_region *)node), FL_INVALID_ARGUMENT, "unmap of a node");
    expect(fl_unmap((fl_region *)((uintptr_t)node + 1)), FL_INVALID_ARGUMENT, "unmap of a wrong number");
    expect(fl_members((fl_node *)((uintptr_t)node + 1), NULL, 0, &count), FL_INVALID_ARGUMENT, "members of none");
    expect(fl_leave(NULL, TIMEOUT_MS), FL_INVALID_ARGUMENT, "leave of null");
    expect(fl_members(node, NULL, 0, &count), FL_OK, "the node is as it was");
}

/* ---- Threads that use and close the same regions ---- */

static _Atomic(fl_region *) regions[SLOTS];

static fl_region *new_region(void) {
    fl_region *region = NULL;
    expect(fl_malloc(node, fl_node_id(node), 4096, FL_ALL, TIMEOUT_MS, &region), FL_OK, "malloc");
    return region;
}

static void allowed(fl_status status, const char *what) {
    alarm(SILENCE_S);
    if (status != FL_OK && status != FL_FREED)
        expect(status, FL_CLOSED, what);
}

static fl_status use_and_close(void *seed) {
    unsigned state = (unsigned)(uintptr_t)seed;
    unsigned char bytes[256];
    memset(bytes, 7, sizeof bytes);
    for (int turn = 0; turn < TURNS; turn++) {
        state = state * 1103515245 + 12345;
        _Atomic(fl_region *) *slot = &regions[(state >> 16) % SLOTS];
        fl_region *region = *slot;
        switch ((state >> 20) % 8) {
        case 0:
            allowed(fl_unmap(region), "unmap");
            *slot = new_region();
            break;
        case 1:
            allowed(fl_free(region, TIMEOUT_MS), "free");
            *slot = new_region();
            break;
        case 2:
        case 3:
            allowed(fl_write(region, 0, bytes, sizeof bytes, TIMEOUT_MS), "write");
            break;
        case 4:
            allowed(fl_fetch_add(region, 8, 1, TIMEOUT_MS, NULL), "fetch_add");
            break;
        default:
            allowed(fl_read(region, 0, bytes, sizeof bytes, TIMEOUT_MS), "read");
        }
    }
    return FL_OK;
}

static void use_while_closing(void) {
    waiter all[4];
    for (int i = 0; i < SLOTS; i++)
        regions[i] = new_region();
    for (int i = 0; i < 4; i++)
        begin(&all[i], use_and_close, (void *)(uintptr_t)(i + 1));
    for (int i = 0; i < 4; i++)
        expect(end(&all[i]), FL_OK, "a thread");
    /* Two threads may have put a region into one slot: the one that was overwritten ends with its node. */
    for (int i = 0; i < SLOTS; i++)
        fl_unmap(regions[i]);
}

/* ---- The node leaves while threads use it ---- */

static waiter receiving;
static _Atomic int serving;

/* Replies once another thread has seen that the node leaves. */
static fl_status serve_one(void *function) {
    fl_request *request = NULL;
    fl_status status = fl_receive(function, TIMEOUT_MS, &request);
    if (status != FL_OK)
        return status;
    serving = 1;
    for (int tries = 0; !receiving.ended && tries < TIMEOUT_MS; tries++)
        pause_briefly();
    return fl_reply(request, "served", 6, TIMEOUT_MS);
}

static void leave_while_used(void) {
    fl_function *served = NULL, *silent = NULL;
    fl_region *region = new_region();
    waiter server, finding, mapping, meeting;
    uint16_t peer = 0;
    uint64_t word = 0;
    expect(fl_find_node(node, "node0", TIMEOUT_MS, &peer), FL_OK, "find node0");
    expect(fl_register(node, SILENT, 64, 4, &silent), FL_OK, "register");
    expect(fl_register(node, SERVED, 64, 4, &served), FL_OK, "register");
    begin(&server, serve_one, served);
    begin(&receiving, wait_request, silent);
    begin(&finding, wait_node, NULL);
    begin(&mapping, wait_name, NULL);
    begin(&meeting, wait_barrier, (void *)(uintptr_t)peer);
    until_asleep(&receiving);
    until_asleep(&finding);
    until_asleep(&mapping);
    until_asleep(&meeting);
    for (int tries = 0; !serving && tries < TIMEOUT_MS; tries++)
        pause_briefly();
    expect(fl_leave(node, TIMEOUT_MS), FL_OK, "leave");
    expect(end(&server), FL_OK, "a request that was received is replied to while the node leaves");
    expect_either(end(&receiving), FL_LINK_DOWN, FL_CLOSED, "receive while the node leaves");
    expect_either(end(&finding), FL_LINK_DOWN, FL_CLOSED, "find while the node leaves");
    expect_either(end(&mapping), FL_LINK_DOWN, FL_CLOSED, "map while the node leaves");
    expect_either(end(&meeting), FL_LINK_DOWN, FL_CLOSED, "barrier while the node leaves");
    expect(fl_leave(node, TIMEOUT_MS), FL_CLOSED, "leave again");
    if (fl_node_id(node) != 0)
        fail("a node that has left has a number");
    expect(fl_read(region, 0, &word, 8, TIMEOUT_MS), FL_LINK_DOWN, "read after the node has left");
    expect(fl_receive(served, TIMEOUT_MS, &(fl_request *){NULL}), FL_LINK_DOWN, "receive after the node has left");
    expect(fl_unmap(region), FL_OK, "unmap after the node has left");
    expect(fl_unregister(served), FL_OK, "unregister after the node has left");
    expect(fl_unregister(silent), FL_OK, "unregister after the node has left");
}

int main(int argc, char **argv) {
    if (argc != 5)
        fail("MANAGER KEY_FILE NAME FABRIC_SOCKET");
    fl_options options = {
        .manager = argv[1], .key_file = argv[2], .name = argv[3], .nic = "softroce", .fabric_socket = argv[4]};
    /* A thread that never wakes ends the test. */
    alarm(SILENCE_S);
    expect(fl_join(&options, TIMEOUT_MS, &node), FL_OK, "join");
    close_while_waiting();
    closed_regions();
    closed_requests();
    no_handles();
    use_while_closing();
    leave_while_used();
    printf("all is well\n");
    return 0;
}
