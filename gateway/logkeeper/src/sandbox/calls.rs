//! The system calls by name.

/// The calls of the logkeeper, the asynchronous runtime and the C library. Calls that differ by architecture
/// come last.
#[rustfmt::skip]
pub(super) const ALLOWED: &[i64] = &[
    // Files.
    libc::SYS_openat, libc::SYS_close, libc::SYS_read, libc::SYS_pread64, libc::SYS_readv, libc::SYS_preadv,
    libc::SYS_write, libc::SYS_pwrite64, libc::SYS_writev, libc::SYS_pwritev, libc::SYS_lseek, libc::SYS_ftruncate,
    libc::SYS_fallocate, libc::SYS_fdatasync, libc::SYS_fsync, libc::SYS_flock, libc::SYS_fcntl, libc::SYS_statx,
    libc::SYS_newfstatat, libc::SYS_fstat, libc::SYS_statfs, libc::SYS_fstatfs, libc::SYS_faccessat, libc::SYS_faccessat2, libc::SYS_getdents64,
    libc::SYS_readlinkat, libc::SYS_mkdirat, libc::SYS_unlinkat, libc::SYS_renameat2,
    libc::SYS_fchmod, libc::SYS_fchmodat, libc::SYS_fchown, libc::SYS_fchownat, libc::SYS_getcwd, libc::SYS_fadvise64,
    // Pipes and sockets.
    libc::SYS_splice, libc::SYS_sendfile, libc::SYS_pipe2, libc::SYS_dup, libc::SYS_dup3, libc::SYS_bind,
    libc::SYS_listen, libc::SYS_accept4, libc::SYS_connect, libc::SYS_shutdown, libc::SYS_recvfrom, libc::SYS_recvmsg,
    libc::SYS_sendto, libc::SYS_sendmsg, libc::SYS_getsockopt, libc::SYS_setsockopt, libc::SYS_getsockname,
    libc::SYS_getpeername,
    // Waiting and polling.
    libc::SYS_epoll_create1, libc::SYS_epoll_ctl, libc::SYS_epoll_pwait, libc::SYS_epoll_pwait2, libc::SYS_eventfd2,
    libc::SYS_ppoll, libc::SYS_pselect6, libc::SYS_futex, libc::SYS_nanosleep, libc::SYS_clock_nanosleep,
    libc::SYS_restart_syscall, libc::SYS_sched_yield,
    // Memory, threads and signals.
    libc::SYS_brk, libc::SYS_munmap, libc::SYS_mremap, libc::SYS_madvise, libc::SYS_membarrier, libc::SYS_rseq,
    libc::SYS_set_robust_list, libc::SYS_get_robust_list, libc::SYS_set_tid_address, libc::SYS_sched_getaffinity,
    libc::SYS_rt_sigaction, libc::SYS_rt_sigprocmask, libc::SYS_rt_sigreturn, libc::SYS_sigaltstack, libc::SYS_exit,
    libc::SYS_exit_group,
    // Information about the process and the system.
    libc::SYS_getpid, libc::SYS_gettid, libc::SYS_getppid, libc::SYS_getuid, libc::SYS_geteuid, libc::SYS_getgid,
    libc::SYS_getegid, libc::SYS_getrandom, libc::SYS_uname, libc::SYS_sysinfo, libc::SYS_clock_gettime,
    libc::SYS_clock_getres, libc::SYS_gettimeofday,
    // Allowed until the second filter is installed, which refuses it.
    libc::SYS_seccomp,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_renameat,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_open,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_stat,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_lstat,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_access,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_readlink,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_mkdir,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_unlink,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_rename,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_chmod,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_chown,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_pipe,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_dup2,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_poll,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_epoll_wait,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_getrlimit,
];

/// Calls that an attacker could use in a process of root.
#[rustfmt::skip]
pub(super) const REFUSED: &[i64] = &[
    // Programs and other processes.
    libc::SYS_execve, libc::SYS_execveat, libc::SYS_ptrace, libc::SYS_process_vm_readv, libc::SYS_process_vm_writev,
    libc::SYS_pidfd_open, libc::SYS_pidfd_getfd, libc::SYS_pidfd_send_signal, libc::SYS_kcmp, libc::SYS_rt_sigqueueinfo,
    libc::SYS_rt_tgsigqueueinfo, libc::SYS_tkill,
    // User and group ids.
    libc::SYS_setuid, libc::SYS_setgid, libc::SYS_setreuid, libc::SYS_setregid, libc::SYS_setresuid,
    libc::SYS_setresgid, libc::SYS_setgroups, libc::SYS_setfsuid, libc::SYS_setfsgid, libc::SYS_capset,
    libc::SYS_personality, libc::SYS_seccomp,
    // Mounts and namespaces.
    libc::SYS_mount, libc::SYS_umount2, libc::SYS_pivot_root, libc::SYS_chroot, libc::SYS_unshare, libc::SYS_setns,
    libc::SYS_open_tree, libc::SYS_move_mount, libc::SYS_fsopen, libc::SYS_fsconfig, libc::SYS_fsmount,
    libc::SYS_fspick, libc::SYS_mount_setattr, libc::SYS_open_by_handle_at, libc::SYS_mknodat, libc::SYS_swapon,
    libc::SYS_swapoff, libc::SYS_quotactl,
    // The kernel itself, and its rarely used parts.
    libc::SYS_bpf, libc::SYS_perf_event_open, libc::SYS_userfaultfd, libc::SYS_io_uring_setup,
    libc::SYS_io_uring_enter, libc::SYS_io_uring_register, libc::SYS_keyctl, libc::SYS_add_key, libc::SYS_request_key,
    libc::SYS_init_module, libc::SYS_finit_module, libc::SYS_delete_module, libc::SYS_kexec_load, libc::SYS_reboot,
    libc::SYS_syslog, libc::SYS_acct, libc::SYS_settimeofday, libc::SYS_clock_settime, libc::SYS_clock_adjtime,
    libc::SYS_adjtimex, libc::SYS_sethostname, libc::SYS_setdomainname, libc::SYS_vhangup, libc::SYS_memfd_create,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_fork,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_vfork,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_mknod,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_iopl,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_ioperm,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_modify_ldt,
];
