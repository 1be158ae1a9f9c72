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

/* Puts a directory, and all below it that is of the same file system, into a project. Closes it. */
static int join_tree(int fd, uint32_t id, dev_t device) {
    struct dirent *entry;
    DIR *dir;
    int fault = join_file(fd, id, 1);
    if (fault != 0 || (dir = fdopendir(fd)) == NULL) {
        close(fd);
        return fault != 0 ? fault : failed("read a directory");
    }
    while (fault == 0 && (entry = readdir(dir)) != NULL) {
        struct stat found;
        int file;
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0) continue;
        file = open_entry(dirfd(dir), entry->d_name, &found);
        /* Gone meanwhile, or of a kind that takes no space. */
        if (file < 0 && (errno == EMFILE || errno == ENFILE)) {
            fault = failed("open a file");
        } else if (file >= 0 && found.st_dev == device && S_ISDIR(found.st_mode)) {
            fault = join_tree(file, id, device);
        } else if (file >= 0) {
            if (found.st_dev == device) fault = join_file(file, id, 0);
            close(file);
        }
    }
    closedir(dir);
    return fault;
}

int join_project(const char *id, const char *path) {
    struct stat found;
    int fd = open_dir(path);
    if (fd < 0 || fstat(fd, &found) != 0) return failed("open the directory");
    return join_tree(fd, (uint32_t)strtoul(id, NULL, 10), found.st_dev);
}
