/* Raw Ethernet queue pairs of one port (IBV_QPT_RAW_PACKET) and flow rules, in a Linux guest on an emulated ConnectX-3.
 *
 * raw-frames inside       frames between queue pairs of the port
 * raw-frames listen       takes FRAMES frames to GROUP, by a rule; makes the file /tmp/listens when it is ready
 * raw-frames send         sends FRAMES frames to GROUP
 *
 * It prints one line and ends with 0 if all is as expected. */
#include <errno.h>
#include <infiniband/verbs.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define PORT 1
#define FRAMES 20
#define SLOTS 32
#define SLOT 2048
#define LENGTH 200
#define WITHIN_S 20
/* Experimental (IEEE 802, local). */
#define ETHERTYPE 0x88b5

static const uint8_t OWN[6] = { 0x02, 0, 0, 0, 0, 0xa0 };
static const uint8_t PEER[6] = { 0x02, 0, 0, 0, 0, 0xb0 };
static const uint8_t NOBODY[6] = { 0x02, 0, 0, 0, 0, 0xc0 };
static const uint8_t GROUP[6] = { 0x01, 0x00, 0x5e, 0x12, 0x34, 0x56 };

struct end {
    struct ibv_cq *sends, *receives;
    struct ibv_qp *qp;
    struct ibv_mr *mr;
    uint8_t *memory;
    unsigned posted;
};

static struct ibv_context *device;
static struct ibv_pd *pd;

static void fail(const char *format, ...) {
    va_list args;
    va_start(args, format);
    vprintf(format, args);
    va_end(args);
    printf(" (%s)\n", strerror(errno));
    exit(1);
}

static void move(struct ibv_qp *qp, enum ibv_qp_state state, int mask) {
    struct ibv_qp_attr attr = { .qp_state = state, .port_num = PORT };
    if (ibv_modify_qp(qp, &attr, IBV_QP_STATE | mask))
        fail("a queue pair does not go to state %d", state);
}

/* The first half of the slots is for receives, in order; the second half is for sends. */
static void post_receive(struct end *end) {
    unsigned slot = end->posted++ % SLOTS;
    struct ibv_sge part = { (uintptr_t)end->memory + slot * SLOT, SLOT, end->mr->lkey };
    struct ibv_recv_wr work = { .wr_id = slot, .sg_list = &part, .num_sge = 1 }, *bad;
    if (ibv_post_recv(end->qp, &work, &bad))
        fail("no receive can be posted");
}

static struct end make(void) {
    struct end end = { 0 };
    end.memory = aligned_alloc(4096, 2 * SLOTS * SLOT);
    end.mr = end.memory ? ibv_reg_mr(pd, end.memory, 2 * SLOTS * SLOT, IBV_ACCESS_LOCAL_WRITE) : NULL;
    end.sends = ibv_create_cq(device, 2 * SLOTS, NULL, NULL, 0);
    end.receives = ibv_create_cq(device, 2 * SLOTS, NULL, NULL, 0);
    if (!end.mr || !end.sends || !end.receives)
        fail("no memory or completion queues");
    struct ibv_qp_init_attr init = {
        .send_cq = end.sends,
        .recv_cq = end.receives,
        .cap = { .max_send_wr = SLOTS, .max_recv_wr = SLOTS, .max_send_sge = 1, .max_recv_sge = 1,
                 .max_inline_data = 256 },
        .qp_type = IBV_QPT_RAW_PACKET,
        .sq_sig_all = 1,
    };
    if (!(end.qp = ibv_create_qp(pd, &init)))
        fail("no raw queue pair");
    move(end.qp, IBV_QPS_INIT, IBV_QP_PORT);
    move(end.qp, IBV_QPS_RTR, 0);
    move(end.qp, IBV_QPS_RTS, 0);
    for (int i = 0; i < SLOTS; i++)
        post_receive(&end);
    return end;
}

static struct ibv_flow *rule(struct end *end, const uint8_t to[6]) {
    struct {
        struct ibv_flow_attr attr;
        struct ibv_flow_spec_eth eth;
    } flow = {
        .attr = { .type = IBV_FLOW_ATTR_NORMAL, .size = sizeof flow, .num_of_specs = 1, .port = PORT },
        .eth = { .type = IBV_FLOW_SPEC_ETH, .size = sizeof flow.eth },
    };
    memcpy(flow.eth.val.dst_mac, to, 6);
    memset(flow.eth.mask.dst_mac, 0xff, 6);
    struct ibv_flow *made = ibv_create_flow(end->qp, &flow.attr);
    if (!made)
        fail("no rule");
    return made;
}

