//! Classification of sysctl names.

use std::path::Path;

use proptest::prelude::*;

use super::*;

#[track_caller]
fn check(name: &str, expected: Option<Ns>) {
    assert_eq!(sysctl_namespace(name), expected, "{name}");
}

#[test]
fn sysctls_are_sorted_to_their_namespaces() {
    check("net.ipv4.ip_unprivileged_port_start", Some(Ns::Net));
    check("net/core/somaxconn", Some(Ns::Net));
    check("kernel.shm_rmid_forced", Some(Ns::Ipc));
    check("kernel/shmmax", Some(Ns::Ipc));
    check("kernel.msgmax", Some(Ns::Ipc));
    check("kernel.sem", Some(Ns::Ipc));
    check("fs.mqueue.msg_max", Some(Ns::Ipc));
    check("kernel.hostname", Some(Ns::Uts));
    check("kernel.domainname", Some(Ns::Uts));
}

#[test]
fn host_wide_sysctls_have_no_namespace() {
    for name in [
        "kernel.pid_max",
        "kernel.semaphore",
        "vm.swappiness",
        "fs.file-max",
        "fs.mqueue",
        "net",
        "kernel.yama.shm",
    ] {
        check(name, None);
    }
}

#[test]
fn names_that_lead_elsewhere_are_refused() {
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
        assert!(SysctlPath::parse(name).is_err(), "{name:?}");
    }
}

#[test]
fn both_spellings_name_the_same_file() {
    let dotted = SysctlPath::parse("net.ipv4.conf.eth0/1.forwarding").unwrap();
    let slashed = SysctlPath::parse("net/ipv4/conf/eth0.1/forwarding").unwrap();
    assert_eq!(dotted, slashed);
    assert_eq!(dotted.file(), Path::new("/proc/sys/net/ipv4/conf/eth0.1/forwarding"));
}

#[test]
fn a_sysctl_of_a_shared_namespace_is_refused_by_name() {
    let error = Checked::new("net.core.somaxconn", "1", |ns| ns != Ns::Net).unwrap_err();
    assert!(matches!(error, Error::SysctlShared { namespace: Ns::Net, .. }), "{error}");
    assert!(error.to_string().contains("net.core.somaxconn"), "{error}");
    assert!(matches!(Checked::new("vm.swappiness", "1", |_| true), Err(Error::SysctlHost { .. })));
}

proptest! {
    #[test]
    fn no_accepted_name_leaves_proc_sys(name in "[a-z./ ]{0,24}|\\PC{0,24}") {
        if let Ok(path) = SysctlPath::parse(&name) {
            let file = path.file();
            let rest = file.strip_prefix("/proc/sys").unwrap();
            prop_assert!(rest.components().all(|part| matches!(part, std::path::Component::Normal(_))));
            prop_assert_eq!(rest.components().count(), path.parts.len());
        }
    }

    #[test]
    fn the_spelling_does_not_change_the_class(parts in proptest::collection::vec("[a-z0-9_]{1,8}|net|kernel|fs|mqueue|sem|shmmax", 2..5)) {
        prop_assert_eq!(sysctl_namespace(&parts.join(".")), sysctl_namespace(&parts.join("/")));
    }
}
