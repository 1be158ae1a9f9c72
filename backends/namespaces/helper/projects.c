/* Project quotas: the files of a project are accounted together, and their total size can be limited. */
#define _GNU_SOURCE
#include "helper.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/dqblk_xfs.h>
#include <linux/fs.h>
#include <linux/quota.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef SYS_quotactl_fd
#define SYS_quotactl_fd 443 /* On every architecture; musl 1.2.5 does not name it. */
#endif

static int quota(int fd, int job, uint32_t id, void *data) {
    return (int)syscall(SYS_quotactl_fd, fd, QCMD(job, PRJQUOTA), id, data);
}

/* Opens the directory whose file system is meant; negative if it cannot be opened. */
static int open_dir(const char *path) { return open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC); }

/* Whether project quotas are enforced. */
static int enforced(int fd) {
    struct fs_quota_statv state;
    memset(&state, 0, sizeof state);
    state.qs_version = FS_QSTATV_VERSION1;
    return quota(fd, Q_XGETQSTATV, 0, &state) == 0 && (state.qs_flags & FS_QUOTA_PDQ_ENFD) != 0;
}

/* Prints the first project from FIRST on that has neither files nor a limit. */
int unused_project(const char *first, const char *path) {
    int fd = open_dir(path);
    uint32_t id = (uint32_t)strtoul(first, NULL, 10);
    if (fd < 0) return failed("open the directory");
    if (!enforced(fd)) return NO_QUOTA;
    for (; id < UINT32_MAX; id++) {
        struct if_nextdqblk known;
        memset(&known, 0, sizeof known);
        if (quota(fd, Q_GETNEXTQUOTA, id, &known) != 0) {
            if (errno == ENOENT || errno == ESRCH) break; /* There is no project from here on. */
            return failed("look a project up");
        }
        if (known.dqb_id != id) break;
        if (known.dqb_curspace == 0 && known.dqb_curinodes == 0 && known.dqb_bhardlimit == 0 &&
            known.dqb_bsoftlimit == 0 && known.dqb_ihardlimit == 0 && known.dqb_isoftlimit == 0)
            break;
    }
    printf("%u", id);
    return 0;
}

/* Limits a project to so many KiB; 0 lifts the limit. */
int limit_project(const char *id, const char *kib, const char *path) {
    struct if_dqblk limit;
    int fd = open_dir(path);
    if (fd < 0) return failed("open the directory");
    memset(&limit, 0, sizeof limit);
    limit.dqb_bhardlimit = strtoull(kib, NULL, 10);
    limit.dqb_valid = QIF_BLIMITS;
    if (quota(fd, Q_SETQUOTA, (uint32_t)strtoul(id, NULL, 10), &limit) == 0) return 0;
    return errno == ESRCH || errno == ENOSYS || errno == EINVAL ? NO_QUOTA : failed("limit a project");
}

/* Sets the project of an open file or directory; new files in a directory inherit it. */
static int join_file(int fd, uint32_t id, int is_dir) {
    struct fsxattr attributes;
    if (ioctl(fd, FS_IOC_FSGETXATTR, &attributes) != 0) return failed("read the project of a file");
    attributes.fsx_projid = id;
    if (is_dir) attributes.fsx_xflags |= FS_XFLAG_PROJINHERIT;
    if (ioctl(fd, FS_IOC_FSSETXATTR, &attributes) != 0) return failed("set the project of a file");
    return 0;
}

/* Opens a directory or a regular file by its name, and nothing else: a container may put devices and symlinks there
 * meanwhile. Negative if there is none. */
