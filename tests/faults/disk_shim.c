/* What a program asks of its disk and of its clock, seen and spoilt on the way to the kernel.

   Loaded in front of the C library (LD_PRELOAD), so that Python's calls and LevelDB's are seen alike.
   Only files below SHIM_ROOT count. Three things can be asked for, each by a path in the environment:

   SHIM_TRACE   every call that changes a file or makes it durable is appended to this file once it
                has happened, and before its caller goes on:
                  record := marker(8) size(4) call(1) error(1) path_size(2) inode(8) offset(8) path
                            rest
                in the machine's byte order; `size` is that of the whole record; `rest` is the data
                of a write or the new name of a rename; `offset` the length for a truncate. From
                before a call until its record is written, the process holds a shared lock (flock)
                on this file: a program that holds the exclusive lock can kill the process between
                two calls. SIGKILL cuts a large write short, of the record or of the call itself.
   SHIM_RULES   a file of lines `call part-of-path first count action`, read anew whenever it was
                replaced: from the first-th call on, `count` calls (0: all) fail with the errno, or
                wait for -action ms or until other rules count. A write that fails puts down half of
                its bytes first, as on a full disk. Each call that was spoilt is told in
                SHIM_RULES.hits.
   SHIM_CLOCK   int64[3], mapped: ns to add to the wall clock, ns to add to the boot-time clock, and
                if not 0 the ns since the epoch at which the wall clock stands still. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

enum { CREATE = 1, WRITE, TRUNCATE, SYNC, SYNC_DIRECTORY, RENAME, UNLINK, MKDIR, RMDIR };

#define MARKER "\xd7trace\xd7\n"
#define RULES_MAX 32
typedef struct { char call[24], part[200]; long first, count, action, seen; } Rule;

static pthread_mutex_t turn = PTHREAD_MUTEX_INITIALIZER;
static const char *root, *rules_path;
static int trace = -1, hits = -1;
static volatile int64_t *shift;
static Rule rules[RULES_MAX];
static int rule_count;
static struct stat rules_seen;
static int short_fd = -1, short_error; /* whose last write was cut short: the next one fails */

/* The raw calls: what the shim itself reads and writes passes through none of the functions below. */
static int raw_open(const char *path, int flags) { return (int)syscall(SYS_openat, AT_FDCWD, path, flags | O_CLOEXEC, 0644); }
static long raw_write(int fd, const void *data, size_t size) { return syscall(SYS_write, fd, data, size); }

__attribute__((constructor)) static void begin(void) {
    root = getenv("SHIM_ROOT");
    rules_path = getenv("SHIM_RULES");
    const char *path = getenv("SHIM_TRACE");
    if (path) trace = raw_open(path, O_WRONLY | O_CREAT | O_APPEND);
    if (rules_path) {
        char name[PATH_MAX];
        snprintf(name, sizeof name, "%s.hits", rules_path);
        hits = raw_open(name, O_WRONLY | O_CREAT | O_APPEND);
    }
    if ((path = getenv("SHIM_CLOCK"))) {
        int fd = raw_open(path, O_RDONLY);
        void *at = fd < 0 ? MAP_FAILED : mmap(NULL, 3 * sizeof *shift, PROT_READ, MAP_SHARED, fd, 0);
        if (at == MAP_FAILED) abort();
        shift = at;
        close(fd);
    }
}

static int is_ours(const char *path) {
    size_t size = root ? strlen(root) : 0;
    return size && !strncmp(path, root, size) && (path[size] == '/' || !path[size]);
}

/* The absolute path, which must fit PATH_MAX; whether it lies below the root. */
static int resolve(int directory, const char *path, char *out) {
    if (!root || !path) return 0;
    if (path[0] == '/') {
        snprintf(out, PATH_MAX, "%s", path);
    } else {
        char link[64], base[PATH_MAX] = "";
        ssize_t size = -1;
        if (directory == AT_FDCWD) {
            if (getcwd(base, sizeof base)) size = (ssize_t)strlen(base);
        } else {
            snprintf(link, sizeof link, "/proc/self/fd/%d", directory);
            size = readlink(link, base, sizeof base - 1);
        }
        if (size < 0) return 0;
        base[size] = 0;
        if (snprintf(out, PATH_MAX, "%s/%s", base, path) >= PATH_MAX) return 0;
    }
    return is_ours(out);
}

