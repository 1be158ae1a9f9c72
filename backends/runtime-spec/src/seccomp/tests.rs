//! Tests of the system call filters.

use std::path::PathBuf;

use super::*;
use crate::host::{RealHost, bare_host};
use crate::input::Arch;

fn with(names: &[&str]) -> Capabilities {
    Capabilities {
        bounding: names.iter().map(|name| (*name).to_owned()).collect(),
        ..Default::default()
    }
}

fn allowed(filter: &LinuxSeccomp, name: &str) -> bool {
    filter.syscalls.iter().any(|rule| {
        rule.action == "SCMP_ACT_ALLOW"
            && rule.args.is_empty()
            && rule.names.iter().any(|other| other == name)
    })
}

#[test]
fn capabilities_allow_their_system_calls() {
    let plain = default_filter(&bare_host(), &with(&[]));
    assert_eq!(plain.default_action, "SCMP_ACT_ERRNO");
    for (capability, name) in [
        ("CAP_SYS_ADMIN", "mount"),
        ("CAP_SYS_ADMIN", "clone"),
        ("CAP_SYS_CHROOT", "chroot"),
        ("CAP_SYS_TIME", "clock_settime"),
        ("CAP_BPF", "bpf"),
        ("CAP_SYS_BOOT", "reboot"),
        ("CAP_SYSLOG", "syslog"),
    ] {
        assert!(!allowed(&plain, name), "{name}");
        assert!(
            allowed(&default_filter(&bare_host(), &with(&[capability])), name),
            "{name}"
        );
    }
    for name in ["read", "execve", "openat2", "ptrace"] {
        assert!(allowed(&plain, name), "{name}");
    }
    for name in ["io_uring_setup", "kexec_load", "keyctl", "userfaultfd"] {
        assert!(!allowed(&plain, name), "{name}");
    }
}

#[test]
fn clone3_is_enosys_without_sys_admin() {
    let rule = |filter: &LinuxSeccomp| {
        filter
            .syscalls
            .iter()
            .find(|rule| rule.names == ["clone3"])
            .cloned()
    };
    let without = rule(&default_filter(&bare_host(), &with(&[]))).unwrap();
    assert_eq!(
        (without.action.as_str(), without.errno_ret),
        ("SCMP_ACT_ERRNO", Some(38))
    );
    assert_eq!(
        rule(&default_filter(&bare_host(), &with(&["CAP_SYS_ADMIN"]))),
        None
    );
}

#[test]
fn seccomp_filter_depends_on_architecture_and_kernel() {
    let arm = default_filter(
        &Host {
            arch: Arch::Aarch64,
            ..bare_host()
        },
        &with(&[]),
    );
    assert_eq!(arm.architectures, ["SCMP_ARCH_AARCH64", "SCMP_ARCH_ARM"]);
    assert!(allowed(&arm, "set_tls") && !allowed(&arm, "arch_prctl"));
    let intel = default_filter(&bare_host(), &with(&[]));
    assert_eq!(
        intel.architectures,
        ["SCMP_ARCH_X86_64", "SCMP_ARCH_X86", "SCMP_ARCH_X32"]
    );
    assert!(allowed(&intel, "arch_prctl") && !allowed(&intel, "set_tls"));
    let old = default_filter(
        &Host {
            kernel: (4, 7),
            ..bare_host()
        },
        &with(&[]),
    );
    assert!(!allowed(&old, "ptrace"));
}

fn localhost(text: &str) -> Result<LinuxSeccomp> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("profile.json");
    std::fs::write(&path, text).unwrap();
    let security = Security {
        seccomp: SeccompProfile::Localhost(path),
        ..Default::default()
    };
    of_task(
        &security,
        &bare_host(),
        &with(&["CAP_CHOWN"]),
        &RealHost,
        &mut Vec::new(),
    )
    .map(Option::unwrap)
}