static int open_entry(int parent, const char *name, struct stat *found) {
    char path[sizeof "/proc/self/fd/" + 3 * sizeof(int)];
    int file = -1, seen = openat(parent, name, O_PATH | O_NOFOLLOW | O_CLOEXEC);
    if (seen < 0) return -1;
    if (fstat(seen, found) == 0 && (S_ISDIR(found->st_mode) || S_ISREG(found->st_mode))) {
        snprintf(path, sizeof path, "/proc/self/fd/%d", seen);
        file = open(path, O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    }
    close(seen);
    return file;
}

/* An ancestor of the current directory: its identity, and the position at which reading it continues. */
struct level {
    dev_t device;
    ino_t inode;
    long offset;
};

/* The path from the top of a tree to the current directory. Only that one is open: a container can make trees of any
 * depth, and neither the stack nor the number of descriptors may grow with them. */
struct way {
    struct level *levels;
    size_t depth, room;
    DIR *dir;
};

/* The result of a step of the walk: done, failed, or the tree was changed and the walk starts again. */
enum outcome { DONE, FAULT, CHANGED };

/* Replaces the open directory by another one, to be read from OFFSET on. Takes ownership of FD. */
static int read_dir(struct way *way, int fd, long offset) {
    DIR *dir = fdopendir(fd);
    if (dir == NULL) {
        close(fd);
        return failed("read a directory");
    }
    if (way->dir != NULL) closedir(way->dir);
    way->dir = dir;
    if (offset != 0) seekdir(dir, offset);
    return 0;
}

/* Descends into a directory of the open one. Takes ownership of FD. */
static enum outcome go_down(struct way *way, int fd) {
    struct stat own;
    struct level *level;
    if (way->depth == way->room) {
        size_t room = way->room == 0 ? 64 : way->room * 2;
        struct level *levels = reallocarray(way->levels, room, sizeof *levels);
        if (levels == NULL) {
            close(fd);
            failed("remember a directory");
            return FAULT;
        }
        way->levels = levels;
        way->room = room;
    }
    if (fstat(dirfd(way->dir), &own) != 0) {
        close(fd);
        failed("stat a directory");
        return FAULT;
    }
    level = &way->levels[way->depth++];
    level->device = own.st_dev;
    level->inode = own.st_ino;
    level->offset = telldir(way->dir);
    return read_dir(way, fd, 0) == 0 ? DONE : FAULT;
}

/* Returns to the parent and continues where it was left. A container may have moved this directory meanwhile. */
static enum outcome go_up(struct way *way) {
    struct level *level = &way->levels[way->depth - 1];
    struct stat found;
    int fd = openat(dirfd(way->dir), "..", O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &found) != 0) {
        failed("go up");
        if (fd >= 0) close(fd);
        return FAULT;
    }
    if (found.st_dev != level->device || found.st_ino != level->inode) {
        close(fd);
        return CHANGED;
    }
    way->depth--;
    return read_dir(way, fd, level->offset) == 0 ? DONE : FAULT;
}

/* Sets the project of an entry of the open directory, and descends into it if it is a directory. */
static enum outcome join_entry(struct way *way, const char *name, uint32_t id, dev_t device) {
    struct stat found;
    int is_dir, file = open_entry(dirfd(way->dir), name, &found);
    if (file < 0 && (errno == EMFILE || errno == ENFILE)) {
        failed("open a file");
        return FAULT;
    }
    /* Removed meanwhile, or of a kind that uses no space. */
    if (file < 0) return DONE;
    is_dir = S_ISDIR(found.st_mode);
    if (found.st_dev != device) {
        close(file);
        return DONE;
    }
    if (join_file(file, id, is_dir) != 0) {
        close(file);
        return FAULT;
    }
    if (is_dir) return go_down(way, file);
    close(file);
    return DONE;
}

/* Sets the project of a directory, and of everything below it on the same file system. */
static enum outcome join_tree(const char *path, uint32_t id) {
    struct way way = {NULL, 0, 0, NULL};
    struct stat found;
    enum outcome outcome = FAULT;
    int fd = open_dir(path);
    if (fd < 0 || fstat(fd, &found) != 0) {
        failed("open the directory");
        if (fd >= 0) close(fd);
        return FAULT;
    }
    if (join_file(fd, id, 1) != 0) {
        close(fd);
        return FAULT;
    }
    if (read_dir(&way, fd, 0) == 0) outcome = DONE;
    while (outcome == DONE) {
        struct dirent *entry;
        errno = 0;
        entry = readdir(way.dir);
        if (entry == NULL && errno != 0 && errno != ENOENT) {
            failed("read a directory");
            outcome = FAULT;
        } else if (entry == NULL && way.depth == 0) {
            break;
        } else if (entry == NULL) {
            outcome = go_up(&way);
        } else if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0) {
            outcome = join_entry(&way, entry->d_name, id, found.st_dev);
        }
    }
    if (way.dir != NULL) closedir(way.dir);
    free(way.levels);
    return outcome;
}

/* How many times the walk starts again because directories were moved meanwhile, and how long all of it may take, in
 * seconds. */
enum { MOST_REPEATS = 100, LONGEST = 120 };

int join_project(const char *id, const char *path) {
    int repeats;
    /* The caller does not wait longer than this: SIGALRM ends the process. */
    alarm(LONGEST);
    for (repeats = 0; repeats < MOST_REPEATS; repeats++) {
        enum outcome outcome = join_tree(path, (uint32_t)strtoul(id, NULL, 10));
        if (outcome != CHANGED) return outcome == DONE ? 0 : 1;
    }
    errno = EBUSY;
    return failed("walk a tree whose directories keep being moved");
}
