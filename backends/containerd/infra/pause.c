/* Process 1 of a process namespace, linked statically, because it runs beside files of any image or none.
 *
 * Without arguments it is the infra process of a sandbox whose tasks share a process namespace: it reaps what its tasks leave behind,
 * and ends on SIGTERM or SIGINT. With a command it is the init process of a task: it runs the command, passes signals on to it, reaps
 * what nobody else does, and ends as the command does. */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* Exit codes of a shell for what is not there, and for what cannot be run. */
enum { NOT_FOUND = 127, NOT_RUNNABLE = 126, BY_SIGNAL = 128 };

static int pause_here(void) {
    sigset_t watched;
    sigemptyset(&watched);
    sigaddset(&watched, SIGTERM);
    sigaddset(&watched, SIGINT);
    sigaddset(&watched, SIGCHLD);
    sigprocmask(SIG_BLOCK, &watched, NULL);
    for (;;) {
        int got = 0;
        if (sigwait(&watched, &got) != 0) return 1;
        if (got != SIGCHLD) return 0;
        while (waitpid(-1, NULL, WNOHANG) > 0) {
        }
    }
}

/* Becomes the command, with a process group of its own that has the terminal, if there is one. */
static void become(char **command, const sigset_t *mask) {
    setpgid(0, 0);
    /* The signal that this raises in a group without the terminal is blocked still. */
    if (isatty(STDIN_FILENO)) tcsetpgrp(STDIN_FILENO, getpgrp());
    sigprocmask(SIG_SETMASK, mask, NULL);
    execvp(command[0], command);
    int fault = errno;
    fprintf(stderr, "%s: %s\n", command[0], strerror(fault));
    _exit(fault == ENOENT || fault == ENOTDIR ? NOT_FOUND : NOT_RUNNABLE);
}

static int run(char **command) {
    sigset_t all, before;
    sigfillset(&all);
    sigprocmask(SIG_BLOCK, &all, &before);
    pid_t child = fork();
    if (child < 0) return NOT_RUNNABLE;
    if (child == 0) become(command, &before);
    for (;;) {
        int got = 0, status = 0, code = -1;
        if (sigwait(&all, &got) != 0) return 1;
        if (got != SIGCHLD) {
            kill(child, got);
            continue;
        }
        for (pid_t ended; (ended = waitpid(-1, &status, WNOHANG)) > 0;) {
            if (ended != child) continue;
            code = WIFEXITED(status) ? WEXITSTATUS(status) : BY_SIGNAL + WTERMSIG(status);
        }
        if (code >= 0) return code;
    }
}

int main(int argc, char **argv) {
    /* An ignored SIGCHLD, which a runtime may pass on, is never pending: nothing would be reaped here. */
    signal(SIGCHLD, SIG_DFL);
    return argc > 1 ? run(argv + 1) : pause_here();
}
