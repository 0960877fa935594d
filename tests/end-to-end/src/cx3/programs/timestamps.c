// Timestamps by the card's clock, in a Linux guest.
//
//   timestamps DEVICE GID-INDEX       of completions: a reliable queue pair is connected to itself; each message completes
//                                     twice, as sent and as received, in one completion queue with timestamps. These must
//                                     grow, and lie between readings of the card's clock before and after. Prints the core
//                                     clock, and the first and last timestamp.
//   timestamps frames INTERFACE PEER  of frames: echo requests to an address and the replies. Each is sent after the one
//                                     before was received. All lie between readings of the network device's clock before
//                                     and after.
#include <arpa/inet.h>
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <linux/net_tstamp.h>
#include <linux/sockios.h>
#include <net/if.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { MESSAGES = 50, LEN = 64, WITHIN_S = 20 };

#define CHECK(condition) \
    do { \
        if (!(condition)) { \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition); \
            perror("last error"); \
            exit(1); \
        } \
    } while (0)

static struct ibv_context *open_device(const char *name)
{
    struct ibv_device **list = ibv_get_device_list(NULL);
    for (; list && *list; list++)
        if (!strcmp(ibv_get_device_name(*list), name))
            return ibv_open_device(*list);
    return NULL;
}

static uint64_t now(struct ibv_context *context)
{
    struct ibv_values_ex values = {.comp_mask = IBV_VALUES_MASK_RAW_CLOCK};
    CHECK(!ibv_query_rt_values_ex(context, &values) && values.comp_mask == IBV_VALUES_MASK_RAW_CLOCK);
    return (uint64_t)values.raw_clock.tv_nsec;
}