static int path_of(int fd, char *out) {
    char link[64];
    int before = errno;
    if (!root || (trace < 0 && !rules_path)) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t size = readlink(link, out, PATH_MAX - 1);
    errno = before;
    if (size < 0) return 0;
    out[size] = 0;
    return is_ours(out);
}

static void begin_call(void) {
    while (trace >= 0 && flock(trace, LOCK_SH) && errno == EINTR) {}
}

static void end_call(void) {
    if (trace >= 0 && flock(trace, LOCK_UN)) abort();
}

static void record(int call, int error, const char *path, uint64_t inode, uint64_t offset, const void *rest, size_t rest_size) {
    if (trace < 0) return;
    struct __attribute__((packed)) { char marker[8]; uint32_t size; uint8_t call, error; uint16_t path_size; uint64_t inode, offset; } head;
    memcpy(head.marker, MARKER, sizeof head.marker);
    head.path_size = (uint16_t)strlen(path);
    head.size = (uint32_t)(sizeof head + head.path_size + rest_size);
    head.call = (uint8_t)call, head.error = (uint8_t)error, head.inode = inode, head.offset = offset;
    char *whole = malloc(head.size);
    if (!whole) abort();
    memcpy(whole, &head, sizeof head);
    memcpy(whole + sizeof head, path, head.path_size);
    if (rest_size) memcpy(whole + sizeof head + head.path_size, rest, rest_size);
    /* One write, so that records of several processes do not mix. */
    if (raw_write(trace, whole, head.size) != (long)head.size) abort();
    free(whole);
}

static void read_rules(void) {
    struct stat now;
    if (stat(rules_path, &now)) { rule_count = 0; memset(&rules_seen, 0, sizeof rules_seen); return; }
    if (now.st_ino == rules_seen.st_ino && !memcmp(&now.st_mtim, &rules_seen.st_mtim, sizeof now.st_mtim)) return;
    rules_seen = now;
    rule_count = 0;
    char text[8192];
    int fd = raw_open(rules_path, O_RDONLY);
    long size = fd < 0 ? 0 : syscall(SYS_read, fd, text, sizeof text - 1);
    if (fd >= 0) close(fd);
    text[size > 0 ? size : 0] = 0;
    char *rest = text, *line;
    while (rule_count < RULES_MAX && (line = strsep(&rest, "\n"))) {
        Rule *rule = &rules[rule_count];
        rule->seen = 0;
        if (sscanf(line, "%23s %199s %ld %ld %ld", rule->call, rule->part, &rule->first, &rule->count, &rule->action) == 5) rule_count++;
    }
}

/* Wait so many ms, or until other rules count. */
static void pause_for(long ms) {
    struct stat before = rules_seen, now;
    struct timespec step = {0, 10000000};
    pthread_mutex_unlock(&turn);
    for (; ms > 0; ms -= 10) {
        nanosleep(&step, NULL);
        if (stat(rules_path, &now) || memcmp(&now.st_mtim, &before.st_mtim, sizeof now.st_mtim)) break;
    }
    pthread_mutex_lock(&turn);
}

/* The errno that the rules want for this call, 0 for none. Waits if they want that. Called, and
   returns, with the turn held. */
static int spoilt(const char *call, const char *path) {
    if (!rules_path) return 0;
    read_rules();
    for (int at = 0; at < rule_count; at++) {
        Rule *rule = &rules[at];
        if (strcmp(rule->call, call) || !strstr(path, rule->part)) continue;
        rule->seen++;
        if (rule->seen < rule->first || (rule->count && rule->seen >= rule->first + rule->count)) continue;
        char told[PATH_MAX + 64];
        int size = snprintf(told, sizeof told, "%s %s %ld\n", call, path, rule->action);
        if (hits >= 0 && raw_write(hits, told, (size_t)size) != size) abort();
        if (rule->action >= 0) return (int)rule->action;
        pause_for(-rule->action);
    }
    return 0;
}

static uint64_t inode_of(int fd) {
    struct stat found;
    return fstat(fd, &found) ? 0 : found.st_ino;
}

#define REFUSED_IF(call, path) \
    int wanted = spoilt(call, path); \
    if (wanted) { pthread_mutex_unlock(&turn); errno = wanted; return -1; }

