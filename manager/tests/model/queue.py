"""The policy of the manager's queue, written independently of the manager, as a judge of it.

Reads a JSON object from standard input: the nodes, the jobs (number, submitted, width, priority, limit or
null, time), the starts (time, job, nodes) and the reasons (time, job, text) of a run of the manager. Runs the
same jobs by the policy, and ends with an error if a start, its time or its nodes differ, if a reason is not
true, or if the job at the head of the queue starts later than the time that it was promised.
"""

import json
import re
import sys

run = json.load(sys.stdin)
nodes, jobs = run["nodes"], {job["number"]: job for job in run["jobs"]}
never = float("inf")
depth = 64  # The jobs at the head of the queue that may start or keep nodes.


def turn(number):
    return (-jobs[number]["priority"], number)


def limit(number):
    return never if jobs[number]["limit"] is None else jobs[number]["limit"]


def decide(now, running, queue):
    """Returns the starts, and the reservations (from, nodes) of the jobs that wait."""
    used = {node: [] for node in nodes}
    for number, (began, on) in running.items():
        for node in on:
            used[node].append((now, began + limit(number)))
    starts, promises = {}, {}
    for number in sorted(queue, key=turn)[:depth]:
        width, long = jobs[number]["width"], limit(number)
        for at in sorted({now} | {end for spans in used.values() for _, end in spans if now < end < never}):
            free = [n for n in nodes if all(end <= at or at + long <= begin for begin, end in used[n])]
            if len(free) >= width:
                free = free[:width]
                used.update({n: used[n] + [(at, at + long)] for n in free})
                (starts if at == now else promises)[number] = (at, free)
                break
        else:
            last = {n: max([now] + [end for _, end in used[n]]) for n in nodes}
            free = sorted(nodes, key=lambda n: (last[n], n))[:width]
            used.update({n: used[n] + [(last[n], never)] for n in free if last[n] < never})
            promises[number] = (never, free)
    return starts, promises


def check_reason(now, number, text, running, queue):
    busy = {node: job for job, (_, on) in running.items() for node in on}
    width, idle = jobs[number]["width"], len(nodes) - len(busy)
    named = {int(job) for job in re.findall(r"job (\d+)", text)}
    if re.fullmatch(r"\d+ nodes wanted, but \d+ are idle: job .*", text):
        true = idle < width and named == set(running)
    elif re.fullmatch(r"\d+ nodes wanted, and \d+ are idle, but kept for job .*", text):
        true = idle >= width and named <= {job for job in queue if turn(job) < turn(number)}
    else:
        behind = sum(turn(job) < turn(number) for job in queue) >= depth
        assert text == f"more than {depth} jobs are before it" and behind and idle >= width, (number, text)
        return
    assert true and [width, idle] == [int(n) for n in re.findall(r"\d+", text)[:2]], (now, number, text)


events = sorted([(job["submitted"], 1, job["number"], None) for job in jobs.values()]
                + [(at, 2, number, text) for at, number, text in run["reasons"]])
running, queue, ends, started, promised = {}, set(), [], [], (None, never)
while events or ends:
    now, kind, number, text = min(events[:1] + sorted(ends)[:1])
    if kind == 0:
        ends.remove((now, kind, number, text))
        del running[number]
    else:
        events.pop(0)
        if kind == 2:
            check_reason(now, number, text, running, queue)
            continue
        queue.add(number)
        if promised[0] is not None and turn(number) < turn(promised[0]):
            promised = (None, never)  # A job of a larger priority may delay it.
    starts, promises = decide(now, running, queue)
    for number, (_, on) in starts.items():
        if promised[0] == number:
            assert now <= promised[1], ("promised", promised, now)
        running[number] = (now, on)
        queue.remove(number)
        ends.append((now + jobs[number]["time"], 0, number, None))
        started.append([now, number, on])
    head = min(queue, key=turn, default=None)
    if head is not None:
        assert promised[0] != head or promises[head][0] <= promised[1], ("delayed", head)
        promised = (head, promises[head][0])
# Starts of one millisecond are at once: they have no order.
started, seen = sorted(started), sorted(run["starts"])
assert started == seen, next(pair for pair in zip(started, seen) if pair[0] != pair[1])
print(f"{len(started)} starts and {len(run['reasons'])} reasons agree")
