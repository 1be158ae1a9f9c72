/* The infra process of a sandbox whose tasks share a process namespace: it is process 1 there, so it reaps what its tasks
 * leave behind, and it ends on SIGTERM or SIGINT. Linked statically, because its root file system holds nothing else. */
#include <signal.h>
#include <stddef.h>
#include <sys/wait.h>

int main(void) {
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
