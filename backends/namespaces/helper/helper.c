/* Operations that only a single-threaded process can do, or that need system calls without a safe wrapper. Linked
 * statically, because it is run from memory, and in root file systems that contain nothing else.
 *
 *   helper namespaces LETTERS         creates a user namespace and writes "u"; when it reads that the maps are
 *                                     written, creates the namespaces of LETTERS (n, i, t: network, IPC, UTS)
 *                                     inside of it and writes "n"; exits when its input ends
 *   helper idmap USERNS SOURCE TARGET mounts SOURCE, with everything mounted below it, at TARGET, idmapped as in
 *                                     USERNS; if something below it cannot be, SOURCE alone is
 *   helper setattr                    exits with 0 if mount_setattr can be used; changes nothing
 *   helper refused PATH               exits with 0 if PATH cannot be written because its mount is read-only
 *   helper unused ID DIR              prints the first project from ID on that is unused on DIR's file system
 *   helper join ID DIR                sets the project of DIR and everything below it to ID
 *   helper limit ID KIB DIR           limits the space of project ID on DIR's file system; 0 is for no limit
 *
 * The last three exit with 3 if the file system does not enforce project quotas. */
#define _GNU_SOURCE
#include "helper.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/mount.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

int failed(const char *what) {
    fprintf(stderr, "%s: %s", what, strerror(errno));
    return 1;
}

static int say(char letter) { return write(STDOUT_FILENO, &letter, 1) == 1 ? 0 : failed("say"); }

static int namespaces(const char *letters) {
    int flags = 0;
    char told = 0;
    if (strchr(letters, 'n') != NULL) flags |= CLONE_NEWNET;
    if (strchr(letters, 'i') != NULL) flags |= CLONE_NEWIPC;
    if (strchr(letters, 't') != NULL) flags |= CLONE_NEWUTS;
    if (unshare(CLONE_NEWUSER) != 0) return failed("make a user namespace");
    if (say('u') != 0) return 1;
    if (read(STDIN_FILENO, &told, 1) != 1) return 1;
    if (flags != 0 && unshare(flags) != 0) return failed("make namespaces in a user namespace");
    if (say('n') != 0) return 1;
    while (read(STDIN_FILENO, &told, 1) > 0) {
    }
    return 0;
}

/* glibc has these from 2.36 on; musl, and that of Ubuntu 22.04 and RHEL 9, has none. */
static int copy_tree(const char *path) {
    return (int)syscall(SYS_open_tree, AT_FDCWD, path, OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | AT_RECURSIVE);
}

static int set_attributes(int tree, int flags, struct mount_attr *attributes) {
    return (int)syscall(SYS_mount_setattr, tree, "", AT_EMPTY_PATH | flags, attributes, sizeof *attributes);
}

static int place(int tree, const char *target) {
    return (int)syscall(SYS_move_mount, tree, "", AT_FDCWD, target, MOVE_MOUNT_F_EMPTY_PATH);
}

static int idmap(const char *users, const char *source, const char *target) {
    int tree, ns = open(users, O_RDONLY | O_CLOEXEC);
    struct mount_attr attributes;
    if (ns < 0) return failed("open the user namespace");
    tree = copy_tree(source);
    if (tree < 0) return failed("copy the mount");
    memset(&attributes, 0, sizeof attributes);
    attributes.attr_set = MOUNT_ATTR_IDMAP;
    attributes.userns_fd = (__u64)ns;
    if (set_attributes(tree, AT_RECURSIVE, &attributes) != 0 && set_attributes(tree, 0, &attributes) != 0)
        return failed("map the ids of a file system");
    if (place(tree, target) != 0) return failed("place the mount");
    return 0;
}

static int setattr(void) {
    struct mount_attr nothing;
    memset(&nothing, 0, sizeof nothing);
    return set_attributes(-1, 0, &nothing) == 0 ? 0 : failed("mount_setattr");
}

static int refused(const char *path) {
    int file = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    return file < 0 && errno == EROFS ? 0 : 1;
}

int main(int count, char **words) {
    if (count == 3 && strcmp(words[1], "namespaces") == 0) return namespaces(words[2]);
    if (count == 5 && strcmp(words[1], "idmap") == 0) return idmap(words[2], words[3], words[4]);
    if (count == 2 && strcmp(words[1], "setattr") == 0) return setattr();
    if (count == 3 && strcmp(words[1], "refused") == 0) return refused(words[2]);
    if (count == 4 && strcmp(words[1], "unused") == 0) return unused_project(words[2], words[3]);
    if (count == 4 && strcmp(words[1], "join") == 0) return join_project(words[2], words[3]);
    if (count == 5 && strcmp(words[1], "limit") == 0) return limit_project(words[2], words[3], words[4]);
    return 2;
}
