//! Confines the logkeeper's process, so that an attacker who takes it over through its input gains little.
//!
//! The process writes files anywhere, and so stays a process of root with the capabilities [`KEPT`]. It
//! executes no program, traces and signals no other process, mounts nothing, opens only unix sockets, and
//! makes no memory executable. System calls that it never makes fail: those that are useful to an attacker
//! with EPERM, all others with ENOSYS, which a library takes for an older kernel and handles. No call kills
//! the process: losing the logkeeper costs more than a call that fails.

use std::collections::BTreeMap;
use std::io;

use nix::errno::Errno;
use rustix::process::{DumpableBehavior, set_dumpable_behavior};
use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, clear_ambient_capability_set,
    remove_capability_from_bounding_set, set_capabilities, set_no_new_privs,
};
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, TargetArch, apply_filter_all_threads,
};

mod calls;

use calls::{ALLOWED, REFUSED};

/// To open logs anywhere, and to use the space that a file system reserves for root.
const KEPT: CapabilitySet = CapabilitySet::DAC_OVERRIDE.union(CapabilitySet::SYS_RESOURCE);

/// Reason why the process is not confined, or not completely.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SandboxError {
    /// The kernel refused an operation.
    #[error("cannot {0}")]
    Kernel(&'static str, #[source] io::Error),
    /// There is no filter for this architecture, or the kernel does not support filters.
    #[error("cannot filter system calls")]
    Filter(#[source] seccompiler::Error),
}

/// The arguments with which a call is allowed that can do more than the logkeeper needs.
enum ArgCondition {
    /// An argument has this value.
    Is(u8, u64),
    /// Exactly these bits of an argument are set, among those of a mask.
    Bits(u8, u64, u64),
}

/// Confines this process irrevocably. System call filters apply to all of its threads; capabilities are
/// dropped for this thread and those that it starts.
///
/// # Errors
/// The operation that failed; the earlier ones of this function were done.
pub(crate) fn enter() -> Result<(), SandboxError> {
    let refused = |what: &'static str| {
        move |errno: rustix::io::Errno| SandboxError::Kernel(what, errno.into())
    };
    set_dumpable_behavior(DumpableBehavior::NotDumpable)
        .map_err(refused("leave the process undumpable"))?;
    set_no_new_privs(true).map_err(refused("renounce new privileges"))?;
    drop_capabilities().map_err(refused("drop capabilities"))?;
    for program in programs().map_err(SandboxError::Filter)? {
        apply_filter_all_threads(&program).map_err(SandboxError::Filter)?;
    }
    Ok(())
}

fn drop_capabilities() -> rustix::io::Result<()> {
    let now = capabilities(None)?;
    clear_ambient_capability_set()?;
    if now.effective.contains(CapabilitySet::SETPCAP) {
        for capability in CapabilitySet::all().difference(KEPT).iter() {
            match remove_capability_from_bounding_set(capability) {
                // This kernel does not know the capability.
                Err(rustix::io::Errno::INVAL) => {}
                other => other?,
            }
        }
    }
    let kept = now.permitted.intersection(KEPT);
    let sets = CapabilitySets {
        effective: kept,
        permitted: kept,
        inheritable: CapabilitySet::empty(),
    };
    set_capabilities(None, sets)
}

/// The filters, in the order of their installation: if both refuse a call, the later one determines the
/// errno.
fn programs() -> Result<[BpfProgram; 2], seccompiler::Error> {
    let arch = TargetArch::try_from(std::env::consts::ARCH)?;
    let mut allowed: BTreeMap<_, Vec<SeccompRule>> =
        ALLOWED.iter().map(|call| (*call, Vec::new())).collect();
    for (call, when) in with_conditions() {
        allowed.entry(call).or_default().push(rule(&when)?);
    }
    let refused = REFUSED.iter().map(|call| (*call, Vec::new())).collect();
    let [no_such_call, not_permitted] = [Errno::ENOSYS, Errno::EPERM]
        .map(|errno| SeccompAction::Errno((errno as i32).unsigned_abs()));
    Ok([
        SeccompFilter::new(allowed, no_such_call, SeccompAction::Allow, arch)?.try_into()?,
        SeccompFilter::new(refused, SeccompAction::Allow, not_permitted, arch)?.try_into()?,
    ])
}