static double now(void) {
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return at.tv_sec + at.tv_nsec / 1e9;
}

/* Waits for a completion. */
static struct ibv_wc completion(struct ibv_cq *cq, const char *what) {
    struct ibv_wc wc;
    double end = now() + WITHIN_S;
    int count;
    while (!(count = ibv_poll_cq(cq, 1, &wc)))
        if (now() > end)
            fail("%s does not come", what);
    if (count < 0 || wc.status != IBV_WC_SUCCESS)
        fail("%s: %s", what, count < 0 ? "no poll" : ibv_wc_status_str(wc.status));
    return wc;
}

static void send_to(struct end *end, const uint8_t to[6], unsigned number, int flags) {
    uint8_t *frame = end->memory + (SLOTS + number % SLOTS) * SLOT;
    memcpy(frame, to, 6);
    memcpy(frame + 6, OWN, 6);
    frame[12] = ETHERTYPE >> 8;
    frame[13] = ETHERTYPE & 0xff;
    for (int i = 14; i < LENGTH; i++)
        frame[i] = (uint8_t)(i * 7 + number);
    struct ibv_sge part = { (uintptr_t)frame, LENGTH, end->mr->lkey };
    struct ibv_send_wr work = { .sg_list = &part, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = flags }, *bad;
    if (ibv_post_send(end->qp, &work, &bad))
        fail("no send can be posted");
    completion(end->sends, "the end of a send");
}

static void take(struct end *end, const uint8_t to[6], unsigned number, const char *who) {
    struct ibv_wc wc = completion(end->receives, who);
    const uint8_t *frame = end->memory + wc.wr_id * SLOT;
    if (wc.byte_len != LENGTH || memcmp(frame, to, 6) || memcmp(frame + 6, OWN, 6))
        fail("%s: %u bytes of another frame", who, wc.byte_len);
    for (int i = 14; i < LENGTH; i++)
        if (frame[i] != (uint8_t)(i * 7 + number))
            fail("%s: frame %u is not as it was sent, at %d", who, number, i);
    post_receive(end);
}

static void nothing(struct end *end, const char *who) {
    struct ibv_wc wc;
    if (ibv_poll_cq(end->receives, 1, &wc))
        fail("%s has a frame", who);
}

/* A frame to PEER follows the others: once it has arrived, they would have arrived too. */
static void inside(void) {
    struct end sender = make(), peer = make(), other = make();
    rule(&peer, PEER);
    for (unsigned n = 0; n < FRAMES; n++) {
        send_to(&sender, PEER, n, n % 2 ? IBV_SEND_INLINE : 0);
        take(&peer, PEER, n, "the queue pair that a rule names");
    }
    send_to(&sender, NOBODY, 1, 0);
    send_to(&sender, GROUP, 2, 0);
    send_to(&sender, PEER, 3, 0);
    take(&peer, PEER, 3, "the queue pair that a rule names");
    rule(&sender, GROUP);
    rule(&peer, GROUP);
    struct ibv_flow *last = rule(&other, GROUP);
    for (unsigned n = 0; n < FRAMES; n++) {
        send_to(&sender, GROUP, n, 0);
        take(&peer, GROUP, n, "the first of the group");
        take(&other, GROUP, n, "the second of the group");
    }
    if (ibv_destroy_flow(last))
        fail("a rule does not go");
    send_to(&sender, GROUP, 4, 0);
    take(&peer, GROUP, 4, "the first of the group");
    nothing(&peer, "the first");
    nothing(&other, "the second, without its rule,");
    nothing(&sender, "the sender");
    puts("all frames came where rules say");
}

static void listen_to_group(void) {
    struct end end = make();
    rule(&end, GROUP);
    FILE *ready = fopen("/tmp/listens", "w");
    if (!ready || fclose(ready))
        fail("no file");
    for (unsigned n = 0; n < FRAMES; n++)
        take(&end, GROUP, n, "a frame of the group");
    puts("all frames of the group came");
}

int main(int count, char **words) {
    int devices;
    struct ibv_device **list = ibv_get_device_list(&devices);
    if (!list || !devices || !(device = ibv_open_device(list[0])) || !(pd = ibv_alloc_pd(device)))
        fail("no device");
    const char *what = count == 2 ? words[1] : "";
    if (!strcmp(what, "inside")) {
        inside();
    } else if (!strcmp(what, "listen")) {
        listen_to_group();
    } else if (!strcmp(what, "send")) {
        struct end end = make();
        for (unsigned n = 0; n < FRAMES; n++)
            send_to(&end, GROUP, n, 0);
        puts("sent");
    } else {
        fail("inside, listen or send?");
    }
    return 0;
}
