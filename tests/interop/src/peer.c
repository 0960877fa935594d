/* The Linux end of the interoperability tests: a connected queue pair on rxe0, and one for datagrams on request,
 * controlled by lines on standard input.
 *
 * The output begins with `ready QPN RKEY ADDRESS LENGTH`. Each input line is a command with numbers (as strtoull parses
 * them). Its answer is one line `ok ...` or `error ...`, preceded by a line `wc ...` for each awaited completion. */
#include <endian.h>
#include <errno.h>
#include <infiniband/verbs.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define MEMORY (4 << 20)
#define DEPTH 256
#define MOST 16

static struct ibv_context *device;
static struct ibv_pd *pd;
static struct ibv_cq *cq;
static struct ibv_qp *qp;
/* The queue pair for datagrams, and the address of the only receiver. */
static struct ibv_qp *ud_qp;
static struct ibv_ah *ud_to;
static struct ibv_mr *mr;
static uint8_t *memory;

static void answer(const char *format, ...) {
    va_list args;
    va_start(args, format);
    vprintf(format, args);
    va_end(args);
    putchar('\n');
    fflush(stdout);
}

static void result(int failed, const char *what) {
    if (failed)
        answer("error %s: %s", what, strerror(errno));
    else
        answer("ok");
}

static int outside(uint64_t offset, uint64_t length) {
    return offset > MEMORY || length > MEMORY - offset;
}

static uint8_t pattern(uint64_t i, uint64_t seed) {
    return (uint8_t)((i * 7 + (i >> 8) * 13) ^ seed);
}

static struct ibv_ah_attr way_to(uint64_t gid_index, uint64_t gid_high, uint64_t gid_low) {
    struct ibv_ah_attr to = { .is_global = 1, .port_num = 1,
                              .grh = { .sgid_index = (uint8_t)gid_index, .hop_limit = 64 } };
    for (int i = 0; i < 8; i++) {
        to.grh.dgid.raw[i] = (uint8_t)(gid_high >> (56 - 8 * i));
        to.grh.dgid.raw[8 + i] = (uint8_t)(gid_low >> (56 - 8 * i));
    }
    return to;
}

/* connect MTU GID-INDEX PEER-QPN SEND-PSN RECV-PSN TIMEOUT RETRIES RNR-RETRIES MIN-RNR-TIMER GID-HIGH GID-LOW */
static void connect_qp(const uint64_t *a) {
    struct ibv_qp_attr rtr = {
        .qp_state = IBV_QPS_RTR,
        .path_mtu = (enum ibv_mtu)a[0],
        .dest_qp_num = (uint32_t)a[2],
        .rq_psn = (uint32_t)a[4],
        .max_dest_rd_atomic = 16,
        .min_rnr_timer = (uint8_t)a[8],
        .ah_attr = way_to(a[1], a[9], a[10]),
    };
    if (ibv_modify_qp(qp, &rtr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                                    IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER)) {
        result(1, "RTR");
        return;
    }
    struct ibv_qp_attr rts = {
        .qp_state = IBV_QPS_RTS,
        .sq_psn = (uint32_t)a[3],
        .timeout = (uint8_t)a[5],
        .retry_cnt = (uint8_t)a[6],
        .rnr_retry = (uint8_t)a[7],
        .max_rd_atomic = 16,
    };
    result(ibv_modify_qp(qp, &rts, IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
                                       IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC), "RTS");
}

/* ud_open QKEY GID-INDEX GID-HIGH GID-LOW: creates a queue pair for datagrams to that GID; answers `ok QPN`. */
static void ud_open(const uint64_t *a) {
    struct ibv_qp_init_attr init = { .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_UD,
        .cap = { .max_send_wr = DEPTH, .max_recv_wr = DEPTH, .max_send_sge = 1, .max_recv_sge = 1 } };
    struct ibv_qp_attr begin = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = (uint32_t)a[0] };
    struct ibv_qp_attr rtr = { .qp_state = IBV_QPS_RTR };
    struct ibv_qp_attr rts = { .qp_state = IBV_QPS_RTS };
    struct ibv_ah_attr to = way_to(a[1], a[2], a[3]);
    if (!(ud_qp = ibv_create_qp(pd, &init)) ||
        ibv_modify_qp(ud_qp, &begin, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY) ||
        ibv_modify_qp(ud_qp, &rtr, IBV_QP_STATE) || ibv_modify_qp(ud_qp, &rts, IBV_QP_STATE | IBV_QP_SQ_PSN))
        result(1, "UD queue pair");
    else if (!(ud_to = ibv_create_ah(pd, &to)))
        result(1, "address handle");
    else
        answer("ok %u", ud_qp->qp_num);
}

