//! The end of the Debian package: its removal while a pod runs, and its purge, with links in directories of Nomad agents.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use crate::daemon::assert_counts_on;
use crate::node::{GuestFact, GuestNode, property, run};
use crate::packages::{Counting, NOW, dpkg, dpkg_succeeds, helpers, text};

/// The drop-in of the guest.
const DROP_IN: &str = "/etc/switchyard/config.d/devices.toml";

/// The last one: it leaves a node without images.
pub(crate) const LAST: &[GuestFact] = &[(
    "package_removal_and_purge_leave_what_they_should",
    removal_and_purge,
)];

fn removal_and_purge(node: &GuestNode) {
    let counting = Counting::start(node, "removed");
    let process = counting.process();
    let helpers_before = helpers();
    let links = PluginLinks::make();
    let said = dpkg_succeeds(&["--remove", "switchyard"]);
    for part in [
        "the daemon is stopped; 1 containers continue",
        "nothing starts the logkeeper or a managed containerd again if it ends meanwhile",
    ] {
        assert!(said.contains(part), "{part}: {said}");
    }
    links.assert_are_gone(&said);
    let places = fs::read_to_string("/var/lib/switchyard/places").expect("it was written");
    assert_eq!(places, "run /run/switchyard\nstate /var/lib/switchyard\n");
    assert_eq!(property("switchyard", "ActiveState"), "inactive");
    assert_eq!(
        (counting.process(), helpers()),
        (process.clone(), helpers_before.clone())
    );
    assert_counts_on(&counting.pod);

    let refused = dpkg(&["--purge", "switchyard"]);
    let said = text(&refused);
    assert!(!refused.status.success(), "{said}");
    assert!(
        said.contains(&format!(
            "not purged, because containers run: their main processes are {process}"
        )),
        "{said}"
    );
    assert_eq!(
        (counting.process(), helpers()),
        (process.clone(), helpers_before)
    );
    assert_counts_on(&counting.pod);

    dpkg_succeeds(&["--install", NOW]);
    counting.assert_goes_on(&process);
    let image = node.cri.image(&node.image());
    assert!(image.expect("it is asked for").is_some(), "images are kept");
    drop(counting);
    links.assert_are_back();

    // What an operator forgets: a pod whose container has exited.
    let config = node.pod_config("forgotten");
    let pod = node.cri.run_pod(&config).expect("it runs");
    let container = node.container("ended", "echo out");
    let container = node
        .cri
        .create(&pod, &container, &config)
        .expect("it is created");
    node.cri.start(&container).expect("it starts");
    node.wait_exit(&container);
    let rows = Path::new("/var/lib/switchyard/volumes/swarm/guest/rows");
    fs::create_dir_all(rows.parent().expect("it has one")).expect("root may");
    fs::write(rows, "precious").expect("root may");
    let drop_in = fs::read(DROP_IN).expect("it was written");
    let disk = state_on_a_disk();
    // As after a loss of the run directory's files: what runs is found by its command line.
    run(&[
        "find",
        "/run/switchyard",
        "-xdev",
        "-name",
        "*.pid",
        "-delete",
    ]);
    let said = dpkg_succeeds(&["--purge", "switchyard"]);
    links.assert_are_gone(&said);
    assert!(
        said.contains("/var/lib/switchyard/volumes/swarm/guest"),
        "{said}"
    );
    assert_eq!(fs::read_to_string(rows).expect("it is kept"), "precious");
    let files = run(&["find", disk, "-type", "f"]);
    assert_eq!(files, format!("{disk}/volumes/swarm/guest/rows"));
    // What the disk was mounted over is no disk's.
    run(&["umount", "/var/lib/switchyard"]);
    run(&["rm", "-rf", "/var/lib/switchyard"]);
    assert_nothing_is_left(&[&pod, &container]);
    links.remove();

    run(&["cp", "--archive", disk, "/var/lib/switchyard"]);
    run(&["umount", disk]);
    run(&["rmdir", disk]);
    assert_volume_is_found_again(node, rows, &drop_in);
}

/// Installs the package after a purge, with the drop-in that `tests/guest/run` has written, as configuration management does it. The
/// volume that the purge has kept is one of the node then.
#[track_caller]
fn assert_volume_is_found_again(node: &GuestNode, rows: &Path, drop_in: &[u8]) {
    fs::create_dir_all(Path::new(DROP_IN).parent().expect("it has one")).expect("root may");
    fs::write(DROP_IN, drop_in).expect("root may");
    dpkg_succeeds(&["--install", NOW]);
    node.wait_ready();
    let volumes = run(&["switchyard", "volume", "ls", "--owner", "swarm"]);
    assert!(volumes.contains("guest"), "{volumes}");
    assert_eq!(fs::read_to_string(rows).expect("it is kept"), "precious");
    run(&["switchyard", "volume", "rm", "guest"]);
    assert!(!rows.exists());
    // The power may be cut next.
    run(&["sync"]);
}

