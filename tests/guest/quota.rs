//! Disk quotas on ext4 with project quotas: limits are enforced, the kernel knows the projects, and neither
//! outlives its container.

use std::collections::BTreeMap;

use switchyard_crash_points::{CrashPoint, Operation};
use switchyard_proto::cri::v1 as cri;
use switchyard_proto::cri::v1alpha2 as old;
use switchyard_proto::cri::v1alpha2::runtime_service_client::RuntimeServiceClient;
use switchyard_tests::cri::image_spec;
use switchyard_tests::host::eventually;
use switchyard_tests::image::busybox;
use tonic::{Code, Status};

use crate::node::{GuestFact, GuestNode, GuestPod, LIMIT, run};

pub(crate) const FACTS: &[GuestFact] = &[
    (
        "container_cannot_exceed_its_disk_quota",
        a_container_takes_no_more,
    ),
    (
        "disk_quota_counts_joined_mounts_together_and_others_apart",
        joined_and_apart,
    ),
    (
        "disk_quota_keeps_its_project_while_any_container_uses_it",
        a_given_project,
    ),
    (
        "daemon_kill_during_disk_quota_leaves_no_limit_or_project",
        kill_during_disk_quota,
    ),
];

const MIB: u64 = 1 << 20;
/// The first project id that the daemon assigns.
const FIRST: u32 = 1 << 24;

/// The kernel's quota record of a project.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct ProjectUsage {
    used_kib: u64,
    limit_kib: u64,
}

/// All projects that the daemon may assign, as another program reports them.
fn projects() -> BTreeMap<u32, ProjectUsage> {
    // Data that is written back late is counted late.
    run(&["sync"]);
    let report = run(&["repquota", "--project", "--no-names", "--verbose", "/"]);
    let project = |line: &str| {
        let words: Vec<_> = line.strip_prefix('#')?.split_whitespace().collect();
        let [id, _, used, _, hard, ..] = words.as_slice() else {
            return None;
        };
        let number = |word: &str| word.parse().unwrap_or_else(|_| panic!("{line:?}"));
        let counted = ProjectUsage {
            used_kib: number(used),
            limit_kib: number(hard),
        };
        Some((id.parse().ok()?, counted)).filter(|(id, _)| *id >= FIRST)
    };
    report.lines().filter_map(project).collect()
}

/// Waits until the kernel has exactly these projects of the daemon's range: it drops a project a moment after
/// its last file was removed.
#[track_caller]
fn wait_projects(known: &[u32]) -> BTreeMap<u32, ProjectUsage> {
    let mut left = BTreeMap::new();
    let gone = eventually(LIMIT, || {
        left = projects();
        left.keys().eq(known)
    });
    assert!(gone, "{left:?} instead of {known:?}");
    left
}

/// A container with these quotas, its named volume `kept` at `/data`, and a volume of its image at `/vol`.
fn config(
    node: &GuestNode,
    name: &str,
    quotas: &[(&str, &str)],
    quota_id: &str,
) -> old::ContainerConfig {
    let disk_quota = quotas
        .iter()
        .map(|(key, size)| ((*key).to_owned(), (*size).to_owned()))
        .collect();
    let resources = old::LinuxContainerResources {
        disk_quota,
        ..Default::default()
    };
    old::ContainerConfig {
        metadata: Some(cri::ContainerMetadata {
            name: name.to_owned(),
            attempt: 0,
        }),
        image: Some(image_spec(&node.registry.reference(IMAGE))),
        command: ["sleep", "100000"].map(str::to_owned).to_vec(),
        mounts: vec![old::Mount {
            container_path: "/data".to_owned(),
            name: "kept".to_owned(),
            ..Default::default()
        }],
        linux: Some(old::LinuxContainerConfig {
            resources: Some(resources),
            ..Default::default()
        }),
        quota_id: quota_id.to_owned(),
        ..Default::default()
    }
}

/// An image that has files where the volumes are mounted.
const IMAGE: &str = "library/quota:latest";

fn pull(node: &GuestNode) {
    node.registry.push(IMAGE, &busybox().volume("/vol").build());
    node.cri
        .pull(&node.registry.reference(IMAGE), None)
        .expect("it can be pulled");
}

fn create(
    node: &GuestNode,
    pod: &GuestPod<'_>,
    name: &str,
    quotas: &[(&str, &str)],
    quota_id: &str,
) -> Result<String, Status> {
    node.cri
        .create_v1alpha2(&pod.id, &config(node, name, quotas, quota_id))
}

