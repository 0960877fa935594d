/* LITE for programs in C: a node of a Ferrolite cluster inside a process. Generated from the crate `ferrolite` (host/capi); do
 * not edit.
 *
 * Every function that can fail returns a status and may be called by any thread; `fl_last_error` returns a text for the last
 * failure of the calling thread. Every function that waits does so for at most `timeout_ms` milliseconds.
 *
 * A handle (fl_node, fl_region, fl_function, fl_request) is a number, not an address: nothing is read through it. The function that
 * gives it back is called once, also while other threads use the handle: their calls end as that function documents, and the
 * objects that they use stay valid until then. Every use of a handle that was given back, including giving it back again, returns
 * FL_CLOSED; null, or a value that is not a handle of that kind, returns FL_INVALID_ARGUMENT.
 *
 * Rules that the library cannot check:
 * - Texts end with a zero byte and are UTF-8. Buffers are as long as their length argument. Neither changes during a call.
 * - A result is stored through its pointer only if the status is FL_OK.
 */

#ifndef FERROLITE_H
#define FERROLITE_H

#include <stddef.h>
#include <stdint.h>

/**
 * The right to read a region.
 */
#define FL_READ 1

/**
 * The right to write and to memset.
 */
#define FL_WRITE 2

/**
 * The right to map the region by name; a region that grants it to no node cannot be published.
 */
#define FL_SHARE 4

/**
 * The right to publish and free the region through this handle. The node that allocates a region has it;
 * other nodes have it if it is among the rights that the region was allocated with.
 */
#define FL_ADMIN 8

/**
 * The right to fetch-and-add and compare-and-swap.
 */
#define FL_ATOMIC 16

/**
 * All rights on a region.
 */
#define FL_ALL 31

/**
 * The result of a call. All errors mean that the operation had no effect, except `FL_UNKNOWN`, and
 * `FL_NODE_DOWN` and `FL_LINK_DOWN` of a long write or a memset.
 */
typedef enum {
  /**
   * The call has succeeded.
   */
  FL_OK = 0,
  /**
   * The deadline passed before the operation took effect.
   */
  FL_DEADLINE = 1,
  /**
   * The operation was issued and its outcome is not known: it may have happened. A write or an atomic
   * may still happen until the transport gives it up, seconds later.
   */
  FL_UNKNOWN = 2,
  /**
   * The node has left the cluster or is declared dead.
   */
  FL_NODE_DOWN = 3,
  /**
   * No node has that number or name.
   */
  FL_NO_SUCH_NODE = 4,
  /**
   * No region or object is published under the requested name.
   */
  FL_NO_SUCH_NAME = 5,
  /**
   * The name or function number is in use already.
   */
  FL_NAME_TAKEN = 6,
  /**
   * The node serves no function of that number.
   */
  FL_NO_SUCH_FUNCTION = 7,
  /**
   * The region does not grant the required right, or the handle does not have it.
   */
  FL_PERMISSION = 8,
  /**
   * Offset and length reach beyond the region.
   */
  FL_OUT_OF_BOUNDS = 9,
  /**
   * The offset of an atomic is not a multiple of 8.
   */
  FL_MISALIGNED = 10,
  /**
   * The region has been freed.
   */
  FL_FREED = 11,
  /**
   * The nodes that were to have the memory have less free, or the process has too many handles.
   */
  FL_NO_MEMORY = 12,
  /**
   * A request or reply is longer than its receiver accepts.
   */
  FL_TOO_LARGE = 13,
  /**
   * The two nodes speak no link kind in common.
   */
  FL_NO_SHARED_LINK = 14,
  /**
   * This process is no longer a member of the cluster.
   */
  FL_LINK_DOWN = 15,
  /**
   * The other node refused.
   */
  FL_REFUSED = 16,
  /**
   * An argument is not valid: a null pointer, a text that is not UTF-8, an unknown word.
   */
  FL_INVALID_ARGUMENT = 17,
  /**
   * The process could not join the cluster.
   */
  FL_NOT_JOINED = 18,
  /**
   * An error in this library.
   */
  FL_INTERNAL = 19,
  /**
   * The handle was given back, by this thread or another.
   */
  FL_CLOSED = 20,
} fl_status;

/**
 * A function that this node serves.
 */
typedef struct fl_function fl_function;

/**
 * This process as a member of a cluster.
 */