/// Moves the state to a file system of its own, as operators do, and returns where else that is mounted.
fn state_on_a_disk() -> &'static str {
    let disk = "/var/lib/guest-disk";
    run(&["systemctl", "stop", "switchyard"]);
    fs::create_dir(disk).expect("the directory is made");
    run(&["mount", "-t", "tmpfs", "guest-disk", disk]);
    run(&[
        "cp",
        "--archive",
        "--one-file-system",
        "/var/lib/switchyard/.",
        disk,
    ]);
    assert_ne!(run(&["find", disk, "-type", "f"]), "");
    run(&["mount", "--bind", disk, "/var/lib/switchyard"]);
    disk
}

/// Checks that no file, process, mount, unit, cgroup, address or rule of ours is on the node.
#[track_caller]
fn assert_nothing_is_left(ids: &[&str]) {
    let found = |script: &str| run(&["sh", "-c", script]);
    // Those are the journal's and dpkg's own, and those of the tests.
    let files = found(
        "find / -xdev \\( -path /proc -o -path /tests -o -path /var/log/journal -o -path /var/lib/dpkg -o -path '/var/lib/guest-*' -o -path /var/log/dpkg.log \\) \
         -prune -o -name '*switchyard*' -print; find /run /sys/fs/cgroup -name '*switchyard*' -not -path '/run/systemd/*'",
    );
    assert_eq!(files, "");
    // Sockets of shims, and the state of runtimes below the directory of each namespace.
    let sockets = "find /run/containerd/s -mindepth 1 2>/dev/null || true";
    assert_eq!(found(sockets), "");
    let runtimes = "find /run/containerd/runc -mindepth 2 2>/dev/null || true";
    assert_eq!(found(runtimes), "");
    assert_eq!(found("grep switchyard /proc/self/mountinfo || true"), "");
    let processes = found(
        "for exe in /proc/[0-9]*/exe; do readlink $exe; done 2>/dev/null | grep -E '/(switchyard|containerd|containerd-shim[^/]*)( |$)' || true",
    );
    assert_eq!(processes, "");
    assert_eq!(
        found("systemctl list-units --all --plain --no-legend 'switchyard*'"),
        ""
    );
    for id in ids {
        assert_eq!(found(&format!("iptables-save | grep {id} || true")), "");
        assert_eq!(
            found(&format!("grep -rl {id} /var/lib/cni 2>/dev/null || true")),
            ""
        );
    }
    let known = dpkg(&["--status", "switchyard"]);
    assert!(!known.status.success(), "{}", text(&known));
}

/// The plugin_dir of an installation, and one with a link that was made by hand.
const INSTALLED: &str = "/var/lib/guest-nomad/installed";
const BY_HAND: &str = "/var/lib/guest-nomad/by-hand";

/// Both directories. The configuration of an agent names the second one, and each has a link to another program too.
struct PluginLinks;

impl PluginLinks {
    fn make() -> Self {
        run(&["switchyard", "nomad-plugin", "install", INSTALLED]);
        fs::create_dir_all(BY_HAND).expect("root may");
        fs::create_dir_all("/etc/nomad.d").expect("root may");
        let named = format!("plugin_dir = \"{BY_HAND}\"\n");
        fs::write("/etc/nomad.d/guest.hcl", named).expect("root may");
        symlink("/usr/bin/switchyard", Path::new(BY_HAND).join("docker")).expect("root may");
        for dir in [INSTALLED, BY_HAND] {
            symlink("/usr/bin/env", Path::new(dir).join("other")).expect("root may");
        }
        Self
    }

    fn names() -> [String; 2] {
        [INSTALLED, BY_HAND].map(|dir| run(&["ls", dir]))
    }

    #[track_caller]
    fn assert_are_gone(&self, said: &str) {
        assert_eq!(Self::names(), ["other"; 2], "{said}");
        assert!(
            said.contains(&format!("{BY_HAND}/docker is removed until")),
            "{said}"
        );
    }

    #[track_caller]
    fn assert_are_back(&self) {
        assert_eq!(
            Self::names(),
            ["other\nswitchyard\nswitchyard-device", "docker\nother"]
        );
    }

    fn remove(self) {
        run(&["rm", "-r", INSTALLED, BY_HAND, "/etc/nomad.d"]);
    }
}