/* ud_send ID OFFSET LENGTH QPN QKEY, and ud_send_imm with a further argument IMMEDIATE */
static void ud_send(const uint64_t *a, enum ibv_wr_opcode opcode) {
    if (!ud_to || outside(a[1], a[2])) {
        answer("error outside, or not opened");
        return;
    }
    struct ibv_sge sge = { (uintptr_t)memory + a[1], (uint32_t)a[2], mr->lkey };
    struct ibv_send_wr wr = { .wr_id = a[0], .sg_list = &sge, .num_sge = a[2] > 0, .opcode = opcode,
        .send_flags = IBV_SEND_SIGNALED, .imm_data = htobe32((uint32_t)a[5]),
        .wr.ud = { .ah = ud_to, .remote_qpn = (uint32_t)a[3], .remote_qkey = (uint32_t)a[4] } }, *bad;
    errno = ibv_post_send(ud_qp, &wr, &bad);
    result(errno, "ud_send");
}

static void post_recv(struct ibv_qp *to, const uint64_t *a) {
    struct ibv_sge sge = { (uintptr_t)memory + a[1], (uint32_t)a[2], mr->lkey };
    struct ibv_recv_wr wr = { .wr_id = a[0], .sg_list = &sge, .num_sge = a[2] > 0 }, *bad;
    if (!to || outside(a[1], a[2])) {
        answer("error outside, or not opened");
        return;
    }
    errno = ibv_post_recv(to, &wr, &bad);
    result(errno, "recv");
}

/* NAME ID OFFSET LENGTH ADDRESS RKEY X Y: X is immediate data, the key to invalidate, the addend or the comparand. */
static int post(const char *name, const uint64_t *a) {
    static const struct { const char *name; enum ibv_wr_opcode opcode; } names[] = {
        { "write", IBV_WR_RDMA_WRITE },          { "write_imm", IBV_WR_RDMA_WRITE_WITH_IMM },
        { "send", IBV_WR_SEND },                 { "send_imm", IBV_WR_SEND_WITH_IMM },
        { "send_inv", IBV_WR_SEND_WITH_INV },    { "read", IBV_WR_RDMA_READ },
        { "fetch_add", IBV_WR_ATOMIC_FETCH_AND_ADD }, { "compare_swap", IBV_WR_ATOMIC_CMP_AND_SWP },
    };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        if (strcmp(name, names[i].name))
            continue;
        if (outside(a[1], a[2])) {
            answer("error outside");
            return 1;
        }
        struct ibv_sge sge = { (uintptr_t)memory + a[1], (uint32_t)a[2], mr->lkey };
        struct ibv_send_wr wr = { .wr_id = a[0], .sg_list = &sge, .num_sge = a[2] > 0, .opcode = names[i].opcode,
                                  .send_flags = IBV_SEND_SIGNALED }, *bad;
        if (i >= 6) {
            wr.wr.atomic.remote_addr = a[3];
            wr.wr.atomic.rkey = (uint32_t)a[4];
            wr.wr.atomic.compare_add = a[5];
            wr.wr.atomic.swap = a[6];
        } else {
            wr.wr.rdma.remote_addr = a[3];
            wr.wr.rdma.rkey = (uint32_t)a[4];
            if (wr.opcode == IBV_WR_SEND_WITH_INV)
                wr.invalidate_rkey = (uint32_t)a[5];
            else
                wr.imm_data = htobe32((uint32_t)a[5]);
        }
        errno = ibv_post_send(qp, &wr, &bad);
        result(errno, name);
        return 1;
    }
    return 0;
}

/* wait COUNT MILLISECONDS */
static void wait_for(const uint64_t *a) {
    struct timespec begin, now;
    clock_gettime(CLOCK_MONOTONIC, &begin);
    for (uint64_t seen = 0; seen < a[0];) {
        struct ibv_wc wc;
        int count = ibv_poll_cq(cq, 1, &wc);
        if (count < 0) {
            result(1, "poll");
            return;
        }
        if (count > 0) {
            seen++;
            /* Fields other than the identifier and the status are valid only on success. */
            answer("wc %" PRIu64 " %d %d %u %u %u", wc.wr_id, wc.status, wc.status ? 0 : wc.opcode,
                   wc.status ? 0 : wc.byte_len, wc.status || !(wc.wc_flags & IBV_WC_WITH_IMM) ? 0 : be32toh(wc.imm_data),
                   wc.status ? 0 : wc.src_qp);
            continue;
        }
        clock_gettime(CLOCK_MONOTONIC, &now);
        if ((uint64_t)((now.tv_sec - begin.tv_sec) * 1000 + (now.tv_nsec - begin.tv_nsec) / 1000000) > a[1]) {
            answer("error only %" PRIu64 " completions", seen);
            return;
        }
        usleep(200);
    }
    answer("ok");
}

