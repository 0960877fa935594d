// An RSS queue pair over an indirection table of four receive work queues, in a Linux guest.
//
//   rss receive DEVICE COUNT   listens on TCP port 18515 as perftest does, and expects COUNT frames; prints the number per
//                              queue. Fails if a frame is missing, or in another queue than its hash selects.
//   rss send INTERFACE COUNT SERVER   sends COUNT frames, each from another address, then connects to the server.
#include <arpa/inet.h>
#include <dlfcn.h>
#include <infiniband/verbs.h>
#include <linux/if_packet.h>
#include <net/if.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { LOG_QUEUES = 2, QUEUES = 1 << LOG_QUEUES, DEPTH = 256, BUFFER = 2048, PORT = 18515, WITHIN_S = 20 };
enum { IP = 14, SOURCE = IP + 12, FRAME = 100 };

static const uint8_t MAC[6] = {0x02, 0x55, 0, 0, 0, 1};
static uint8_t key[40];

#define CHECK(condition) \
    do { \
        if (!(condition)) { \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition); \
            perror("last error"); \
            exit(1); \
        } \
    } while (0)

// Microsoft's hash: for each bit that is set, the 32 bits of the key from that position on.
static uint32_t toeplitz(const uint8_t *data, size_t len)
{
    uint32_t hash = 0;
    for (size_t bit = 0; bit < 8 * len; bit++) {
        if (!(data[bit / 8] >> (7 - bit % 8) & 1))
            continue;
        for (size_t at = 0; at < 32; at++)
            hash ^= (uint32_t)(key[(bit + at) / 8] >> (7 - (bit + at) % 8) & 1) << (31 - at);
    }
    return hash;
}

static struct ibv_context *open_device(const char *name)
{
    struct ibv_device **list = ibv_get_device_list(NULL);
    for (; list && *list; list++)
        if (!strcmp(ibv_get_device_name(*list), name))
            return ibv_open_device(*list);
    return NULL;
}

// The numbers of an indirection table's queues are consecutive only if the driver is told their count before.
static void reserve_queues(struct ibv_context *context)
{
    void *provider = dlopen("/usr/lib/x86_64-linux-gnu/libibverbs/libmlx4-rdmav34.so", RTLD_NOW);
    int (*set)(struct ibv_context *, int, void *) = NULL;
    if (provider)
        *(void **)&set = dlsym(provider, "mlx4dv_set_context_attr");
    CHECK(set);
    uint8_t log_size = LOG_QUEUES;
    CHECK(!set(context, 0, &log_size));
}

static struct ibv_qp *spread(struct ibv_context *context, struct ibv_pd *pd, struct ibv_wq **queues)
{
    struct ibv_rwq_ind_table_init_attr table = {.log_ind_tbl_size = LOG_QUEUES, .ind_tbl = queues};
    struct ibv_rwq_ind_table *indirection = ibv_create_rwq_ind_table(context, &table);
    CHECK(indirection);
    struct ibv_qp_init_attr_ex attr = {
        .qp_type = IBV_QPT_RAW_PACKET,
        .comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_IND_TABLE | IBV_QP_INIT_ATTR_RX_HASH,
        .pd = pd,
        .rwq_ind_tbl = indirection,
        .rx_hash_conf = {
            .rx_hash_function = IBV_RX_HASH_FUNC_TOEPLITZ,
            .rx_hash_key_len = sizeof(key),
            .rx_hash_key = key,
            .rx_hash_fields_mask = IBV_RX_HASH_SRC_IPV4 | IBV_RX_HASH_DST_IPV4,
        },
    };
    struct ibv_qp *qp = ibv_create_qp_ex(context, &attr);
    CHECK(qp);
    struct ibv_qp_attr state = {.qp_state = IBV_QPS_INIT, .port_num = 1};
    CHECK(!ibv_modify_qp(qp, &state, IBV_QP_STATE | IBV_QP_PORT));
    state.qp_state = IBV_QPS_RTR;
    CHECK(!ibv_modify_qp(qp, &state, IBV_QP_STATE));
    struct {
        struct ibv_flow_attr attr;
        struct ibv_flow_spec_eth ethernet;
    } rule = {
        .attr = {.type = IBV_FLOW_ATTR_NORMAL, .size = sizeof(rule), .num_of_specs = 1, .port = 1},
        .ethernet = {.type = IBV_FLOW_SPEC_ETH, .size = sizeof(rule.ethernet)},
    };
    memcpy(rule.ethernet.val.dst_mac, MAC, sizeof(MAC));
    memset(rule.ethernet.mask.dst_mac, 0xff, sizeof(MAC));
    CHECK(ibv_create_flow(qp, &rule.attr));
    return qp;
}

