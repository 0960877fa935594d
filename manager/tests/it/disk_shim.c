/* A slow or failing disk, for LD_PRELOAD. The beginning and the end of each sync, and each rename, add a line to the file that
 * FERROLITE_DISK_LOG names. The file that FERROLITE_DISK_SYNC names holds the number of milliseconds that a sync waits first, or
 * "fail"; without the file a sync does not wait.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

static void note(const char *what, const char *from, const char *to) {
    const char *log = getenv("FERROLITE_DISK_LOG");
    char line[8300];
    int length = snprintf(line, sizeof line, "%s %s%s%s\n", what, from, *to ? " -> " : "", to);
    int file = open(log ? log : "/dev/null", O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
    if (file >= 0) {
        if (write(file, line, (size_t)length) < 0)
            abort();
        close(file);
    }
}

/* Waits as the file says. Returns -1 if the sync must fail. */
static int wait_or_fail(void) {
    const char *path = getenv("FERROLITE_DISK_SYNC");
    char said[32] = "";
    int file = open(path ? path : "/dev/null", O_RDONLY | O_CLOEXEC);
    if (file >= 0) {
        if (read(file, said, sizeof said - 1) < 0)
            abort();
        close(file);
    }
    if (strncmp(said, "fail", 4) == 0) {
        errno = EIO;
        return -1;
    }
    usleep((useconds_t)atoi(said) * 1000);
    return 0;
}

static int sync_by(long call, int file) {
    char link[64], path[4096] = "";
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    ssize_t length = readlink(link, path, sizeof path - 1);
    path[length < 0 ? 0 : length] = 0;
    note("begins", path, "");
    if (wait_or_fail() < 0)
        return -1;
    int result = (int)syscall(call, file);
    note("synced", path, "");
    return result;
}

int fsync(int file) {
    return sync_by(SYS_fsync, file);
}

int fdatasync(int file) {
    return sync_by(SYS_fdatasync, file);
}

int rename(const char *from, const char *to) {
    int (*next)(const char *, const char *) = (int (*)(const char *, const char *))dlsym(RTLD_NEXT, "rename");
    int result = next(from, to);
    note("rename", from, to);
    return result;
}