typedef struct fl_node fl_node;

/**
 * Memory of a node, mapped here.
 */
typedef struct fl_region fl_region;

/**
 * A call of a function of this node that waits for its reply.
 */
typedef struct fl_request fl_request;

/**
 * The options of `fl_join`. A null or zero field stands for the default in brackets; fill the rest with
 * zeroes.
 */
typedef struct {
  /**
   * The manager's address, `host:port` [127.0.0.1:18500].
   */
  const char *manager;
  /**
   * The file with the cluster key. Required.
   */
  const char *key_file;
  /**
   * The name of the node. Required.
   */
  const char *name;
  /**
   * The RNIC: `ibverbs`, which is the default, or `softroce`.
   */
  const char *nic;
  /**
   * For ibverbs, the RDMA device, as `rdma link` names it [the first with an active port].
   */
  const char *device;
  /**
   * For ibverbs, the IP address of the port to use [the first].
   */
  const char *address;
  /**
   * The path of the fabric's Unix socket. Required for softroce.
   */
  const char *fabric_socket;
  /**
   * The bytes of memory that the process gives to the cluster, for its regions and those of others [64
   * MiB].
   */
  uint64_t memory;
} fl_options;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/**
 * Returns the reason for which the last failed call of this thread failed: one line, never null. It stays
 * valid until the thread's next failure.
 */
const char *fl_last_error(void);

/**
 * Returns the general meaning of a status: one line, never null, valid for ever.
 */
const char *fl_status_text(int32_t status);

/**
 * Joins a cluster. One process may join several times, under different names.
 */
fl_status fl_join(const fl_options *options, uint32_t timeout_ms, fl_node **node);

/**
 * Leaves the cluster in good order and gives the handle back, also if it fails. Nothing new begins from
 * the call on: calls of other threads that wait for an event (`fl_receive`, `fl_barrier`, `fl_find_node`,
 * `fl_map`), and later calls with regions and functions of this node, end with `FL_LINK_DOWN`; those
 * handles must still be given back. The function then waits, for at most `timeout_ms`, for requests that
 * were received and not given back and for operations in flight. `FL_DEADLINE` means that some were cut
 * off; the node has left all the same.
 */
fl_status fl_leave(fl_node *node, uint32_t timeout_ms);

/**
 * Returns the number of this node in the cluster; 0 for a handle that is null or was given back.
 */
uint16_t fl_node_id(const fl_node *node);

/**
 * Stores the numbers of the live members, this node included, in ascending order: the first `capacity` of
 * them in `ids`, and the number of members in `count`.
 */
fl_status fl_members(const fl_node *node, uint16_t *ids, size_t capacity, size_t *count);

/**
 * Stores the number of the member with that name; waits until there is one, for at most `timeout_ms`.
 */
fl_status fl_find_node(const fl_node *node, const char *name, uint32_t timeout_ms, uint16_t *id);

/**
 * Waits until each of the `count` nodes in `group`, this one included, waits at the barrier `name`. Either
 * all are released, or all fail because a node is dead, leaves or stops waiting.
 */
fl_status fl_barrier(const fl_node *node, const char *name, const uint16_t *group, size_t count, uint32_t timeout_ms);

/**
 * Allocates `len` zeroed bytes on the node `home`, which may be this one. This node gets all rights.
 * `permissions` are the rights of the nodes that map the region by name; without `FL_SHARE` the region
 * cannot be published.
 */
fl_status fl_malloc(const fl_node *node,
                    uint16_t home,
                    uint64_t len,
                    uint32_t permissions,
                    uint32_t timeout_ms,
                    fl_region **region);

/**
 * Maps the region that is published as `name`, with the rights `permissions`; waits until it is published.
 */
fl_status fl_map(const fl_node *node, const char *name, uint32_t permissions, uint32_t timeout_ms, fl_region **region);

/**
 * Unmaps a region and gives the handle back; calls of other threads that use it go on. The region exists
 * as long as it is published or some node maps it.
 */
fl_status fl_unmap(fl_region *region);

/**
 * Frees a region and gives the handle back, also if it fails. Needs the right `FL_ADMIN`. After `FL_OK` no
 * node can reach the memory any more: calls of other threads that use it have ended, or end with
 * `FL_FREED`. After `FL_UNKNOWN` and `FL_DEADLINE` the region is still being freed.
 */