#[track_caller]
fn start(
    node: &GuestNode,
    pod: &GuestPod<'_>,
    name: &str,
    quotas: &[(&str, &str)],
    quota_id: &str,
) -> String {
    let id = create(node, pod, name, quotas, quota_id).unwrap_or_else(|status| panic!("{status}"));
    node.cri
        .start(&id)
        .unwrap_or_else(|status| panic!("{status}"));
    id
}

fn status(node: &GuestNode, container: &str) -> old::ContainerStatus {
    let request = cri::ContainerStatusRequest {
        container_id: container.to_owned(),
        verbose: false,
    };
    let answer = node.cri.channel(async |channel| {
        RuntimeServiceClient::new(channel)
            .container_status(request)
            .await
    });
    answer
        .expect("it is there")
        .status
        .expect("it is always set")
}

/// The project that a container says it has.
#[track_caller]
fn project(node: &GuestNode, container: &str) -> u32 {
    let reported = status(node, container).quota_id;
    reported
        .parse()
        .unwrap_or_else(|_| panic!("{reported:?} is no project"))
}

/// Number of bytes of this many MiB that a container can write to a file.
#[track_caller]
fn written(node: &GuestNode, container: &str, file: &str, mib: u64) -> u64 {
    let script = format!(
        "dd if=/dev/zero of={file} bs=64k count={} 2>/dev/null; stat -c %s {file}",
        mib * 16
    );
    let reported = node.cri.sh(container, &script);
    reported
        .parse()
        .unwrap_or_else(|_| panic!("{reported:?} is no size"))
}

/// Checks that a value is about this large: directories and partly filled blocks count as well.
#[track_caller]
fn assert_about(bytes: u64, mib: u64) {
    assert!(
        bytes <= mib * MIB && bytes + MIB / 2 >= mib * MIB,
        "{bytes} bytes, and not {mib} MiB"
    );
}

fn a_container_takes_no_more(node: &GuestNode) {
    pull(node);
    wait_projects(&[]);
    let pod = node.pod("quota");
    let limited = start(node, &pod, "limited", &[("/", "8m")], "");
    let free = start(node, &pod, "free", &[], "0");
    assert_about(written(node, &limited, "/big", 20), 8);
    assert_eq!(written(node, &free, "/big", 20), 20 * MIB);
    assert_eq!(
        written(node, &limited, "/data/big", 20),
        20 * MIB,
        "a volume is not the root file system"
    );
    // Files that are copied up from the image count as well, and removed files no longer do.
    let full = node.cri.sh(
        &limited,
        "echo x >> /etc/group || echo refused; rm /big; echo x >> /etc/group && echo done",
    );
    assert_eq!(full, "refused\ndone");
    assert_about(written(node, &limited, "/big", 20), 8);
    let seen = node
        .cri
        .sh(&limited, "df -k / | tail -n 1 | awk '{print $2}'");
    assert_eq!(seen, "8192");

    let id = project(node, &limited);
    let counted = wait_projects(&[id]);
    assert!(
        counted[&id].limit_kib == 8192 && counted[&id].used_kib > 7168,
        "{counted:?}"
    );
    let reported = status(node, &limited);
    let quota = BTreeMap::from([("/".to_owned(), "8m".to_owned())]);
    assert_eq!(
        reported
            .pouch_resources
            .map(|resources| resources.disk_quota),
        Some(quota)
    );
    assert_eq!(status(node, &free).quota_id, "");

    // A container that has exited or was stopped keeps its quota.
    run(&["systemctl", "restart", "switchyard"]);
    node.wait_ready();
    assert_eq!(project(node, &limited), id);
    let next = start(node, &pod, "next", &[("/", "1m")], "-1");
    let other = project(node, &next);
    assert_ne!(other, id);
    node.cri.stop(&limited, 0).expect("it can be stopped");
    assert_eq!(projects()[&id].limit_kib, 8192);
    node.cri.remove(&limited).expect("it can be removed");
    wait_projects(&[other]);
    let again = create(node, &pod, "again", &[("/", "1m")], "").expect("it is well formed");
    assert_eq!(project(node, &again), id, "it is free again");
    drop(pod);
    wait_projects(&[]);
    node.cri.remove_volume("kept").expect("nothing has it");
}

