//! The default seccomp filter: the system calls that ordinary programs need, and those that each capability
//! adds.
//!
//! Equal in effect to the profile that Docker and containerd ship today (the one without `io_uring`, `AF_ALG`
//! and `AF_VSOCK`). The runtime skips names that the kernel or libseccomp does not know.

use super::profile::{Argument, Conditions, Profile, Rule};

/// System calls that are always allowed.
const ALWAYS: &str = "\
    accept accept4 access adjtimex alarm bind brk cachestat capget capset chdir chmod chown chown32 \
    clock_adjtime clock_adjtime64 clock_getres clock_getres_time64 clock_gettime clock_gettime64 \
    clock_nanosleep clock_nanosleep_time64 close close_range connect copy_file_range creat dup dup2 dup3 \
    epoll_create epoll_create1 epoll_ctl epoll_ctl_old epoll_pwait epoll_pwait2 epoll_wait epoll_wait_old \
    eventfd eventfd2 execve execveat exit exit_group faccessat faccessat2 fadvise64 fadvise64_64 fallocate \
    fanotify_mark fchdir fchmod fchmodat fchmodat2 fchown fchown32 fchownat fcntl fcntl64 fdatasync fgetxattr \
    flistxattr flock fork fremovexattr fsetxattr fstat fstat64 fstatat64 fstatfs fstatfs64 fsync ftruncate \
    ftruncate64 futex futex_requeue futex_time64 futex_wait futex_waitv futex_wake futimesat get_robust_list \
    get_thread_area getcpu getcwd getdents getdents64 getegid getegid32 geteuid geteuid32 getgid getgid32 \
    getgroups getgroups32 getitimer getpeername getpgid getpgrp getpid getppid getpriority getrandom \
    getresgid getresgid32 getresuid getresuid32 getrlimit getrusage getsid getsockname getsockopt gettid \
    gettimeofday getuid getuid32 getxattr getxattrat inotify_add_watch inotify_init inotify_init1 \
    inotify_rm_watch io_cancel io_destroy io_getevents io_pgetevents io_pgetevents_time64 io_setup io_submit \
    ioctl ioprio_get ioprio_set ipc kill landlock_add_rule landlock_create_ruleset landlock_restrict_self \
    lchown lchown32 lgetxattr link linkat listen listmount listxattr listxattrat llistxattr _llseek \
    lremovexattr lseek lsetxattr lstat lstat64 madvise map_shadow_stack membarrier memfd_create memfd_secret \
    mincore mkdir mkdirat mknod mknodat mlock mlock2 mlockall mmap mmap2 mprotect mq_getsetattr mq_notify \
    mq_open mq_timedreceive mq_timedreceive_time64 mq_timedsend mq_timedsend_time64 mq_unlink mremap mseal \
    msgctl msgget msgrcv msgsnd msync munlock munlockall munmap name_to_handle_at nanosleep newfstatat \
    _newselect open openat openat2 pause pidfd_open pidfd_send_signal pipe pipe2 pkey_alloc pkey_free \
    pkey_mprotect poll ppoll ppoll_time64 prctl pread64 preadv preadv2 prlimit64 process_mrelease pselect6 \
    pselect6_time64 pwrite64 pwritev pwritev2 read readahead readlink readlinkat readv recv recvfrom recvmmsg \
    recvmmsg_time64 recvmsg remap_file_pages removexattr removexattrat rename renameat renameat2 \
    restart_syscall riscv_hwprobe rmdir rseq rt_sigaction rt_sigpending rt_sigprocmask rt_sigqueueinfo \
    rt_sigreturn rt_sigsuspend rt_sigtimedwait rt_sigtimedwait_time64 rt_tgsigqueueinfo \
    sched_get_priority_max sched_get_priority_min sched_getaffinity sched_getattr sched_getparam \
    sched_getscheduler sched_rr_get_interval sched_rr_get_interval_time64 sched_setaffinity sched_setattr \
    sched_setparam sched_setscheduler sched_yield seccomp select semctl semget semop semtimedop \
    semtimedop_time64 send sendfile sendfile64 sendmmsg sendmsg sendto set_robust_list set_thread_area \
    set_tid_address setfsgid setfsgid32 setfsuid setfsuid32 setgid setgid32 setgroups setgroups32 setitimer \
    setpgid setpriority setregid setregid32 setresgid setresgid32 setresuid setresuid32 setreuid setreuid32 \
    setrlimit setsid setsockopt setuid setuid32 setxattr setxattrat shmat shmctl shmdt shmget shutdown \
    sigaltstack signalfd signalfd4 sigprocmask sigreturn socketcall socketpair splice stat stat64 statfs \
    statfs64 statmount statx symlink symlinkat sync sync_file_range syncfs sysinfo tee tgkill time \
    timer_create timer_delete timer_getoverrun timer_gettime timer_gettime64 timer_settime timer_settime64 \
    timerfd_create timerfd_gettime timerfd_gettime64 timerfd_settime timerfd_settime64 times tkill truncate \
    truncate64 ugetrlimit umask uname unlink unlinkat uretprobe utime utimensat utimensat_time64 utimes vfork \
    vmsplice wait4 waitid waitpid write writev";