fn rule(when: &ArgCondition) -> Result<SeccompRule, seccompiler::Error> {
    let condition = match *when {
        ArgCondition::Is(argument, value) => {
            SeccompCondition::new(argument, SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, value)
        }
        ArgCondition::Bits(argument, mask, value) => SeccompCondition::new(
            argument,
            SeccompCmpArgLen::Dword,
            SeccompCmpOp::MaskedEq(mask),
            value,
        ),
    };
    Ok(SeccompRule::new(vec![condition?])?)
}

/// Calls that are allowed only with certain arguments.
fn with_conditions() -> Vec<(i64, ArgCondition)> {
    let number = |value: i32| u64::from(value.unsigned_abs());
    let own = u64::from(std::process::id());
    // Allows creating a thread, but neither a process nor a namespace.
    let thread = number(libc::CLONE_THREAD);
    let namespaces = libc::CLONE_NEWNS
        | libc::CLONE_NEWCGROUP
        | libc::CLONE_NEWUTS
        | libc::CLONE_NEWIPC
        | libc::CLONE_NEWUSER
        | libc::CLONE_NEWPID
        | libc::CLONE_NEWNET;
    let executable = number(libc::PROT_EXEC);
    let mut calls = vec![
        (
            libc::SYS_clone,
            ArgCondition::Bits(0, thread | number(namespaces), thread),
        ),
        (libc::SYS_mmap, ArgCondition::Bits(2, executable, 0)),
        (libc::SYS_mprotect, ArgCondition::Bits(2, executable, 0)),
        (libc::SYS_socket, ArgCondition::Is(0, number(libc::AF_UNIX))),
        (
            libc::SYS_socketpair,
            ArgCondition::Is(0, number(libc::AF_UNIX)),
        ),
        // For abort, and for tests.
        (libc::SYS_kill, ArgCondition::Is(0, own)),
        (libc::SYS_tgkill, ArgCondition::Is(0, own)),
        (libc::SYS_prlimit64, ArgCondition::Is(0, 0)),
        // Setting the name of a thread, and the call by which the second filter is installed.
        (
            libc::SYS_prctl,
            ArgCondition::Is(0, number(libc::PR_SET_NAME)),
        ),
        (
            libc::SYS_prctl,
            ArgCondition::Is(0, number(libc::PR_SET_NO_NEW_PRIVS)),
        ),
    ];
    let requests = requests([libc::FIONBIO, libc::FIONREAD, libc::FIOCLEX, libc::TCGETS]);
    calls.extend(requests.map(|what| (libc::SYS_ioctl, ArgCondition::Is(1, what))));
    calls
}

