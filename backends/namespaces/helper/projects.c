/* Projects: what a file system counts together, and may be told to hold to a limit. */
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

static int quota(int fd, int job, uint32_t id, void *data) {
    return (int)syscall(SYS_quotactl_fd, fd, QCMD(job, PRJQUOTA), id, data);
}

/* The file system of a directory; below 0 where it cannot be opened. */
static int open_dir(const char *path) { return open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC); }

/* Whether limits of projects are in force. */
static int enforced(int fd) {
    struct fs_quota_statv state;
    memset(&state, 0, sizeof state);
    state.qs_version = FS_QSTATV_VERSION1;
    return quota(fd, Q_XGETQSTATV, 0, &state) == 0 && (state.qs_flags & FS_QUOTA_PDQ_ENFD) != 0;
}

/* Says the first project from FIRST on that nothing is counted for and that has no limit. */
int unused_project(const char *first, const char *path) {
    int fd = open_dir(path);
    uint32_t id = (uint32_t)strtoul(first, NULL, 10);
    if (fd < 0) return failed("open the directory");
    if (!enforced(fd)) return NO_QUOTA;
    for (; id < UINT32_MAX; id++) {
        struct if_nextdqblk known;
        memset(&known, 0, sizeof known);
        if (quota(fd, Q_GETNEXTQUOTA, id, &known) != 0) {
            if (errno == ENOENT || errno == ESRCH) break; /* No project from here on is known. */
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

/* Lets a project take so many KiB; with 0, as much as there is. */
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

/* Puts what is open into a project; what is made in a directory from then on is in it as well. */
static int join_file(int fd, uint32_t id, int is_dir) {
    struct fsxattr attributes;
    if (ioctl(fd, FS_IOC_FSGETXATTR, &attributes) != 0) return failed("read the project of a file");
    attributes.fsx_projid = id;
    if (is_dir) attributes.fsx_xflags |= FS_XFLAG_PROJINHERIT;
    if (ioctl(fd, FS_IOC_FSSETXATTR, &attributes) != 0) return failed("set the project of a file");
    return 0;
}

/* Opens a directory or a regular file by its name, and nothing else: whoever uses the directory may put devices and links there
 * meanwhile. Below 0 where there is none. */
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

/* A directory above the one that is gone through: which it is, and where its reading goes on. */
struct level {
    dev_t device;
    ino_t inode;
    long offset;
};

/* The way from the top of a tree to the directory that is gone through. Only that one is open: a container makes trees as deep as it
 * likes, and neither the stack nor the descriptors may grow with them. */
struct way {
    struct level *levels;
    size_t depth, room;
    DIR *dir;
};

/* What came of a step along the way: it is done, it ended the whole, or the tree was changed and is begun anew. */
enum outcome { DONE, FAULT, CHANGED };

/* Reads another directory from OFFSET on, in the place of the one that is open. Takes FD over. */
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

/* Goes on in a directory of the one that is open. Takes FD over. */
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
        failed("look at a directory");
        return FAULT;
    }
    level = &way->levels[way->depth++];
    level->device = own.st_dev;
    level->inode = own.st_ino;
    level->offset = telldir(way->dir);
    return read_dir(way, fd, 0) == 0 ? DONE : FAULT;
}

/* Goes on where the directory above was left. Whoever uses the tree may have moved this one meanwhile. */
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

/* Puts an entry of the directory that is open into a project, and goes on in it if it is a directory. */
static enum outcome join_entry(struct way *way, const char *name, uint32_t id, dev_t device) {
    struct stat found;
    int is_dir, file = open_entry(dirfd(way->dir), name, &found);
    if (file < 0 && (errno == EMFILE || errno == ENFILE)) {
        failed("open a file");
        return FAULT;
    }
    /* Gone meanwhile, or of a kind that takes no space. */
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

/* Puts a directory, and all below it that is of the same file system, into a project. */
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

/* How often a tree is begun anew in which directories are moved meanwhile, and how long all of it may take, in seconds. */
enum { MOST_REPEATS = 100, LONGEST = 120 };

int join_project(const char *id, const char *path) {
    int repeats;
    /* Who waits for us waits no longer: the signal ends us. */
    alarm(LONGEST);
    for (repeats = 0; repeats < MOST_REPEATS; repeats++) {
        enum outcome outcome = join_tree(path, (uint32_t)strtoul(id, NULL, 10));
        if (outcome != CHANGED) return outcome == DONE ? 0 : 1;
    }
    errno = EBUSY;
    return failed("go through a tree whose directories are moved all the time");
}