/// System calls that are allowed with a capability.
const BY_CAPABILITY: [(&str, &str); 14] = [
    ("CAP_BPF", "bpf"),
    ("CAP_DAC_READ_SEARCH", "open_by_handle_at"),
    ("CAP_PERFMON", "perf_event_open"),
    (
        "CAP_SYS_ADMIN",
        "bpf clone clone3 fanotify_init fsconfig fsmount fsopen fspick lookup_dcookie lsm_get_self_attr \
         lsm_list_modules lsm_set_self_attr mount mount_setattr move_mount open_tree perf_event_open quotactl \
         quotactl_fd setdomainname sethostname setns syslog umount umount2 unshare",
    ),
    ("CAP_SYS_BOOT", "reboot"),
    ("CAP_SYS_CHROOT", "chroot"),
    ("CAP_SYS_MODULE", "delete_module finit_module init_module"),
    (
        "CAP_SYS_NICE",
        "get_mempolicy mbind set_mempolicy set_mempolicy_home_node",
    ),
    ("CAP_SYS_PACCT", "acct"),
    (
        "CAP_SYS_PTRACE",
        "kcmp pidfd_getfd process_madvise process_vm_readv process_vm_writev ptrace",
    ),
    ("CAP_SYS_RAWIO", "ioperm iopl"),
    (
        "CAP_SYS_TIME",
        "clock_settime clock_settime64 settimeofday stime",
    ),
    ("CAP_SYS_TTY_CONFIG", "vhangup"),
    ("CAP_SYSLOG", "syslog"),
];

/// System calls that exist only on some architectures, which have Go's names, as in profile files.
const BY_ARCH: [(&[&str], &str); 3] = [
    (&["amd64", "x32"], "arch_prctl"),
    (&["amd64", "x32", "x86"], "modify_ldt"),
    (
        &["arm", "arm64"],
        "arm_fadvise64_64 arm_sync_file_range breakpoint cacheflush set_tls sync_file_range2",
    ),
];

/// The flags of clone(2) that create namespaces: mount, cgroup, UTS, IPC, user, process and network.
const CLONE_NAMESPACES: u64 = 0x7e02_0000;

/// The values of personality(2) that are allowed: the default, 32-bit, without address randomisation, both,
/// and the query of the current one.
const PERSONALITIES: [u64; 5] = [0x0, 0x8, 0x2_0000, 0x2_0008, 0xffff_ffff];

/// Socket families that are not namespaced: `AF_ALG` reaches the kernel's cryptography, `AF_VSOCK` the
/// hypervisor.
const AF_ALG: u64 = 38;
const AF_VSOCK: u64 = 40;

const ENOSYS: u32 = 38;

/// The default profile, with conditions for capabilities, architecture and kernel version.
pub(super) fn profile() -> Profile {
    let mut rules = vec![
        Rule::allow(ALWAYS),
        // Before 4.8 a tracer could bypass the filter of the traced process.
        Rule::allow("process_vm_readv process_vm_writev ptrace").includes(Conditions {
            min_kernel: "4.8".to_owned(),
            ..Conditions::default()
        }),
        Rule::allow("socket").argument(Argument::new(0, "SCMP_CMP_LT", AF_ALG)),
        Rule::allow("socket").argument(Argument::new(0, "SCMP_CMP_EQ", AF_ALG + 1)),
        Rule::allow("socket").argument(Argument::new(0, "SCMP_CMP_GT", AF_VSOCK)),
    ];
    for personality in PERSONALITIES {
        rules.push(Rule::allow("personality").argument(Argument::new(
            0,
            "SCMP_CMP_EQ",
            personality,
        )));
    }
    for (arches, names) in BY_ARCH {
        rules.push(Rule::allow(names).includes(Conditions::of_arches(arches)));
    }
    for (capability, names) in BY_CAPABILITY {
        rules.push(Rule::allow(names).includes(Conditions::of_capability(capability)));
    }
    let without_admin = || Conditions::of_capability("CAP_SYS_ADMIN");
    rules.push(
        Rule::allow("clone")
            .argument(Argument::new(0, "SCMP_CMP_MASKED_EQ", CLONE_NAMESPACES))
            .excludes(without_admin()),
    );
    // The flags of clone3 are behind a pointer, which a filter cannot follow: programs fall back to clone.
    rules.push(Rule::errno("clone3", ENOSYS).excludes(without_admin()));
    Profile::new("SCMP_ACT_ERRNO", rules)
}
