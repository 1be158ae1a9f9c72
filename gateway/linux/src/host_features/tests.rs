//! Tests of the features of the host: under seccomp filters, in namespaces and with sysctls that take them away.

use std::collections::BTreeMap;
use std::process::Command;
use std::thread;

use nix::libc;
use seccompiler::{BpfProgram, SeccompAction, SeccompFilter, apply_filter};

use super::*;

/// Set in the environment of a process that looks at the node from another place; the run directory that it takes.
const RUN: &str = "SWITCHYARD_TEST_RUN_DIR";

/// The features that are missing to a thread to which the kernel answers `call` with `errno`.
fn missing_without(call: i64, errno: Errno) -> Vec<&'static str> {
    let errno = errno.raw_os_error().unsigned_abs();
    let filter = SeccompFilter::new(
        BTreeMap::from([(call, Vec::new())]),
        SeccompAction::Allow,
        SeccompAction::Errno(errno),
        std::env::consts::ARCH.try_into().unwrap(),
    );
    let program: BpfProgram = filter.unwrap().try_into().unwrap();
    let confined = move || {
        apply_filter(&program).unwrap();
        let missing = names(&HostFeatures::find(Path::new("/run")));
        assert_eq!(
            check_needed().is_err(),
            missing.contains(&"openat2"),
            "{missing:?}"
        );
        missing
    };
    thread::spawn(confined).join().unwrap()
}

fn names(features: &HostFeatures) -> Vec<&'static str> {
    features.missing().map(|(name, _)| name).collect()
}

#[test]
fn call_that_the_kernel_or_a_filter_refuses_makes_one_feature_missing() {
    let before = names(&HostFeatures::find(Path::new("/run")));
    for (call, errno, feature) in [
        (libc::SYS_openat2, Errno::NOSYS, Some("openat2")),
        (libc::SYS_openat2, Errno::PERM, Some("openat2")),
        (
            libc::SYS_memfd_create,
            Errno::NOSYS,
            Some("executable_memory"),
        ),
        (
            libc::SYS_memfd_create,
            Errno::ACCESS,
            Some("executable_memory"),
        ),
        (libc::SYS_mount_setattr, Errno::NOSYS, None),
        // The node is out of descriptors or memory.
        (libc::SYS_openat2, Errno::MFILE, None),
        (libc::SYS_openat2, Errno::NOMEM, None),
        (libc::SYS_memfd_create, Errno::NFILE, None),
    ] {
        let mut missing = missing_without(call, errno);
        missing.retain(|name| !before.contains(name));
        let expected: Vec<_> = feature.into_iter().collect();
        assert_eq!(missing, expected, "{call} {errno}");
    }
}

#[test]
fn missing_feature_names_the_kernel_and_the_number_that_is_needed() {
    let missing = MissingFeature {
        release: "5.4.0-216-generic".to_owned(),
        source: Errno::NOSYS.into(),
    };
    let text = missing.to_string();
    assert!(
        text.contains("Linux 5.4.0-216-generic") && text.contains("Linux 5.6 or later"),
        "{text}"
    );
    assert!(check_needed().is_ok(), "these tests need Linux 5.6");
}

/// Answers of memfd_create(2) by kernel and `vm.memfd_noexec`, without and with `MFD_EXEC`.
#[test]
fn file_in_memory_is_executable_on_every_kernel_that_allows_one() {
    let file = || Ok(OwnedFd::from(File::open("/dev/null").unwrap()));
    for (kernel, plain, flagged, expected) in [
        ("before 6.3", None, Some(Errno::INVAL), None),
        ("0", None, None, None),
        // Without the flag it is made, and cannot be executed.
        ("1", Some(Errno::NOEXEC), None, None),
        (
            "2",
            Some(Errno::ACCESS),
            Some(Errno::ACCESS),
            Some(Errno::ACCESS),
        ),
        (
            "out of descriptors",
            None,
            Some(Errno::MFILE),
            Some(Errno::MFILE),
        ),
    ] {
        let create = |flags: MemfdFlags| {
            assert!(flags.contains(MemfdFlags::CLOEXEC));
            let refused = if flags.contains(MemfdFlags::EXEC) {
                flagged
            } else {
                plain
            };
            refused.map_or_else(file, Err)
        };
        assert_eq!(create_executable(create).err(), expected, "{kernel}");
    }
}

