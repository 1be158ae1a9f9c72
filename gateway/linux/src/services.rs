//! Supervisor of the services of this node, systemd or OpenRC, with the service that a process belongs to and the commands for it: the only
//! place that knows.

use std::fs;
use std::path::Path;

use crate::process::{Stat, is_own_root};

/// Directory in which OpenRC keeps the state of services.
const OPENRC: &str = "/run/openrc";

/// The process of OpenRC that supervises a service.
const SUPERVISOR: &str = "supervise-daemon";

/// A service, by its name for what supervises it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NodeService {
    /// A unit of systemd.
    Systemd(String),
    /// A service of OpenRC, whose processes `supervise-daemon` starts.
    OpenRc(String),
}

// === impl NodeService ===

impl NodeService {
    /// The service by this name of this node; `None` if neither of both supervises services here. Pure but for `exists`.
    #[must_use]
    pub fn named(name: &str, exists: impl Fn(&Path) -> bool) -> Option<Self> {
        if exists(Path::new("/run/systemd/system")) {
            Some(Self::Systemd(name.to_owned()))
        } else if exists(Path::new(OPENRC)) {
            Some(Self::OpenRc(name.to_owned()))
        } else {
            None
        }
    }

    /// The service of a process; `None` if it belongs to none. Blocks on `/proc`.
    #[must_use]
    pub fn of(pid: i32) -> Option<Self> {
        let cgroups = fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?;
        if let Some(unit) = unit_in(&cgroups) {
            return Some(Self::Systemd(unit));
        }
        // Before its command line is read.
        let supervisor = Stat::of(pid)?.parent;
        if !is_own_root(supervisor) {
            return None;
        }
        let words = fs::read(format!("/proc/{supervisor}/cmdline")).ok()?;
        service_in(&words).map(Self::OpenRc)
    }

    /// The program and its arguments that do this with it.
    #[must_use]
    pub fn command<'a>(&'a self, verb: &'a str) -> [&'a str; 3] {
        match self {
            Self::Systemd(unit) => ["systemctl", verb, unit],
            Self::OpenRc(service) => ["rc-service", service, verb],
        }
    }
}

/// The command that shows the state of a service of this node, that of systemd where it is not known what supervises services. Blocks.
#[must_use]
pub fn status_command(name: &str) -> String {
    let unknown = || NodeService::Systemd(name.to_owned());
    let service = NodeService::named(name, Path::exists).unwrap_or_else(unknown);
    service.command("status").join(" ")
}

/// The service in the text of a `/proc/<pid>/cgroup`: of systemd's own hierarchy, or of the only one. Pure.
fn unit_in(text: &str) -> Option<String> {
    let of = |prefix: &str| {
        text.lines()
            .find_map(|line| line.split_once(prefix).map(|(_, path)| path))
    };
    let path =
        of(":name=systemd:").or_else(|| text.lines().find_map(|line| line.strip_prefix("0::")))?;
    // None that a command would take for an option.
    let is_unit = |part: &&str| part.ends_with(".service") && !part.starts_with('-');
    let unit = path.split('/').find(is_unit)?;
    Some(unit.to_owned())
}

/// The service in the command line of a supervisor, `supervise-daemon NAME --start …`. Pure.
fn service_in(command_line: &[u8]) -> Option<String> {
    let mut words = command_line.split(|byte| *byte == 0);
    let program = words.next()?.rsplit(|byte| *byte == b'/').next()?;
    let name = str::from_utf8(words.next()?).ok()?;
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_.-".contains(&byte);
    let is_name = !name.is_empty() && !name.starts_with(['-', '.']) && name.bytes().all(is_plain);
    (program == SUPERVISOR.as_bytes() && is_name).then(|| name.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn service_of_a_process_is_found_in_its_cgroups() {
        for (text, expected) in [
            (
                "0::/system.slice/switchyard-logkeeper.service\n",
                Some("switchyard-logkeeper.service"),
            ),
            (
                "0::/system.slice/containerd.service/payload\n",
                Some("containerd.service"),
            ),
            (
                "5:memory:/\n1:name=systemd:/system.slice/keeper.service\n0::/other.service\n",
                Some("keeper.service"),
            ),
            ("0::/user.slice/session-1.scope\n", None),
            ("0::/system.slice/-x.service\n", None),
            ("0::/openrc.switchyard-logkeeper\n", None),
            ("", None),
        ] {
            assert_eq!(unit_in(text).as_deref(), expected, "{text}");
        }
    }

    #[test]
    fn service_of_openrc_is_found_in_the_words_of_its_supervisor() {
        for (words, expected) in [
            (
                "supervise-daemon\0switchyard-logkeeper\0--start\0--pidfile\0/run/x\0",
                Some("switchyard-logkeeper"),
            ),
            ("/sbin/supervise-daemon\0containerd\0", Some("containerd")),
            (
                "/usr/sbin/supervise-daemon\0a.b_c\0--start\0",
                Some("a.b_c"),
            ),
            ("supervise-daemon\0--version\0", None),
            ("supervise-daemon\0../x\0", None),
            ("supervise-daemon\0a b\0", None),
            ("supervise-daemon\0\0", None),
            ("supervise-daemon", None),
            ("sh\0switchyard-logkeeper\0", None),
            ("/lib/systemd/systemd\0--system\0", None),
            ("", None),
        ] {
            let found = service_in(words.as_bytes());
            assert_eq!(found.as_deref(), expected, "{words:?}");
        }
    }

    #[test]
    fn command_is_that_of_what_supervises_the_node() {
        for (directories, expected) in [
            (&["/run/systemd/system"][..], "systemctl restart switchyard"),
            (&["/run/openrc"][..], "rc-service switchyard restart"),
            (
                &["/run/openrc", "/run/systemd/system"][..],
                "systemctl restart switchyard",
            ),
            (&["/run/runit"][..], ""),
            (&[][..], ""),
        ] {
            let exists = |path: &Path| directories.iter().any(|known| Path::new(known) == path);
            let service = NodeService::named("switchyard", exists);
            let command = service.map(|service| service.command("restart").join(" "));
            assert_eq!(command.unwrap_or_default(), expected, "{directories:?}");
        }
    }
}
