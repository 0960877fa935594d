/* A process in C as a node of the cluster: remote memory, atomics, remote procedure calls and a barrier, against nodes that
 * run the job `echo` (see apps/echo). Every value that comes back is compared with what it must be.
 *
 *     cc demo.c -I../include -lferrolite -lpthread -o demo
 *     ./demo 10.0.0.1:18500 cluster.key demo-c ibverbs=rxe0 node0 node1 node2
 *
 * With `end` as the last word the nodes end the job afterwards.
 */
#include <ferrolite.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TIMEOUT_MS = 60000, MOST_PEERS = 64, SIZE = 1 << 20 };
/* The functions of the job `echo`, and one of our own. */
enum { ECHO = 0x65630001, BARRIER = 0x65630002, END = 0x65630003, SHOUT = 7 };

static void check(fl_status status, const char *what) {
    if (status != FL_OK) {
        fprintf(stderr, "demo: %s: %s\n", what, fl_last_error());
        exit(1);
    }
}

static void expect(int holds, const char *what) {
    if (!holds) {
        fprintf(stderr, "demo: wrong: %s\n", what);
        exit(1);
    }
    printf("%s\n", what);
}

static fl_node *join(char **words) {
    fl_options options = {0};
    options.manager = words[1];
    options.key_file = words[2];
    options.name = words[3];
    char *detail = strchr(words[4], '=');
    if (detail)
        *detail++ = 0;
    options.nic = words[4];
    if (strcmp(words[4], "softroce") == 0)
        options.fabric_socket = detail;
    else
        options.device = detail;
    fl_node *node = NULL;
    check(fl_join(&options, TIMEOUT_MS, &node), "joining");
    return node;
}

/* The paper's example and more: memory on another node. */
static void use_memory(fl_node *node, uint16_t peer) {
    static unsigned char bytes[SIZE];
    fl_region *region = NULL, *mapped = NULL;
    check(fl_malloc(node, peer, SIZE, FL_ALL, TIMEOUT_MS, &region), "malloc");
    expect(fl_region_len(region) == SIZE && fl_region_node(region) == peer, "1 MiB of another node's memory");

    check(fl_memset(region, 0, SIZE, 0x5a, TIMEOUT_MS), "memset");
    check(fl_read(region, 0, bytes, SIZE, TIMEOUT_MS), "read");
    int right = 1;
    for (size_t i = 0; i < SIZE; i++)
        right &= bytes[i] == 0x5a;
    expect(right, "remote memset, read back");

    for (size_t i = 0; i < SIZE; i++)
        bytes[i] = (unsigned char)(i * 7 + i / 251);
    check(fl_write(region, 0, bytes, SIZE, TIMEOUT_MS), "write");
    check(fl_publish(region, "demo-c", TIMEOUT_MS), "publish");
    check(fl_map(node, "demo-c", FL_READ, TIMEOUT_MS, &mapped), "map");
    static unsigned char again[SIZE];
    check(fl_read(mapped, 0, again, SIZE, TIMEOUT_MS), "read of the mapping");
    expect(memcmp(bytes, again, SIZE) == 0, "written here, read through a mapping by name");
    expect(fl_write(mapped, 0, bytes, 8, TIMEOUT_MS) == FL_PERMISSION, "a mapping to read does not write");
    expect(fl_read(region, SIZE - 4, bytes, 8, TIMEOUT_MS) == FL_OUT_OF_BOUNDS, "no read beyond the end");
    check(fl_unmap(mapped), "unmap");

    uint64_t zero = 0, before = 1;
    check(fl_write(region, 64, &zero, 8, TIMEOUT_MS), "write");
    check(fl_fetch_add(region, 64, 40, TIMEOUT_MS, &before), "fetch_add");
    expect(before == 0, "fetch-and-add");
    check(fl_compare_swap(region, 64, 40, 42, TIMEOUT_MS, &before), "compare_swap");
    expect(before == 40, "compare-and-swap");

    check(fl_unpublish(node, "demo-c", TIMEOUT_MS), "unpublish");
    check(fl_free(region, TIMEOUT_MS), "free");
    expect(fl_map(node, "demo-c", FL_READ, 2000, &mapped) == FL_NO_SUCH_NAME, "freed, and its name too");
}