#[test]
fn apparmor_is_used_where_profiles_can_be_loaded() {
    let on = || AppArmorState {
        is_enabled: true,
        has_directory: true,
        ..AppArmorState::default()
    };
    let container = |name: &str| AppArmorState {
        container: name.into(),
        ..on()
    };
    for (host, state, reason) in [
        ("a node with it", on(), None),
        (
            "a kernel without it",
            AppArmorState::default(),
            Some("is off"),
        ),
        (
            "no securityfs",
            AppArmorState {
                has_directory: false,
                ..on()
            },
            Some("securityfs"),
        ),
        ("kind", container("docker"), Some("container=docker")),
        (
            "unprivileged LXC",
            AppArmorState {
                in_user_namespace: true,
                ..on()
            },
            Some("user namespace"),
        ),
        (
            "Incus with a namespace of profiles",
            AppArmorState {
                is_stacked: true,
                in_user_namespace: true,
                ..container("lxc")
            },
            None,
        ),
    ] {
        let fault = state.fault();
        assert_eq!(fault.is_some(), reason.is_some(), "{host}: {fault:?}");
        assert!(
            fault.unwrap_or_default().contains(reason.unwrap_or("")),
            "{host}"
        );
    }
}

/// Prints what the process of another test misses, if this is that process.
#[test]
fn reporter_of_another_process() {
    let Some(run) = std::env::var_os(RUN) else {
        return;
    };
    let found = HostFeatures::find(Path::new(&run));
    let memory = executable_memory("switchyard-test").map(drop);
    println!("missing: {} {memory:?}", names(&found).join(" "));
}

/// Returns the report of a process with this run directory, which a command of util-linux starts by `$0`.
fn report_of(unshare: &[&str], script: &str, run: &str) -> String {
    let output = Command::new("unshare")
        .args(unshare)
        .args(["sh", "-ec"])
        .arg(format!("{script}\nexec \"$0\" \"$@\""))
        .arg(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "host_features::tests::reporter_of_another_process",
        ])
        .args(["--nocapture", "--test-threads", "1"])
        .env(RUN, run)
        .output()
        .expect("unshare is missing: install the Debian package util-linux");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        output.status.success() && text.contains("missing: "),
        "{text}{}",
        String::from_utf8_lossy(&output.stderr)
    );
    text
}

/// Needs to run as root, like all tests of real processes.
#[test]
fn namespaces_and_mount_options_take_features_away() {
    let dir = tempfile::tempdir().unwrap();
    let run = dir.path().to_str().unwrap();
    let below = format!("{run}/none/run");
    let noexec = format!("mount -t tmpfs -o noexec none {run}");
    let users = "initial_user_namespace";
    let noexec_run = "executable_run";
    for (unshare, script, run, missing) in [
        (&["--user", "--map-root-user"][..], "", run, &[users][..]),
        (
            &["--user", "--map-root-user", "--mount"],
            noexec.as_str(),
            run,
            &[users, noexec_run],
        ),
        (&["--mount"], noexec.as_str(), run, &[noexec_run]),
        (&["--mount"], noexec.as_str(), below.as_str(), &[noexec_run]),
        (&["--pid", "--fork"], "", run, &[]),
    ] {
        let report = report_of(unshare, script, run);
        for name in [users, noexec_run] {
            assert_eq!(
                report.contains(name),
                missing.contains(&name),
                "{unshare:?}: {report}"
            );
        }
    }
    assert!(!in_user_namespace(), "these tests need a node of their own");
}

/// The sysctl belongs to the PID namespace, which these tests have one of their own for.
#[test]
fn sysctl_decides_whether_memory_can_be_executed() {
    if !Path::new("/proc/sys/vm/memfd_noexec").exists() {
        // Before Linux 6.3 all can be.
        assert!(executable_memory("switchyard-test").is_ok());
        return;
    }
    for (value, is_missing) in [("0", false), ("1", false), ("2", true)] {
        let script = format!("echo {value} > /proc/sys/vm/memfd_noexec");
        let report = report_of(&["--pid", "--fork", "--mount-proc"], &script, "/run");
        assert_eq!(
            report.contains("executable_memory"),
            is_missing,
            "{value}: {report}"
        );
        assert_eq!(report.contains("Ok(())"), !is_missing, "{value}: {report}");
    }
}
