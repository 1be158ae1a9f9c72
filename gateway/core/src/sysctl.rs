//! Names of kernel parameters and the namespaces they belong to: frontends refuse those that a sandbox may
//! not set, backends set the others.

use switchyard_linux::host_features::in_user_namespace;

/// The parsed name of a kernel parameter: the directories below `/proc/sys`, and the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SysctlName {
    parts: Vec<String>,
}

/// A namespace with kernel parameters of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SysctlNamespace {
    /// The network namespace.
    Network,
    /// The namespace of System V IPC and message queues.
    Ipc,
    /// The namespace of host and domain name.
    Uts,
}

/// The parameter that lets all groups send echo requests, with its value: a default of CRI's and Docker's on every network but the
/// host's. `None` where this process is in a user namespace: the kernel refuses a range with groups that do not exist there. What a
/// client sets itself is not changed.
#[must_use]
pub fn ping_for_all_groups() -> Option<(&'static str, &'static str)> {
    (!in_user_namespace()).then_some(("net.ipv4.ping_group_range", "0 2147483647"))
}

impl SysctlName {
    /// Parses a name in either spelling of sysctl(8): the first separator decides, so
    /// `net.ipv4.conf.eth0/1.forwarding` and `net/ipv4/conf/eth0.1/forwarding` are the same. `None` if it is
    /// malformed, or would lead out of `/proc/sys`.
    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        if name.chars().any(|c| c.is_control() || c.is_whitespace()) {
            return None;
        }
        let dotted = name.chars().find(|c| matches!(c, '.' | '/')) == Some('.');
        let parts: Vec<String> = if dotted {
            name.split('.').map(|part| part.replace('/', ".")).collect()
        } else {
            name.split('/').map(str::to_owned).collect()
        };
        // A single component is a directory of /proc/sys, not a parameter.
        let sound = parts.len() > 1
            && parts
                .iter()
                .all(|part| !matches!(part.as_str(), "" | "." | ".."));
        sound.then_some(Self { parts })
    }

    /// The namespace it belongs to; `None` if it belongs to the whole node, or is the host name, which is set
    /// by other means.
    #[must_use]
    pub fn namespace(&self) -> Option<SysctlNamespace> {
        let mut parts = self.parts.iter().map(String::as_str);
        match (parts.next()?, parts.next()?, parts.next()) {
            ("net", _, _) => Some(SysctlNamespace::Network),
            ("kernel", "domainname", None) => Some(SysctlNamespace::Uts),
            ("kernel", "sem", None) => Some(SysctlNamespace::Ipc),
            ("kernel", name, None) if name.starts_with("shm") || name.starts_with("msg") => {
                Some(SysctlNamespace::Ipc)
            }
            ("fs", "mqueue", Some(_)) => Some(SysctlNamespace::Ipc),
            _ => None,
        }
    }

    /// The network interface that it belongs to, which has to exist when it is set; `None` for those of all interfaces,
    /// and of the loopback device, which every network namespace has.
    #[must_use]
    pub fn interface(&self) -> Option<&str> {
        let parts: Vec<&str> = self.parts.iter().map(String::as_str).collect();
        match parts[..] {
            ["net", _, "conf" | "neigh", "all" | "default" | "lo", ..] => None,
            ["net", _, "conf" | "neigh", interface, _, ..] => Some(interface),
            _ => None,
        }
    }

    /// Returns whether it applies to all interfaces, or to the loopback device: programs that make interfaces set some of
    /// these too.
    #[must_use]
    pub fn is_of_all_interfaces(&self) -> bool {
        let parts: Vec<&str> = self.parts.iter().map(String::as_str).collect();
        matches!(
            parts[..],
            ["net", _, "conf" | "neigh", "all" | "default" | "lo", _, ..]
        )
    }

    /// Returns whether it decides if interfaces have addresses of IPv6.
    #[must_use]
    pub fn is_of_ipv6_addresses(&self) -> bool {
        let parts: Vec<&str> = self.parts.iter().map(String::as_str).collect();
        matches!(parts[..], ["net", "ipv6", "conf", _, "disable_ipv6"])
    }

    /// The directories below `/proc/sys`, and the file; each is a valid file name.
    #[must_use]
    pub fn parts(&self) -> &[String] {
        &self.parts
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn namespace(name: &str) -> Option<SysctlNamespace> {
        SysctlName::parse(name).and_then(|name| name.namespace())
    }

    #[test]
    fn sysctls_are_classified_by_namespace() {
        use SysctlNamespace::{Ipc, Network, Uts};
        for (name, expected) in [
            ("net.ipv4.ip_unprivileged_port_start", Network),
            ("net/core/somaxconn", Network),
            ("kernel.shm_rmid_forced", Ipc),
            ("kernel/shmmax", Ipc),
            ("kernel.msgmax", Ipc),
            ("kernel.sem", Ipc),
            ("fs.mqueue.msg_max", Ipc),
            ("kernel.domainname", Uts),
        ] {
            assert_eq!(namespace(name), Some(expected), "{name}");
        }
    }

    #[test]
    fn node_wide_sysctls_and_hostname_have_no_namespace() {
        for name in [
            "kernel.hostname",
            "kernel.pid_max",
            "kernel.semaphore",
            "vm.swappiness",
            "fs.file-max",
            "fs.mqueue",
            "net",
            "kernel.yama.shm",
        ] {
            assert_eq!(namespace(name), None, "{name}");
        }
    }

    #[test]
    fn sysctls_of_one_interface_name_it() {
        for (name, interface) in [
            ("net.ipv4.conf.eth0.rp_filter", Some("eth0")),
            ("net.ipv4.conf.eth0/1.forwarding", Some("eth0.1")),
            ("net/ipv6/neigh/net1/gc_stale_time", Some("net1")),
            ("net.mpls.conf.eth0.input", Some("eth0")),
            ("net.ipv4.conf.all.rp_filter", None),
            ("net.ipv6.conf.default.accept_ra", None),
            ("net.ipv6.conf.lo.disable_ipv6", None),
            ("net.ipv4.conf.eth0", None),
            ("net.ipv4.ip_forward", None),
            ("kernel.conf.conf.eth0.x", None),
        ] {
            let name = SysctlName::parse(name).unwrap();
            assert_eq!(name.interface(), interface, "{name:?}");
        }
    }

    #[test]
    fn sysctls_of_all_interfaces_and_of_ipv6_addresses_are_known() {
        for (name, of_all, of_addresses) in [
            ("net.ipv6.conf.all.disable_ipv6", true, true),
            ("net.ipv6.conf.default.disable_ipv6", true, true),
            ("net/ipv6/conf/lo/disable_ipv6", true, true),
            ("net.ipv6.conf.eth0.disable_ipv6", false, true),
            ("net.ipv6.conf.all.accept_ra", true, false),
            ("net.ipv4.conf.default.rp_filter", true, false),
            ("net.ipv6.neigh.default.gc_stale_time", true, false),
            ("net.ipv4.conf.eth0.rp_filter", false, false),
            ("net.ipv4.conf.all", false, false),
            ("net.ipv4.ip_forward", false, false),
            ("net.ipv6.disable_ipv6", false, false),
        ] {
            let name = SysctlName::parse(name).unwrap();
            let found = (name.is_of_all_interfaces(), name.is_of_ipv6_addresses());
            assert_eq!(found, (of_all, of_addresses), "{name:?}");
        }
    }

    #[test]
    fn sysctl_names_with_path_escapes_are_invalid() {
        for name in [
            "",
            ".",
            "/",
            "net",
            "net..x",
            "net//x",
            "/net/core",
            "net/../kernel/pid_max",
            "net.//.kernel",
            "net.core.\n",
            "net. x",
            "net.\0",
        ] {
            assert_eq!(SysctlName::parse(name), None, "{name:?}");
        }
    }

    #[test]
    fn dotted_and_slashed_sysctl_names_are_equal() {
        let dotted = SysctlName::parse("net.ipv4.conf.eth0/1.forwarding").unwrap();
        assert_eq!(
            Some(dotted),
            SysctlName::parse("net/ipv4/conf/eth0.1/forwarding")
        );
    }

    /// Prints what this process, or one that another test has started, sets by default.
    #[test]
    fn reporter_of_defaults() {
        println!("default: {:?}", ping_for_all_groups());
    }

    /// Needs to run as root.
    #[test]
    fn groups_that_a_user_namespace_lacks_are_given_no_pings() {
        let inside = |script: &str| {
            let output = std::process::Command::new("unshare")
                .args(["--user", "--map-root-user", "--net", "sh", "-ec", script])
                .arg(std::env::current_exe().unwrap())
                .output()
                .expect("unshare is missing: install the Debian package util-linux");
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            (output.status.success(), text)
        };
        let report = "exec \"$0\" --exact sysctl::tests::reporter_of_defaults --nocapture";
        let (_, text) = inside(report);
        assert!(text.contains("default: None"), "{text}");
        let (name, value) = ping_for_all_groups().expect("these tests need a node of their own");
        // The kernel's own rule, for this value and for those that a client may choose.
        for (value, is_accepted) in [
            (value, false),
            ("0 1", false),
            ("1 65535", false),
            ("0 0", true),
        ] {
            let file = name.replace('.', "/");
            let (accepted, _) = inside(&format!("echo {value} > /proc/sys/{file}"));
            assert_eq!(accepted, is_accepted, "{value}");
        }
    }

    proptest! {
        #[test]
        fn each_sysctl_part_must_be_a_name(name in "[a-z./ ]{0,24}|\\PC{0,24}") {
            for part in SysctlName::parse(&name).iter().flat_map(SysctlName::parts) {
                prop_assert!(!part.contains('/') && !matches!(part.as_str(), "" | "." | ".."), "{}", part);
            }
        }

        #[test]
        fn sysctl_class_is_independent_of_spelling(
            parts in proptest::collection::vec("[a-z0-9_]{1,8}|net|kernel|fs|mqueue|sem|shmmax", 2..5)
        ) {
            prop_assert_eq!(namespace(&parts.join(".")), namespace(&parts.join("/")));
        }
    }
}