static int listening(void)
{
    struct sockaddr_in any = {.sin_family = AF_INET, .sin_port = htons(PORT)};
    int one = 1, listener = socket(AF_INET, SOCK_STREAM, 0);
    CHECK(listener >= 0 && !setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one)));
    CHECK(!bind(listener, (struct sockaddr *)&any, sizeof(any)) && !listen(listener, 1));
    return listener;
}

static void receive(const char *device, int count)
{
    struct ibv_context *context = open_device(device);
    CHECK(context);
    struct ibv_pd *pd = ibv_alloc_pd(context);
    uint8_t *memory = aligned_alloc(4096, QUEUES * DEPTH * BUFFER);
    CHECK(pd && memory);
    struct ibv_mr *region = ibv_reg_mr(pd, memory, QUEUES * DEPTH * BUFFER, IBV_ACCESS_LOCAL_WRITE);
    CHECK(region);
    reserve_queues(context);
    struct ibv_wq *queues[QUEUES];
    struct ibv_cq *completions[QUEUES];
    for (int n = 0; n < QUEUES; n++) {
        completions[n] = ibv_create_cq(context, DEPTH, NULL, NULL, 0);
        CHECK(completions[n]);
        struct ibv_wq_init_attr attr = {
            .wq_type = IBV_WQT_RQ, .max_wr = DEPTH, .max_sge = 1, .pd = pd, .cq = completions[n]};
        queues[n] = ibv_create_wq(context, &attr);
        CHECK(queues[n]);
        struct ibv_wq_attr ready = {.attr_mask = IBV_WQ_ATTR_STATE, .wq_state = IBV_WQS_RDY};
        CHECK(!ibv_modify_wq(queues[n], &ready));
        for (int i = 0; i < DEPTH; i++) {
            uintptr_t at = (uintptr_t)memory + (uintptr_t)(n * DEPTH + i) * BUFFER;
            struct ibv_sge place = {.addr = at, .length = BUFFER, .lkey = region->lkey};
            struct ibv_recv_wr work = {.wr_id = at, .sg_list = &place, .num_sge = 1}, *bad;
            CHECK(!ibv_post_wq_recv(queues[n], &work, &bad));
        }
    }
    for (size_t n = 0; n < sizeof(key); n++)
        key[n] = (uint8_t)(n * 37 + 11);
    spread(context, pd, queues);
    int listener = listening(), got[QUEUES] = {0}, sum = 0;
    CHECK(accept(listener, NULL, NULL) >= 0);
    for (time_t end = time(NULL) + WITHIN_S; sum < count && time(NULL) < end;) {
        for (int n = 0; n < QUEUES; n++) {
            struct ibv_wc done;
            while (ibv_poll_cq(completions[n], 1, &done) > 0) {
                const uint8_t *frame = (const uint8_t *)(uintptr_t)done.wr_id;
                CHECK(done.status == IBV_WC_SUCCESS && done.qp_num == queues[n]->wq_num);
                CHECK(done.byte_len == FRAME && !memcmp(frame, MAC, sizeof(MAC)));
                CHECK(frame[FRAME - 1] == 0x5a);
                CHECK((int)(toeplitz(frame + SOURCE, 8) % QUEUES) == n);
                got[n]++;
                sum++;
            }
        }
    }
    printf("frames by queue:");
    for (int n = 0; n < QUEUES; n++)
        printf(" %d", got[n]);
    printf("\n");
    CHECK(sum == count);
}

static void send_frames(const char *interface, int count, const char *server)
{
    int out = socket(AF_PACKET, SOCK_RAW, 0);
    struct sockaddr_ll to = {.sll_family = AF_PACKET, .sll_ifindex = (int)if_nametoindex(interface)};
    CHECK(out >= 0 && to.sll_ifindex);
    for (int n = 0; n < count; n++) {
        uint8_t frame[FRAME] = {0x02, 0x55, 0, 0, 0, 1, 0x02, 0, 0, 0, 0, 0x77, 0x08, 0x00,
            // IPv4 with UDP; the checksums are not verified.
            0x45, 0, 0, FRAME - IP, 0, 0, 0x40, 0, 64, 17, 0, 0, 10, 1, 0, (uint8_t)n, 10, 2, 0, 1,
            0, 7, 0, 9, 0, FRAME - IP - 20, 0, 0};
        frame[FRAME - 1] = 0x5a;
        CHECK(sendto(out, frame, sizeof(frame), 0, (struct sockaddr *)&to, sizeof(to)) == FRAME);
    }
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(PORT)};
    CHECK(inet_pton(AF_INET, server, &address.sin_addr) == 1);
    CHECK(!connect(socket(AF_INET, SOCK_STREAM, 0), (struct sockaddr *)&address, sizeof(address)));
}

int main(int argc, char **argv)
{
    if (argc == 4 && !strcmp(argv[1], "receive"))
        receive(argv[2], atoi(argv[3]));
    else if (argc == 5 && !strcmp(argv[1], "send"))
        send_frames(argv[2], atoi(argv[3]), argv[4]);
    else
        return 2;
    return 0;
}