static void connect_to_itself(struct ibv_qp *qp, int gid_index)
{
    union ibv_gid gid;
    CHECK(!ibv_query_gid(qp->context, 1, gid_index, &gid));
    struct ibv_qp_attr init = {.qp_state = IBV_QPS_INIT, .port_num = 1};
    CHECK(!ibv_modify_qp(qp, &init, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
    struct ibv_qp_attr receive = {
        .qp_state = IBV_QPS_RTR,
        .path_mtu = IBV_MTU_1024,
        .dest_qp_num = qp->qp_num,
        .max_dest_rd_atomic = 1,
        .min_rnr_timer = 12,
        .ah_attr = {.is_global = 1, .port_num = 1,
            .grh = {.dgid = gid, .sgid_index = (uint8_t)gid_index, .hop_limit = 64}},
    };
    CHECK(!ibv_modify_qp(qp, &receive, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
        IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER));
    struct ibv_qp_attr send = {
        .qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7, .max_rd_atomic = 1};
    CHECK(!ibv_modify_qp(qp, &send, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
        IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC));
}

// Sends one message. Returns the timestamp of its later completion, or 0.
static uint64_t message(struct ibv_qp *qp, struct ibv_cq_ex *cq, struct ibv_mr *region, uint64_t after)
{
    struct ibv_sge place = {.addr = (uintptr_t)region->addr, .length = LEN, .lkey = region->lkey};
    struct ibv_recv_wr receive = {.sg_list = &place, .num_sge = 1}, *bad_receive;
    struct ibv_send_wr send = {
        .sg_list = &place, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED}, *bad_send;
    CHECK(!ibv_post_recv(qp, &receive, &bad_receive) && !ibv_post_send(qp, &send, &bad_send));
    struct ibv_poll_cq_attr none = {0};
    int completed = 0;
    for (time_t end = time(NULL) + WITHIN_S; completed < 2 && time(NULL) < end;) {
        if (ibv_start_poll(cq, &none))
            continue;
        do {
            uint64_t stamp = ibv_wc_read_completion_ts(cq);
            CHECK(cq->status == IBV_WC_SUCCESS);
            CHECK(stamp >= after);
            after = stamp;
            completed++;
        } while (!ibv_next_poll(cq));
        ibv_end_poll(cq);
    }
    CHECK(completed == 2);
    return after;
}

static void completions(const char *name, int gid_index)
{
    struct ibv_context *context = open_device(name);
    CHECK(context);
    struct ibv_device_attr_ex device;
    CHECK(!ibv_query_device_ex(context, NULL, &device));
    CHECK(device.hca_core_clock && device.completion_timestamp_mask == 0xffffffffffff);
    struct ibv_pd *pd = ibv_alloc_pd(context);
    struct ibv_mr *region = ibv_reg_mr(pd, aligned_alloc(4096, 4096), 4096, IBV_ACCESS_LOCAL_WRITE);
    struct ibv_cq_init_attr_ex queue = {
        .cqe = 64, .wc_flags = IBV_WC_EX_WITH_BYTE_LEN | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP};
    struct ibv_cq_ex *cq = ibv_create_cq_ex(context, &queue);
    CHECK(pd && region && cq);
    struct ibv_qp_init_attr attr = {
        .qp_type = IBV_QPT_RC,
        .send_cq = ibv_cq_ex_to_cq(cq),
        .recv_cq = ibv_cq_ex_to_cq(cq),
        .cap = {.max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1},
    };
    struct ibv_qp *qp = ibv_create_qp(pd, &attr);
    CHECK(qp);
    connect_to_itself(qp, gid_index);
    uint64_t begin = now(context), last = begin, first = 0;
    for (int n = 0; n < MESSAGES; n++) {
        uint64_t stamp = message(qp, cq, region, last);
        // Two messages are never in flight at once: the second is sent when the first has completed.
        CHECK(stamp > last);
        first = first ? first : stamp;
        last = stamp;
    }
    CHECK(first < last && last <= now(context));
    printf("core clock %lu kHz; timestamps %lu to %lu\n", (unsigned long)device.hca_core_clock,
        (unsigned long)first, (unsigned long)last);
}

static int64_t nanos(struct timespec time)
{
    return time.tv_sec * 1000000000LL + time.tv_nsec;
}

// The network device's clock.
static int64_t device_time(int clock)
{
    struct timespec time;
    // The kernel's conversion of a file descriptor to a clock.
    CHECK(!clock_gettime(~(clockid_t)clock << 3 | 3, &time));
    return nanos(time);
}

// The timestamp of the next message of a socket, by the network device's clock.
static int64_t stamp_of_next(int socket, int flags)
{
    uint8_t data[256], control[512];
    struct iovec place = {.iov_base = data, .iov_len = sizeof(data)};
    struct msghdr message = {
        .msg_iov = &place, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof(control)};
    struct pollfd ready = {.fd = socket, .events = flags ? 0 : POLLIN};
    CHECK(poll(&ready, 1, WITHIN_S * 1000) == 1);
    CHECK(recvmsg(socket, &message, flags) >= 0);
    for (struct cmsghdr *part = CMSG_FIRSTHDR(&message); part; part = CMSG_NXTHDR(&message, part)) {
        if (part->cmsg_level == SOL_SOCKET && part->cmsg_type == SO_TIMESTAMPING) {
            // The last of three timestamps is the device's.
            struct timespec stamps[3];
            memcpy(stamps, CMSG_DATA(part), sizeof(stamps));
            return nanos(stamps[2]);
        }
    }
    return 0;
}

static void frames(const char *interface, const char *peer)
{
    int echo = socket(AF_INET, SOCK_RAW, IPPROTO_ICMP), clock = open("/dev/ptp0", O_RDWR);
    CHECK(echo >= 0 && clock >= 0);
    struct hwtstamp_config config = {.tx_type = HWTSTAMP_TX_ON, .rx_filter = HWTSTAMP_FILTER_ALL};
    struct ifreq request = {.ifr_data = (void *)&config};
    strncpy(request.ifr_name, interface, sizeof(request.ifr_name) - 1);
    CHECK(!ioctl(echo, SIOCSHWTSTAMP, &request));
    int wanted = SOF_TIMESTAMPING_TX_HARDWARE | SOF_TIMESTAMPING_RX_HARDWARE | SOF_TIMESTAMPING_RAW_HARDWARE;
    CHECK(!setsockopt(echo, SOL_SOCKET, SO_TIMESTAMPING, &wanted, sizeof(wanted)));
    struct sockaddr_in to = {.sin_family = AF_INET};
    CHECK(inet_pton(AF_INET, peer, &to.sin_addr) == 1);
    int64_t begin = device_time(clock), last = begin;
    for (uint8_t n = 0; n < MESSAGES; n++) {
        // An echo request: its type, the checksum, the sequence number.
        uint16_t checksum = (uint16_t)~(0x0800 + n);
        uint8_t packet[16] = {8, 0, (uint8_t)(checksum >> 8), (uint8_t)checksum, 0, 0, 0, n};
        CHECK(sendto(echo, packet, sizeof(packet), 0, (struct sockaddr *)&to, sizeof(to)) == sizeof(packet));
        int64_t sent = stamp_of_next(echo, MSG_ERRQUEUE);
        int64_t received = stamp_of_next(echo, 0);
        CHECK(last < sent && sent < received);
        last = received;
    }
    int64_t end = device_time(clock);
    CHECK(last < end);
    printf("timestamps of frames: %lld ns to %lld ns\n", (long long)begin, (long long)end);
}

int main(int argc, char **argv)
{
    if (argc == 3)
        completions(argv[1], atoi(argv[2]));
    else if (argc == 4 && !strcmp(argv[1], "frames"))
        frames(argv[2], argv[3]);
    else
        return 2;
    return 0;
}
