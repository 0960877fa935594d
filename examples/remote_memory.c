/* Remote memory from C: a process joins a cluster as a node and uses the memory of another node.
 *
 *     cargo build -q -p ferrolite
 *     cc examples/remote_memory.c -I host/capi/include -L target/debug -lferrolite -o target/remote_memory
 *     cargo run -q -p examples -- target/remote_memory
 *
 * `local-cluster`, which the last command runs, starts a manager and two nodes, and passes their addresses in
 * environment variables. ferrolite.h describes each function. Every function that can fail returns a status,
 * and takes a time limit in milliseconds.
 */
#include <ferrolite.h>
#include <stdio.h>
#include <stdlib.h>

enum { TIMEOUT_MS = 20000, SIZE = 1 << 20 };

/* Ends the program with the library's message if a call has failed. */
static void check(fl_status status, const char *call) {
    if (status != FL_OK) {
        fprintf(stderr, "%s: %s\n", call, fl_last_error());
        exit(1);
    }
}

int main(void) {
    /* Joins as the node `c-program`, with an RNIC in software. On a machine with an RDMA card, or with Linux's
     * SoftRoCE, `nic` is "ibverbs" and no fabric is needed. */
    fl_options options = {0};
    options.manager = getenv("FERROLITE_MANAGER");
    options.key_file = getenv("FERROLITE_KEY");
    options.fabric_socket = getenv("FERROLITE_FABRIC");
    options.nic = "softroce";
    options.name = "c-program";
    fl_node *node = NULL;
    check(fl_join(&options, TIMEOUT_MS, &node), "fl_join");
    size_t members = 0;
    check(fl_members(node, NULL, 0, &members), "fl_members");
    printf("joined: the cluster has %zu members\n", members);

    /* Allocates 1 MiB of the memory of `node0`, and fills it there. */
    uint16_t peer = 0;
    fl_region *region = NULL;
    check(fl_find_node(node, "node0", TIMEOUT_MS, &peer), "fl_find_node");
    check(fl_malloc(node, peer, SIZE, FL_ALL, TIMEOUT_MS, &region), "fl_malloc");
    check(fl_memset(region, 0, SIZE, 'Z', TIMEOUT_MS), "fl_memset");

    /* One-sided operations: the processor of `node0` does not notice them. */
    char text[6] = {0};
    check(fl_write(region, SIZE - 5, "hello", 5, TIMEOUT_MS), "fl_write");
    check(fl_read(region, SIZE - 5, text, 5, TIMEOUT_MS), "fl_read");
    printf("the last five bytes: %s\n", text);
    check(fl_read(region, SIZE - 10, text, 5, TIMEOUT_MS), "fl_read");
    printf("those before them: %s\n", text);

    /* An atomic operation on eight bytes. */
    uint64_t zero = 0, before = 1;
    check(fl_write(region, 0, &zero, sizeof zero, TIMEOUT_MS), "fl_write");
    check(fl_fetch_add(region, 0, 42, TIMEOUT_MS, &before), "fl_fetch_add");
    check(fl_fetch_add(region, 0, 0, TIMEOUT_MS, &before), "fl_fetch_add");
    printf("a counter in remote memory: %llu\n", (unsigned long long)before);

    /* The library checks bounds before anything is sent. */
    if (fl_read(region, SIZE, text, 5, TIMEOUT_MS) == FL_OUT_OF_BOUNDS)
        printf("refused: %s\n", fl_last_error());

    check(fl_free(region, TIMEOUT_MS), "fl_free");
    check(fl_leave(node, TIMEOUT_MS), "fl_leave");
    return 0;
}
