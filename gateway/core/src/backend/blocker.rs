//! Processes that hold up an operation, and what they wait for in the kernel.

use std::fmt;

use switchyard_linux::kernel_wait::{KernelWait, SystemCall, UsedMount};

use crate::error::{Error, ErrorKind};

/// The most processes that an error names.
const NAMED: usize = 3;

/// A process that holds up an operation: it has not ended, or an operation waits for what it does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Blocker {
    /// The process, and the function of the kernel in which it waits.
    pub wait: KernelWait,
    /// The system call in which it waits, if it is known.
    pub call: Option<SystemCall>,
    /// The mount that it waits for: that of the file of its call, or one that it uses and that does not answer. `None` if
    /// neither is known.
    pub mount: Option<UsedMount>,
}

impl Blocker {
    /// These processes in one line; `None` if there are none. Those beyond the first are not counted: who looks for them stops
    /// after some.
    #[must_use]
    pub fn explain(blockers: &[Self]) -> Option<String> {
        let named: Vec<_> = blockers.iter().take(NAMED).map(Self::to_string).collect();
        let more = if blockers.len() > NAMED {
            "; and more"
        } else {
            ""
        };
        (!named.is_empty()).then(|| format!("{}{more}", named.join("; ")))
    }

    /// An error of a call to the runtime. If that has not answered in time, the error names the processes that `look` finds,
    /// if there are any; otherwise nobody looks.
    pub async fn explain_late(error: Error, look: impl Future<Output = Vec<Self>>) -> Error {
        if error.kind() != ErrorKind::DeadlineExceeded {
            return error;
        }
        match Self::explain(&look.await) {
            Some(why) => error.context(why),
            None => error,
        }
    }
}

impl fmt::Display for Blocker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { wait, call, mount } = self;
        write!(f, "process {} ({})", wait.pid, wait.name)?;
        if !wait.is_uninterruptible() {
            return write!(f, " is left: it {}", activity(wait.state));
        }
        f.write_str(" waits in the kernel")?;
        if let Some(channel) = &wait.channel {
            write!(f, " in {channel}")?;
        }
        if let Some(call) = call {
            write!(f, ", system call {call}")?;
        }
        match mount {
            None => {
                f.write_str(", mount unknown: only what it waits for, or a reboot, ends the wait")
            }
            Some(mount) => {
                let UsedMount {
                    point,
                    fs_type,
                    source,
                    ..
                } = mount;
                let end = if mount.is_remote() { "server" } else { "disk" };
                write!(
                    f,
                    ", mount {point} ({fs_type} {source}): only its {end} or a reboot ends it"
                )
            }
        }
    }
}

/// The activity of a process, by the letter of its state.
const fn activity(state: char) -> &'static str {
    match state {
        'R' => "runs",
        'T' | 't' => "is stopped, or traced by a debugger",
        'Z' | 'X' | 'x' => "has ended, and its parent has not collected it",
        _ => "sleeps",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn blocker(state: char, mount: Option<(&str, &str)>) -> Blocker {
        Blocker {
            wait: KernelWait {
                pid: 812,
                name: "java".to_owned(),
                thread: 830,
                state,
                channel: Some("nfs_wait_bit_killable".to_owned()),
            },
            call: None,
            mount: mount.map(|(fs_type, source)| UsedMount {
                device: "0:51".to_owned(),
                point: "/data".to_owned(),
                fs_type: fs_type.to_owned(),
                source: source.to_owned(),
            }),
        }
    }

    #[test]
    fn process_that_cannot_end_is_named_with_its_wait_and_what_ends_it() {
        let begin = "process 812 (java) waits in the kernel in nfs_wait_bit_killable";
        for (mount, end) in [
            (
                Some(("nfs4", "nas:/export")),
                ", mount /data (nfs4 nas:/export): only its server or a reboot ends it",
            ),
            (
                Some(("ext4", "/dev/loop1")),
                ", mount /data (ext4 /dev/loop1): only its disk or a reboot ends it",
            ),
            (
                None,
                ", mount unknown: only what it waits for, or a reboot, ends the wait",
            ),
        ] {
            assert_eq!(blocker('D', mount).to_string(), format!("{begin}{end}"));
        }
        let silent = Blocker {
            wait: KernelWait {
                channel: None,
                ..blocker('D', None).wait
            },
            call: SystemCall::parse("99999 0x3"),
            mount: None,
        };
        assert!(
            silent
                .to_string()
                .starts_with("process 812 (java) waits in the kernel, system call 99999, mount")
        );
        assert_eq!(
            blocker('S', None).to_string(),
            "process 812 (java) is left: it sleeps"
        );
    }

    #[test]
    fn some_of_many_processes_are_named() {
        assert_eq!(Blocker::explain(&[]), None);
        let one = blocker('Z', None);
        let text = |count: usize| Blocker::explain(&vec![one.clone(); count]).unwrap();
        assert_eq!(text(1), one.to_string());
        assert_eq!(text(3).matches("process 812").count(), 3);
        assert_eq!(text(5), format!("{}; and more", text(3)));
    }
}