/* bind OFFSET LENGTH: binds a memory window of type 2; answers `ok RKEY`. Its completion has the identifier 0. */
static void bind_window(const uint64_t *a) {
    struct ibv_mw *mw = ibv_alloc_mw(pd, IBV_MW_TYPE_2);
    if (!mw) {
        result(1, "alloc_mw");
        return;
    }
    uint32_t rkey = ibv_inc_rkey(mw->rkey);
    struct ibv_send_wr wr = { .opcode = IBV_WR_BIND_MW, .send_flags = IBV_SEND_SIGNALED,
        .bind_mw = { .mw = mw, .rkey = rkey, .bind_info = { .mr = mr, .addr = (uintptr_t)memory + a[0], .length = a[1],
                     .mw_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ } } }, *bad;
    errno = ibv_post_send(qp, &wr, &bad);
    if (errno)
        result(1, "bind_mw");
    else
        answer("ok %u", rkey);
}

static void obey(const char *name, const uint64_t *a) {
    if (!strcmp(name, "connect"))
        connect_qp(a);
    else if (!strcmp(name, "wait"))
        wait_for(a);
    else if (!strcmp(name, "bind"))
        bind_window(a);
    else if (!strcmp(name, "recv")) /* recv ID OFFSET LENGTH */
        post_recv(qp, a);
    else if (!strcmp(name, "ud_open"))
        ud_open(a);
    else if (!strcmp(name, "ud_recv")) /* ud_recv ID OFFSET LENGTH */
        post_recv(ud_qp, a);
    else if (!strcmp(name, "ud_send"))
        ud_send(a, IBV_WR_SEND);
    else if (!strcmp(name, "ud_send_imm"))
        ud_send(a, IBV_WR_SEND_WITH_IMM);
    else if (!strcmp(name, "qkey_violations")) {
        struct ibv_port_attr port;
        if (ibv_query_port(device, 1, &port))
            result(1, "query_port");
        else
            answer("ok %u", port.qkey_viol_cntr);
    } else if (!strcmp(name, "bytes") && !outside(a[0], a[1])) { /* bytes OFFSET LENGTH: `ok BYTE ...` */
        printf("ok");
        for (uint64_t i = 0; i < a[1]; i++)
            printf(" %u", memory[a[0] + i]);
        answer("");
    } else if (!strcmp(name, "fill") && !outside(a[0], a[1])) { /* fill OFFSET LENGTH SEED */
        for (uint64_t i = 0; i < a[1]; i++)
            memory[a[0] + i] = pattern(i, a[2]);
        answer("ok");
    } else if (!strcmp(name, "check") && !outside(a[0], a[1])) { /* check OFFSET LENGTH SEED */
        for (uint64_t i = 0; i < a[1]; i++)
            if (memory[a[0] + i] != pattern(i, a[2])) {
                answer("error byte %" PRIu64 " is %u, not %u", i, memory[a[0] + i], pattern(i, a[2]));
                return;
            }
        answer("ok");
    } else if (!strcmp(name, "set") && !outside(a[0], 8)) { /* set OFFSET WORD */
        memcpy(memory + a[0], &a[1], 8);
        answer("ok");
    } else if (!strcmp(name, "get") && !outside(a[0], 8)) { /* get OFFSET */
        uint64_t word;
        memcpy(&word, memory + a[0], 8);
        answer("ok %" PRIu64, word);
    } else if (!post(name, a))
        answer("error no such command: %s", name);
}

static int fail(const char *what) {
    fprintf(stderr, "%s: %s\n", what, strerror(errno));
    return 1;
}

int main(void) {
    struct ibv_device **list = ibv_get_device_list(NULL);
    if (!list || !*list)
        return fail("no device");
    device = ibv_open_device(*list);
    if (!device || !(pd = ibv_alloc_pd(device)) || !(cq = ibv_create_cq(device, 2 * DEPTH, NULL, NULL, 0)))
        return fail("device");
    memory = aligned_alloc(4096, MEMORY);
    if (!memory)
        return fail("memory");
    memset(memory, 0, MEMORY);
    mr = ibv_reg_mr(pd, memory, MEMORY, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
                                            IBV_ACCESS_REMOTE_ATOMIC | IBV_ACCESS_MW_BIND);
    if (!mr)
        return fail("reg_mr");
    struct ibv_qp_init_attr init = { .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC,
        .cap = { .max_send_wr = DEPTH, .max_recv_wr = DEPTH, .max_send_sge = 1, .max_recv_sge = 1 } };
    qp = ibv_create_qp(pd, &init);
    if (!qp)
        return fail("create_qp");
    struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1,
        .qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC |
                           IBV_ACCESS_MW_BIND };
    if (ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS))
        return fail("INIT");
    answer("ready %u %u %" PRIu64 " %u", qp->qp_num, mr->rkey, (uint64_t)(uintptr_t)memory, MEMORY);

    char line[512];
    while (fgets(line, sizeof line, stdin)) {
        uint64_t a[MOST] = { 0 };
        char *rest, *name = strtok_r(line, " \n", &rest), *word;
        for (int i = 0; i < MOST && (word = strtok_r(NULL, " \n", &rest)); i++)
            a[i] = strtoull(word, NULL, 0);
        if (name)
            obey(name, a);
    }
    return 0;
}