#[test]
fn docker_seccomp_profile_is_resolved() {
    let filter = localhost(
        r#"{
            "defaultAction": "SCMP_ACT_ERRNO", "defaultErrnoRet": 1,
            "archMap": [{ "architecture": "SCMP_ARCH_X86_64", "subArchitectures": ["SCMP_ARCH_X86"] },
                        { "architecture": "SCMP_ARCH_RISCV64", "subArchitectures": null }],
            "syscalls": [
                { "names": ["read"], "action": "SCMP_ACT_ALLOW", "args": null, "comment": "", "includes": {}, "excludes": {} },
                { "names": ["chown"], "action": "SCMP_ACT_ALLOW", "includes": { "caps": ["CAP_CHOWN"] } },
                { "names": ["mount"], "action": "SCMP_ACT_ALLOW", "includes": { "caps": ["CAP_CHOWN", "CAP_SYS_ADMIN"] } },
                { "names": ["kill"], "action": "SCMP_ACT_LOG", "excludes": { "caps": ["CAP_CHOWN"] } },
                { "names": ["dup"], "action": "SCMP_ACT_LOG", "includes": { "arches": ["arm64"] } },
                { "name": "bpf", "action": "SCMP_ACT_LOG", "includes": { "minKernel": "99.0" } }
            ]
        }"#,
    )
    .unwrap();
    assert_eq!(filter.architectures, ["SCMP_ARCH_X86_64", "SCMP_ARCH_X86"]);
    assert_eq!(filter.default_errno_ret, Some(1));
    let names: Vec<&str> = filter
        .syscalls
        .iter()
        .flat_map(|rule| rule.names.iter().map(String::as_str))
        .collect();
    assert_eq!(names, ["read", "chown"]);
}

#[test]
fn runtime_spec_seccomp_profile_is_verbatim() {
    let filter = localhost(
        r#"{
            "defaultAction": "SCMP_ACT_ALLOW", "architectures": ["SCMP_ARCH_X86"], "flags": ["SECCOMP_FILTER_FLAG_LOG"],
            "syscalls": [{ "names": ["clone"], "action": "SCMP_ACT_ERRNO", "errnoRet": 5,
                           "args": [{ "index": 0, "value": 1, "valueTwo": 2, "op": "SCMP_CMP_MASKED_EQ" }] }]
        }"#,
    )
    .unwrap();
    assert_eq!((filter.architectures.len(), filter.flags.len()), (1, 1));
    let rule = &filter.syscalls[0];
    assert_eq!((rule.errno_ret, rule.args[0].value_two), (Some(5), 2));
}

#[test]
fn invalid_seccomp_profile_is_rejected_with_its_file() {
    for (text, why) in [
        ("{", "is no profile"),
        (r#"{ "defaultAction": "ALLOW" }"#, "unknown"),
        (r#"{ "defaultAction": "SCMP_ACT_NOTIFY" }"#, "listen"),
        (
            r#"{ "defaultAction": "SCMP_ACT_LOG", "syscalls": [{ "action": "SCMP_ACT_LOG" }] }"#,
            "names no system call",
        ),
        (
            r#"{ "defaultAction": "SCMP_ACT_LOG", "architectures": ["a"], "archMap": [{ "architecture": "b" }] }"#,
            "both",
        ),
    ] {
        let error = localhost(text).unwrap_err().report();
        assert!(
            error.starts_with("security.seccomp: profile /") && error.contains("profile.json"),
            "{error}"
        );
        assert!(error.contains(why), "{error}");
    }
    let missing = Security {
        seccomp: SeccompProfile::Localhost(PathBuf::from("/nonexistent/profile.json")),
        ..Default::default()
    };
    let error = of_task(
        &missing,
        &bare_host(),
        &with(&[]),
        &RealHost,
        &mut Vec::new(),
    )
    .unwrap_err();
    assert!(
        error
            .to_string()
            .contains("/nonexistent/profile.json cannot be read"),
        "{error}"
    );
}

#[test]
fn kernel_without_seccomp_skips_the_default_and_rejects_a_file() {
    let host = Host {
        seccomp: false,
        ..bare_host()
    };
    let mut warnings = Vec::new();
    let default = Security {
        seccomp: SeccompProfile::RuntimeDefault,
        ..Default::default()
    };
    assert_eq!(
        of_task(&default, &host, &with(&[]), &RealHost, &mut warnings).unwrap(),
        None
    );
    assert_eq!(warnings.len(), 1);
    let file = Security {
        seccomp: SeccompProfile::Localhost(PathBuf::from("/p")),
        ..Default::default()
    };
    assert!(of_task(&file, &host, &with(&[]), &RealHost, &mut warnings).is_err());
    let privileged = Security {
        privileged: true,
        ..file
    };
    assert_eq!(
        of_task(&privileged, &host, &with(&[]), &RealHost, &mut warnings).unwrap(),
        None
    );
}