static int open_at(int directory, const char *path, int flags, mode_t mode) {
    char whole[PATH_MAX];
    int changes = flags & (O_CREAT | O_TRUNC);
    if (!changes || (flags & O_TMPFILE) == O_TMPFILE || !resolve(directory, path, whole))
        return (int)syscall(SYS_openat, directory, path, flags, mode);
    pthread_mutex_lock(&turn);
    struct stat before;
    int is_new = lstat(whole, &before) != 0;
    if (is_new) { REFUSED_IF("create", whole) }
    begin_call();
    int fd = (int)syscall(SYS_openat, directory, path, flags, mode);
    int error = errno;
    if (fd >= 0 && is_new) record(CREATE, 0, whole, inode_of(fd), 0, NULL, 0);
    else if (fd >= 0 && (flags & O_TRUNC)) record(TRUNCATE, 0, whole, inode_of(fd), 0, NULL, 0);
    end_call();
    pthread_mutex_unlock(&turn);
    errno = error;
    return fd;
}

#define MODE_OF(flags) mode_t mode = 0; \
    if ((flags) & (O_CREAT | O_TMPFILE)) { va_list more; va_start(more, flags); mode = va_arg(more, mode_t); va_end(more); }

int open(const char *path, int flags, ...) { MODE_OF(flags) return open_at(AT_FDCWD, path, flags, mode); }
int open64(const char *path, int flags, ...) { MODE_OF(flags) return open_at(AT_FDCWD, path, flags | O_LARGEFILE, mode); }
int openat(int directory, const char *path, int flags, ...) { MODE_OF(flags) return open_at(directory, path, flags, mode); }
int openat64(int directory, const char *path, int flags, ...) { MODE_OF(flags) return open_at(directory, path, flags | O_LARGEFILE, mode); }

static ssize_t put(int fd, const void *data, size_t size, off_t offset, int has_offset) {
    char path[PATH_MAX];
    if (fd <= 2 || !path_of(fd, path))
        return has_offset ? syscall(SYS_pwrite64, fd, data, size, offset) : raw_write(fd, data, size);
    pthread_mutex_lock(&turn);
    if (fd == short_fd) {
        short_fd = -1;
        pthread_mutex_unlock(&turn);
        errno = short_error;
        return -1;
    }
    int wanted = spoilt("write", path);
    if (wanted) { size = (size + 1) / 2, short_fd = fd, short_error = wanted; }
    begin_call();
    if (!has_offset) offset = lseek(fd, 0, (fcntl(fd, F_GETFL) & O_APPEND) ? SEEK_END : SEEK_CUR);
    ssize_t done = has_offset ? syscall(SYS_pwrite64, fd, data, size, offset) : raw_write(fd, data, size);
    int error = errno;
    if (done > 0) record(WRITE, 0, path, inode_of(fd), (uint64_t)offset, data, (size_t)done);
    end_call();
    pthread_mutex_unlock(&turn);
    errno = error;
    return done;
}

ssize_t write(int fd, const void *data, size_t size) { return put(fd, data, size, 0, 0); }
ssize_t pwrite(int fd, const void *data, size_t size, off_t offset) { return put(fd, data, size, offset, 1); }
ssize_t pwrite64(int fd, const void *data, size_t size, off_t offset) { return put(fd, data, size, offset, 1); }
ssize_t writev(int fd, const struct iovec *parts, int count) {
    char path[PATH_MAX];
    if (fd <= 2 || !path_of(fd, path)) return syscall(SYS_writev, fd, parts, count);
    return count ? put(fd, parts[0].iov_base, parts[0].iov_len, 0, 0) : 0; /* a short write, and legal */
}

/* A sync that fails is in the trace too: what it should have made durable may now be lost for good,
   and no later sync of the file says anything about it. */
static int sync_file(long number, const char *call, int fd) {
    char path[PATH_MAX];
    struct stat found;
    if (!path_of(fd, path) || fstat(fd, &found)) return (int)syscall(number, fd);
    pthread_mutex_lock(&turn);
    int is_directory = S_ISDIR(found.st_mode);
    int wanted = spoilt(is_directory ? "fsync_directory" : call, path);
    begin_call();
    int done = wanted ? -1 : (int)syscall(number, fd);
    int error = wanted ? wanted : done ? errno : 0;
    record(is_directory ? SYNC_DIRECTORY : SYNC, error, path, found.st_ino, 0, NULL, 0);
    end_call();
    pthread_mutex_unlock(&turn);
    if (done) errno = error;
    return done;
}

int fsync(int fd) { return sync_file(SYS_fsync, "fsync", fd); }
int fdatasync(int fd) { return sync_file(SYS_fdatasync, "fdatasync", fd); }

