//! State that a process takes over from whoever starts it, and should not: the umask, blocked signals, and signals that are
//! ignored.
//!
//! A service manager starts every process alike. A shell, a script of init, cron or a hardened profile does not: a umask of 077
//! closes the root of each container to its users, of children that end under an ignored SIGCHLD no status is left, and a
//! signal that is blocked ends nothing. All three pass on to every program that is executed.

use std::fs;
use std::io;

use nix::libc;
use nix::sys::signal::SigSet;
use nix::sys::stat::{Mode, umask};
use tokio::runtime::Builder;
use tokio::signal::unix::{SignalKind, signal};

/// The mode bits that files of ours do not get unless they are set expressly, as under systemd.
const UMASK: Mode = Mode::S_IWGRP.union(Mode::S_IWOTH);

/// The number of the last signal with a name; those of real time are after it.
const LAST: i32 = 31;

/// Signals that are left as they are: those that cannot be caught, those of faults of the program itself, and SIGPIPE, which
/// Rust's start has set to be ignored, and resets for each program that it executes.
const LEFT: [i32; 6] = [
    libc::SIGILL,
    libc::SIGFPE,
    libc::SIGKILL,
    libc::SIGSEGV,
    libc::SIGPIPE,
    libc::SIGSTOP,
];

/// Signals that a process stops ignoring.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NoLongerIgnored {
    /// The end of a child. Others may be ignored on purpose: a command under nohup(1) outlives its terminal.
    Children,
    /// All that can be caught: the process executes a program that knows nothing of whoever started this one.
    All,
}

/// Sets umask, signal mask and ignored signals to what a service manager gives. Must be called before this process starts a
/// thread or a child.
///
/// A signal that was ignored gets a handler without effect: to make its action the default one again needs unsafe code. In this
/// process that is the same for SIGCHLD, except that a call may be interrupted; in a program that it executes, the
/// action is the default one (execve(2)). Where nothing is ignored, as mostly, no handler is set.
///
/// # Errors
/// Those of the system calls.
pub fn reset(ignored: NoLongerIgnored) -> io::Result<()> {
    umask(UMASK);
    SigSet::empty().thread_set_mask()?;
    // Without /proc nothing is known to be ignored.
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let signals = to_catch(&status, ignored);
    if signals.is_empty() {
        return Ok(());
    }
    // A handler that was set stays for the life of the process, also without this runtime.
    let runtime = Builder::new_current_thread().enable_io().build()?;
    let _entered = runtime.enter();
    for number in signals {
        drop(signal(SignalKind::from_raw(number))?);
    }
    Ok(())
}

/// The signals to catch in a process with this `/proc/self/status`. Pure.
fn to_catch(status: &str, ignored: NoLongerIgnored) -> Vec<i32> {
    let mask = status
        .lines()
        .find_map(|line| line.strip_prefix("SigIgn:"))
        .and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .unwrap_or(0);
    let is_meant = |number: i32| match ignored {
        NoLongerIgnored::Children => number == libc::SIGCHLD,
        NoLongerIgnored::All => !LEFT.contains(&number),
    };
    (1..=LAST)
        .filter(|number| mask & (1 << (number - 1)) != 0 && is_meant(*number))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ignored_signals_are_caught_as_far_as_they_are_meant() {
        // (ignored signals, what is caught of them, what a program that is executed needs).
        let cases: [(&[i32], &[i32], &[i32]); 7] = [
            (&[], &[], &[]),
            (&[libc::SIGCHLD], &[libc::SIGCHLD], &[libc::SIGCHLD]),
            // nohup(1), and Rust's own.
            (&[libc::SIGHUP, libc::SIGPIPE], &[], &[libc::SIGHUP]),
            // A job in the background of a shell without job control.
            (
                &[libc::SIGINT, libc::SIGQUIT],
                &[],
                &[libc::SIGINT, libc::SIGQUIT],
            ),
            (
                &[libc::SIGTERM, libc::SIGCHLD, libc::SIGTTOU],
                &[libc::SIGCHLD],
                &[libc::SIGTERM, libc::SIGCHLD, libc::SIGTTOU],
            ),
            (&[libc::SIGSEGV, libc::SIGFPE, libc::SIGILL], &[], &[]),
            (&[libc::SIGSYS, 34, 64], &[], &[libc::SIGSYS]),
        ];
        for (ignored, children, all) in cases {
            let mask = ignored
                .iter()
                .fold(0_u64, |mask, number| mask | (1 << (number - 1)));
            let status =
                format!("Name:\tx\nSigBlk:\t0000000000000000\nSigIgn:\t{mask:016x}\nSigCgt:\t0\n");
            let sorted = |numbers: &[i32]| {
                let mut numbers = numbers.to_vec();
                numbers.sort_unstable();
                numbers
            };
            assert_eq!(
                to_catch(&status, NoLongerIgnored::Children),
                sorted(children)
            );
            assert_eq!(to_catch(&status, NoLongerIgnored::All), sorted(all));
        }
        for unknown in ["", "SigIgn:\tnothing\n", "SigIgn:\n"] {
            assert!(to_catch(unknown, NoLongerIgnored::All).is_empty());
        }
        assert_eq!(UMASK.bits(), 0o022);
    }
}