/* Serves one call of SHOUT: replies in capitals. */
static void *serve(void *function) {
    fl_request *request = NULL;
    char text[64];
    check(fl_receive(function, TIMEOUT_MS, &request), "receive");
    size_t len = fl_request_len(request) < sizeof text ? fl_request_len(request) : sizeof text;
    const char *data = fl_request_data(request);
    for (size_t i = 0; i < len; i++)
        text[i] = data[i] >= 'a' && data[i] <= 'z' ? data[i] - 'a' + 'A' : data[i];
    check(fl_reply(request, text, len, TIMEOUT_MS), "reply");
    return NULL;
}

static void use_calls(fl_node *node, const uint16_t *peers, size_t count) {
    char reply[64];
    size_t len = 0;
    for (size_t i = 0; i < count; i++) {
        check(fl_call(node, peers[i], ECHO, "hello", 5, reply, sizeof reply, &len, TIMEOUT_MS), "call");
        expect(len == 5 && memcmp(reply, "hello", 5) == 0, "a call, echoed");
    }
    expect(fl_call(node, peers[0], 12345, "", 0, reply, sizeof reply, &len, TIMEOUT_MS) == FL_NO_SUCH_FUNCTION,
           "no such function");

    fl_function *function = NULL;
    pthread_t thread;
    check(fl_register(node, SHOUT, 64, 4, &function), "register");
    if (pthread_create(&thread, NULL, serve, function) != 0)
        expect(0, "a thread");
    check(fl_call(node, fl_node_id(node), SHOUT, "aloud", 5, reply, sizeof reply, &len, TIMEOUT_MS), "call");
    pthread_join(thread, NULL);
    expect(len == 5 && memcmp(reply, "ALOUD", 5) == 0, "a function of our own, called");
    check(fl_unregister(function), "unregister");
}

static void use_barrier(fl_node *node, const uint16_t *peers, size_t count) {
    const char *name = "demo-c";
    uint16_t group[MOST_PEERS + 1];
    unsigned char request[2 + 2 * (MOST_PEERS + 1) + 16];
    memcpy(group, peers, count * sizeof *group);
    group[count++] = fl_node_id(node);
    size_t len = 0, reply_len = 0;
    char reply[1];
    request[len++] = count & 0xff;
    request[len++] = count >> 8;
    for (size_t i = 0; i < count; i++) {
        request[len++] = group[i] & 0xff;
        request[len++] = group[i] >> 8;
    }
    memcpy(request + len, name, strlen(name));
    len += strlen(name);
    for (size_t i = 0; i + 1 < count; i++)
        check(fl_call(node, group[i], BARRIER, request, len, reply, sizeof reply, &reply_len, TIMEOUT_MS), "call");
    check(fl_barrier(node, name, group, count, TIMEOUT_MS), "barrier");
    expect(1, "a barrier with all of them");
}

int main(int argc, char **argv) {
    if (argc < 6) {
        fprintf(stderr, "usage: %s MANAGER KEY_FILE NAME softroce=SOCKET|ibverbs[=DEVICE] PEER... [end]\n", argv[0]);
        return 2;
    }
    int end = strcmp(argv[argc - 1], "end") == 0;
    size_t count = (size_t)(argc - 5 - end);
    if (count < 1 || count > MOST_PEERS) {
        fprintf(stderr, "demo: 1 to %d peers\n", MOST_PEERS);
        return 2;
    }
    fl_node *node = join(argv);
    uint16_t peers[MOST_PEERS];
    for (size_t i = 0; i < count; i++)
        check(fl_find_node(node, argv[5 + i], TIMEOUT_MS, &peers[i]), "looking for a node");
    size_t members = 0;
    check(fl_members(node, NULL, 0, &members), "members");
    expect(members > count, "joined, with the others there");

    use_memory(node, peers[0]);
    use_calls(node, peers, count);
    use_barrier(node, peers, count);

    char reply[1];
    size_t len;
    for (size_t i = 0; end && i < count; i++)
        check(fl_call(node, peers[i], END, "", 0, reply, sizeof reply, &len, TIMEOUT_MS), "ending the job");
    check(fl_leave(node, TIMEOUT_MS), "leaving");
    printf("all is well\n");
    return 0;
}