fl_status fl_free(fl_region *region, uint32_t timeout_ms);

/**
 * Returns the length of a region, in bytes; 0 for a handle that is null or was given back.
 */
uint64_t fl_region_len(const fl_region *region);

/**
 * Returns the node that has a region's memory; 0 for a handle that is null or was given back.
 */
uint16_t fl_region_node(const fl_region *region);

/**
 * Publishes a region as `name`. Needs the right `FL_ADMIN`.
 */
fl_status fl_publish(const fl_region *region, const char *name, uint32_t timeout_ms);

/**
 * Frees a name under which this node has published a region. The region stays.
 */
fl_status fl_unpublish(const fl_node *node, const char *name, uint32_t timeout_ms);

/**
 * Reads `len` bytes from `offset` into `into`, whose content is undefined if the call fails.
 */
fl_status fl_read(const fl_region *region, uint64_t offset, void *into, size_t len, uint32_t timeout_ms);

/**
 * Writes `len` bytes at `offset`.
 */
fl_status fl_write(const fl_region *region, uint64_t offset, const void *data, size_t len, uint32_t timeout_ms);

/**
 * Sets `len` bytes from `offset` to `byte`. The region's node does it.
 */
fl_status fl_memset(const fl_region *region, uint64_t offset, uint64_t len, uint8_t byte, uint32_t timeout_ms);

/**
 * Adds `add` to the 8 bytes at `offset` (in the byte order of the processor, wrapping) in one step, and
 * stores the value before in `before`, unless that is null.
 */
fl_status fl_fetch_add(const fl_region *region, uint64_t offset, uint64_t add, uint32_t timeout_ms, uint64_t *before);

/**
 * Stores `swap` in the 8 bytes at `offset` if they hold `compare`, in one step, and stores the value
 * before in `before`, unless that is null.
 */
fl_status fl_compare_swap(const fl_region *region,
                          uint64_t offset,
                          uint64_t compare,
                          uint64_t swap,
                          uint32_t timeout_ms,
                          uint64_t *before);

/**
 * Calls `function` of the node `target` and waits for the reply, of which at most `capacity` bytes fit
 * into `reply`. Stores its length in `reply_len`. The function runs at most once.
 */
fl_status fl_call(const fl_node *node,
                  uint16_t target,
                  uint32_t function,
                  const void *request,
                  size_t request_len,
                  void *reply,
                  size_t capacity,
                  size_t *reply_len,
                  uint32_t timeout_ms);

/**
 * Registers a function of this node, whose number must be below 0xffff0000. A request may have at most
 * `max_request` bytes, and at most `queue` requests may wait.
 */
fl_status fl_register(const fl_node *node,
                      uint32_t function,
                      size_t max_request,
                      size_t queue,
                      fl_function **registered);

/**
 * Ends a function and gives the handle back. Requests that wait, and threads that wait in `fl_receive`,
 * end with `FL_NO_SUCH_FUNCTION`; requests that were received can still be replied to.
 */
fl_status fl_unregister(fl_function *function);

/**
 * Waits for the next request for a function. Each request must be given back, by `fl_reply` or
 * `fl_reject`. Several threads may wait.
 */
fl_status fl_receive(const fl_function *function, uint32_t timeout_ms, fl_request **request);

/**
 * Returns the node that called; 0 for a handle that is null or was given back.
 */
uint16_t fl_request_from(const fl_request *request);

/**
 * Returns the bytes of a request; null for a handle that is null or was given back. They stay valid until
 * the request is given back: use `fl_request_copy` where another thread may do that meanwhile.
 */
const void *fl_request_data(const fl_request *request);

/**
 * Returns the number of bytes of a request; 0 for a handle that is null or was given back.
 */
size_t fl_request_len(const fl_request *request);

/**
 * Copies the bytes of a request, at most `capacity` of them, to `into`, and stores its full length in
 * `len`.
 */
fl_status fl_request_copy(const fl_request *request, void *into, size_t capacity, size_t *len);

/**
 * Sends the reply and gives the request back, also if it fails. `FL_OK` means that the reply has been
 * sent, not that it has arrived.
 */
fl_status fl_reply(fl_request *request, const void *data, size_t len, uint32_t timeout_ms);

/**
 * Rejects a request and gives it back: the caller's call ends with `FL_REFUSED`.
 */
fl_status fl_reject(fl_request *request);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* FERROLITE_H */