fn joined_and_apart(node: &GuestNode) {
    pull(node);
    let pod = node.pod("quota-joined");
    let joined = start(node, &pod, "joined", &[("/&/data", "8m")], "-1");
    let id = project(node, &joined);
    assert_eq!(written(node, &joined, "/data/big", 5), 5 * MIB);
    assert_about(written(node, &joined, "/big", 20), 3);
    assert_eq!(
        written(node, &joined, "/vol/big", 20),
        20 * MIB,
        "it is not among them"
    );
    wait_projects(&[id]);
    node.cri.remove(&joined).expect("it can be removed");
    // Its volume stays with its content: no limit applies any more, and no other container gets the project.
    let kept = wait_projects(&[id]);
    assert!(
        kept[&id].limit_kib == 0 && kept[&id].used_kib >= 5 * 1024,
        "{kept:?}"
    );

    // All files that a volume has already are counted.
    let apart = start(node, &pod, "apart", &[(".*", "6m"), ("/vol", "2m")], "");
    let root = project(node, &apart);
    assert_about(written(node, &apart, "/data/more", 20), 1);
    assert_about(written(node, &apart, "/vol/big", 20), 2);
    assert_about(written(node, &apart, "/big", 20), 6);
    let counted = projects();
    let mut limits: Vec<_> = counted
        .values()
        .map(|counted| counted.limit_kib / 1024)
        .collect();
    limits.sort_unstable();
    assert!(
        limits == [2, 6, 6] && counted[&root].limit_kib == 6144,
        "{counted:?}"
    );
    assert_ne!(root, id, "files of a volume were in it");

    for (quotas, why) in [
        (&[("/nowhere", "1m")][..], "/nowhere is neither"),
        (&[("/", "1m"), ("/&/data", "1m")], "/ is limited twice"),
        (&[("/data/sub", "1m")], "/data/sub is neither"),
    ] {
        let refused = create(node, &pod, "refused", quotas, "").expect_err("it cannot be done");
        assert!(
            refused.code() == Code::InvalidArgument && refused.message().contains(why),
            "{refused}"
        );
    }
    assert_eq!(projects(), counted);
    drop(pod);
    node.cri.remove_volume("kept").expect("nothing has it");
    wait_projects(&[]);
}

fn a_given_project(node: &GuestNode) {
    pull(node);
    let pod = node.pod("quota-given");
    let asked = FIRST + 4711;
    let text = asked.to_string();
    let limit = |mib: u64| Some(mib * 1024);
    let limited = || projects().get(&asked).map(|counted| counted.limit_kib);
    let one = start(node, &pod, "one", &[("/", "4m")], &text);
    assert_eq!((project(node, &one), limited()), (asked, limit(4)));
    // Another container that uses the volume is counted in the same project, and the last limit applies.
    let other = start(node, &pod, "other", &[(".*", "6m")], &text);
    assert_eq!((project(node, &other), limited()), (asked, limit(6)));
    assert_eq!(written(node, &one, "/big", 3), 3 * MIB);
    assert_about(written(node, &other, "/vol/big", 20), 3);
    node.cri.remove(&one).expect("it can be removed");
    assert_eq!(limited(), limit(6), "the other still has it");
    run(&["systemctl", "restart", "switchyard"]);
    node.wait_ready();
    node.cri.remove(&other).expect("it can be removed");
    assert_eq!(limited().unwrap_or(0), 0, "nobody has it");
    drop(pod);
    node.cri.remove_volume("kept").expect("nothing has it");
    wait_projects(&[]);
}

/// At whichever step the daemon is killed, repeating the request creates one container with its limits, and
/// repeating the removal leaves nothing of it.
fn kill_during_disk_quota(node: &GuestNode) {
    pull(node);
    let killable = node.killable();
    for &step in Operation::LimitDisk.crash_points() {
        let pod = node.pod("quota-killed");
        let make = || create(node, &pod, "main", &[("/&/vol", "4m"), ("/data", "2m")], "");
        let count = || node.cri.containers().expect("they can be listed").len();
        let others = count();
        if step == CrashPoint::QuotaLifted {
            let id = make().expect("it is well formed");
            killable.killed_during(step, || node.cri.remove(&id));
            node.cri.remove(&id).expect("it can be sent again");
        } else {
            killable.killed_during(step, make);
            // After the last step the container is complete.
            let whole = usize::from(step == CrashPoint::QuotaMarked);
            assert_eq!(count(), others + whole, "{step:?}");
            // A volume keeps its project, without a limit.
            let limits = || {
                projects()
                    .values()
                    .filter(|counted| counted.limit_kib != 0)
                    .count()
            };
            assert!(
                eventually(LIMIT, || limits() == 2 * whole),
                "{step:?}: {:?}",
                projects()
            );
            let id = make().unwrap_or_else(|status| panic!("{step:?}: {status}"));
            assert_eq!(count(), others + 1, "{step:?}");
            node.cri.start(&id).expect("it can be started");
            assert_about(written(node, &id, "/vol/big", 20), 4);
            assert_about(written(node, &id, "/data/big", 20), 2);
            node.cri.remove(&id).expect("it can be removed");
        }
        drop(pod);
        node.cri.remove_volume("kept").expect("nothing has it");
        wait_projects(&[]);
    }
}