/// Requests of ioctl as the filter compares them. Their type is `c_ulong` in glibc, and `c_int` in musl.
fn requests<T: TryInto<u64>>(of_libc: [T; 4]) -> impl Iterator<Item = u64> {
    of_libc.into_iter().filter_map(|what| what.try_into().ok())
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};
    use std::{fs, thread};

    use super::*;

    /// Set in the environment of the process that confines itself; see [`alone`].
    const CONFINED: &str = "SWITCHYARD_TEST_CONFINED";

    /// Returns whether this is the process in which test `name` may confine itself. If not, such a process is
    /// started, and must succeed.
    fn alone(name: &str) -> bool {
        if std::env::var_os(CONFINED).is_some() {
            return true;
        }
        let status = Command::new(std::env::current_exe().unwrap())
            .args([
                "--exact",
                &format!("sandbox::tests::{name}"),
                "--nocapture",
                "--test-threads",
                "1",
            ])
            .env(CONFINED, "1")
            .stdout(Stdio::null())
            .status();
        assert!(status.unwrap().success());
        false
    }

    #[test]
    fn requests_of_ioctl_are_the_same_numbers_in_each_libc() {
        let expected: [u64; 4] = [0x5421, 0x541b, 0x5451, 0x5401];
        assert!(requests::<libc::c_ulong>([0x5421, 0x541b, 0x5451, 0x5401]).eq(expected));
        assert!(requests::<libc::c_int>([0x5421, 0x541b, 0x5451, 0x5401]).eq(expected));
        // None of this machine's libc is lost.
        assert!(
            requests([libc::FIONBIO, libc::FIONREAD, libc::FIOCLEX, libc::TCGETS]).eq(expected)
        );
    }

    #[test]
    fn dangerous_system_calls_are_denied() {
        if !alone("dangerous_system_calls_are_denied") {
            return;
        }
        enter().unwrap();
        let refused = |what: &str, result: io::Result<()>| {
            assert_eq!(
                result.map_err(|error| error.raw_os_error()),
                Err(Some(libc::EPERM)),
                "{what}"
            );
        };
        let named = |errno: rustix::io::Errno| io::Error::from(errno);
        refused(
            "execve",
            Err(std::os::unix::process::CommandExt::exec(&mut Command::new(
                "/bin/true",
            ))),
        );
        refused(
            "mount",
            nix::mount::mount(
                None::<&str>,
                "/",
                None::<&str>,
                nix::mount::MsFlags::MS_REMOUNT,
                None::<&str>,
            )
            .map_err(io::Error::from),
        );
        refused(
            "capset",
            set_capabilities(
                None,
                CapabilitySets {
                    effective: CapabilitySet::empty(),
                    permitted: CapabilitySet::empty(),
                    inheritable: CapabilitySet::empty(),
                },
            )
            .map_err(named),
        );
        refused("chroot", nix::unistd::chroot("/").map_err(io::Error::from));
        refused(
            "setuid",
            nix::unistd::setuid(nix::unistd::Uid::from_raw(0)).map_err(io::Error::from),
        );
        refused(
            "setns",
            rustix::thread::move_into_link_name_space(
                rustix::fd::AsFd::as_fd(&fs::File::open("/proc/self/ns/net").unwrap()),
                None,
            )
            .map_err(named),
        );
        // For all other calls, the kernel seems not to have them.
        let unknown = |what: &str, result: io::Result<()>| {
            assert_eq!(
                result.map_err(|error| error.raw_os_error()),
                Err(Some(libc::ENOSYS)),
                "{what}"
            );
        };
        unknown("socket", std::net::UdpSocket::bind("127.0.0.1:0").map(drop));
        unknown(
            "kill",
            nix::sys::signal::kill(nix::unistd::Pid::from_raw(1), None).map_err(io::Error::from),
        );
        unknown("fork", Command::new("/bin/true").status().map(drop));
        // What the logkeeper needs still works, including threads.
        thread::spawn(|| {
            let dir = tempfile::tempdir().unwrap();
            fs::write(dir.path().join("0.log"), "line\n").unwrap();
        })
        .join()
        .unwrap();
        let status = fs::read_to_string("/proc/self/status").unwrap();
        assert!(
            status.contains("NoNewPrivs:\t1") && status.contains("Seccomp:\t2"),
            "{status}"
        );
    }

    #[test]
    fn allowed_and_denied_calls_are_disjoint_except_seccomp() {
        let both: Vec<_> = ALLOWED
            .iter()
            .filter(|call| REFUSED.contains(call))
            .collect();
        assert_eq!(both, [&libc::SYS_seccomp]);
        assert!(
            with_conditions()
                .iter()
                .all(|(call, _)| !ALLOWED.contains(call) && !REFUSED.contains(call))
        );
        programs().unwrap();
    }
}