static int set_length(int fd, off_t length) {
    char path[PATH_MAX];
    if (!path_of(fd, path)) return (int)syscall(SYS_ftruncate, fd, length);
    pthread_mutex_lock(&turn);
    REFUSED_IF("truncate", path)
    begin_call();
    int done = (int)syscall(SYS_ftruncate, fd, length);
    int error = errno;
    if (!done) record(TRUNCATE, 0, path, inode_of(fd), (uint64_t)length, NULL, 0);
    end_call();
    pthread_mutex_unlock(&turn);
    errno = error;
    return done;
}

int ftruncate(int fd, off_t length) { return set_length(fd, length); }
int ftruncate64(int fd, off_t length) { return set_length(fd, length); }

static int move(int from_directory, const char *from, int to_directory, const char *to) {
    char source[PATH_MAX], target[PATH_MAX];
    if (!resolve(from_directory, from, source) || !resolve(to_directory, to, target))
        return (int)syscall(SYS_renameat2, from_directory, from, to_directory, to, 0);
    pthread_mutex_lock(&turn);
    REFUSED_IF("rename", target)
    begin_call();
    int done = (int)syscall(SYS_renameat2, from_directory, from, to_directory, to, 0);
    int error = errno;
    if (!done) record(RENAME, 0, source, 0, 0, target, strlen(target));
    end_call();
    pthread_mutex_unlock(&turn);
    errno = error;
    return done;
}

int rename(const char *from, const char *to) { return move(AT_FDCWD, from, AT_FDCWD, to); }
int renameat(int a, const char *from, int b, const char *to) { return move(a, from, b, to); }

static int change_name(int call, const char *told, int directory, const char *path, int flags, mode_t mode) {
    char whole[PATH_MAX];
    int ours = resolve(directory, path, whole);
    if (ours) {
        pthread_mutex_lock(&turn);
        REFUSED_IF(told, whole)
        begin_call();
    }
    int done = (int)(call == MKDIR ? syscall(SYS_mkdirat, directory, path, mode) : syscall(SYS_unlinkat, directory, path, flags));
    int error = errno;
    if (ours) {
        if (!done) record(call, 0, whole, 0, 0, NULL, 0);
        end_call();
        pthread_mutex_unlock(&turn);
    }
    errno = error;
    return done;
}

int unlink(const char *path) { return change_name(UNLINK, "unlink", AT_FDCWD, path, 0, 0); }
int unlinkat(int directory, const char *path, int flags) {
    return change_name(flags & AT_REMOVEDIR ? RMDIR : UNLINK, "unlink", directory, path, flags, 0);
}
int rmdir(const char *path) { return change_name(RMDIR, "unlink", AT_FDCWD, path, AT_REMOVEDIR, 0); }
int mkdir(const char *path, mode_t mode) { return change_name(MKDIR, "create", AT_FDCWD, path, 0, mode); }
int mkdirat(int directory, const char *path, mode_t mode) { return change_name(MKDIR, "create", directory, path, 0, mode); }

/* How much room there is. It changes nothing, and is in no trace. */
static int room_of(const char *path) {
    char whole[PATH_MAX];
    if (!resolve(AT_FDCWD, path, whole)) return 0;
    pthread_mutex_lock(&turn);
    int wanted = spoilt("statvfs", whole);
    pthread_mutex_unlock(&turn);
    return wanted;
}

#define ROOM(name, kind) \
    int name(const char *path, struct kind *out) { \
        static int (*next)(const char *, struct kind *); \
        if (!next) next = (int (*)(const char *, struct kind *))dlsym(RTLD_NEXT, #name); \
        int wanted = room_of(path); \
        if (wanted) { errno = wanted; return -1; } \
        return next(path, out); \
    }
ROOM(statvfs, statvfs)
ROOM(statvfs64, statvfs64)

int clock_gettime(clockid_t clock, struct timespec *out) {
    int done = (int)syscall(SYS_clock_gettime, clock, out);
    if (done || !shift) return done;
    int is_wall = clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE;
    if (!is_wall && clock != CLOCK_BOOTTIME) return 0;
    int64_t ns = out->tv_sec * 1000000000LL + out->tv_nsec;
    ns = is_wall && shift[2] ? shift[2] : ns + shift[is_wall ? 0 : 1];
    out->tv_sec = ns / 1000000000LL;
    out->tv_nsec = ns % 1000000000LL;
    return 0;
}
