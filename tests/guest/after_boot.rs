//! Checks at the boot after a power cut or a restart: everything that was acknowledged exists or is reported
//! as exited, and nothing else exists.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Read;
use std::path::Path;
use std::process::ExitCode;

use switchyard_network::nft::TableName;
use switchyard_proto::cri::v1 as cri;
use switchyard_tests::host::eventually;
use switchyard_tests::leak_scan;
use switchyard_tests::network::elements_of_sandboxes;

use crate::interrupted;
use crate::leases;
use crate::load::{note, remove_volume, volume_content};
use crate::node::{CONTAINERD, GuestNode, LIMIT, property, shell_container};
use crate::tasks::TaskAgent;

/// The directories where host-local, or the daemon in its place, records the addresses that pods and Nomad tasks have.
const ADDRESSES: [&str; 3] = [
    "/var/lib/cni/networks/guest",
    "/var/lib/cni/networks/switchyard-pods",
    "/var/lib/cni/networks/switchyard0",
];
/// The logs of the daemon, of the logkeeper and of the managed containerd.
const DAEMON_LOGS: [&str; 2] = ["/var/lib/switchyard", "/run/switchyard"];
/// Directories with an entry for each sandbox or task, and for temporary files of their creation.
const EMPTY: [&str; 8] = [
    "/var/lib/switchyard/sandboxes",
    "/var/lib/switchyard/tasks",
    "/run/switchyard/sandboxes",
    "/run/switchyard/tasks",
    "/run/switchyard/ns",
    "/run/switchyard/stage",
    "/run/switchyard/views",
    "/run/switchyard/groups",
];
/// The directory of named volumes, by owner.
const VOLUMES: &str = "/var/lib/switchyard/volumes/kubernetes";
/// The directory where the logkeeper stores its state of each container, beside its lock.
const LOGS: &str = "/run/switchyard/logkeeper/state";

/// The notes about a pod.
#[derive(Debug, Default)]
struct RecordedPod {
    pod: Option<String>,
    /// Ids of its containers, and whether they were started.
    containers: BTreeMap<String, bool>,
    removing: bool,
    removed: bool,
}

/// All notes.
#[derive(Debug, Default)]
struct LoadRecord {
    pods: BTreeMap<String, RecordedPod>,
    /// Images and the digest of their file, except those that were checked after an earlier power cut.
    images: BTreeMap<String, String>,
    /// Named volumes, and whether their removal was requested or acknowledged.
    volumes: BTreeMap<String, RecordedVolume>,
    /// Device leases, by the pods that a kubelet has admitted with them.
    leases: BTreeMap<String, leases::RecordedLease>,
    /// The upgrade of the package.
    upgrade: RecordedUpgrade,
}

/// The notes about an upgrade.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum RecordedUpgrade {
    /// There is none, or the last one is completed.
    #[default]
    Completed,
    /// It was held up in its postinst.
    InPostinst,
    /// A boot after that has begun to complete it.
    Completing,
}

/// The notes about a volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RecordedVolume {
    There,
    Removing,
    Removed,
}

pub(crate) fn run() -> ExitCode {
    let mut text = String::new();
    std::io::stdin()
        .read_to_string(&mut text)
        .expect("the notes are on the third disk");
    let notes = LoadRecord::parse(&text);
    // Only systemd starts the daemon.
    let active = eventually(LIMIT, || property("switchyard", "ActiveState") == "active");
    assert!(active, "the daemon does not start by itself");
    assert_eq!(
        property("switchyard", "NRestarts"),
        "0",
        "it did not start at the first try"
    );
    let node = GuestNode::start();

    let pods = node.cri.pods().expect("they can be listed");
    let containers = node.cri.containers().expect("they can be listed");
    let mut wrong = Vec::new();
    notes.compare(&pods, &containers, &mut wrong);
    for container in &containers {
        let status = node
            .cri
            .status(&container.id)
            .expect("what is listed has a status");
        if status.state() == cri::ContainerState::ContainerExited
            && status.started_at > status.finished_at
        {
            wrong.push(format!(
                "container {} ended before it started: {status:?}",
                container.id
            ));
        }
    }
    println!(
        "from before: {} pods, {} containers",
        pods.len(),
        containers.len()
    );
    wrong.extend(notes.complete_upgrade(&node));
    wrong.extend(leases::check_after_boot(&node, &notes.leases));
    wrong.extend(TaskAgent::start(&node).check_after_boot());
    for pod in &pods {
        for (what, answer) in [
            ("stopped", node.cri.stop_pod(&pod.id)),
            ("removed", node.cri.remove_pod(&pod.id)),
        ] {
            if let Err(status) = answer {
                wrong.push(format!("pod {} cannot be {what}: {status}", pod.id));
            }
        }
        if let Some(metadata) = &pod.metadata {
            note(&format!("removing {}", metadata.uid));
        }
    }
    wrong.extend(check_volumes(&node, &notes.volumes));
    wrong.extend(end_kept_pulls(&node));
    wrong.extend(lasting_pod_files());
    for (image, sum) in &notes.images {
        if let Err(why) = check_image(&node, image, sum) {
            wrong.push(format!("image {image}: {why}"));
        }
        note(&format!("seen {image}"));
    }
    let pod = node.pod("after");
    let id = pod.start_shell("main", "exec sleep 1000");
    assert_eq!(node.cri.sh(&id, "echo reached"), "reached");
    drop(pod);
    let lasting = interrupted::lasting_errors().into_iter();
    // The last check, as it removes all images.
    wrong.extend(lasting.chain(orphaned_content()));
    for line in &wrong {
        println!("WRONG: {line}");
    }
    if wrong.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

impl LoadRecord {
    fn parse(text: &str) -> Self {
        let mut notes = Self::default();
        for line in text.lines() {
            let words: Vec<&str> = line.split(' ').collect();
            match words.as_slice() {
                ["begin", name] => drop(
                    notes
                        .pods
                        .insert((*name).to_owned(), RecordedPod::default()),
                ),
                ["pod", name, id] => notes.of(name).pod = Some((*id).to_owned()),
                ["created", name, id] => {
                    notes.of(name).containers.insert((*id).to_owned(), false);
                }
                ["started", name, id] => {
                    notes.of(name).containers.insert((*id).to_owned(), true);
                }
                ["removing", name] => notes.of(name).removing = true,
                ["removed", name] => notes.of(name).removed = true,
                ["image", name, sum] => {
                    notes.images.insert((*name).to_owned(), (*sum).to_owned());
                }
                ["volume", name] => drop(
                    notes
                        .volumes
                        .insert((*name).to_owned(), RecordedVolume::There),
                ),
                ["unnaming", name] => {
                    notes
                        .volumes
                        .insert((*name).to_owned(), RecordedVolume::Removing);
                }
                ["unnamed", name] => drop(
                    notes
                        .volumes
                        .insert((*name).to_owned(), RecordedVolume::Removed),
                ),
                ["seen", name] => drop(notes.images.remove(*name)),
                ["lease", name, slot, token, path] => {
                    notes.leases.insert(
                        (*name).to_owned(),
                        leases::RecordedLease::parse(slot, token, path),
                    );
                }
                ["using", name] => notes.lease_is_used(name, leases::LeaseUse::Started),
                ["bound", name] => notes.lease_is_used(name, leases::LeaseUse::Pod),
                ["ended", name] => drop(notes.leases.remove(*name)),
                ["upgrading"] => notes.upgrade = RecordedUpgrade::InPostinst,
                ["completing"] => notes.upgrade = RecordedUpgrade::Completing,
                ["upgraded"] => notes.upgrade = RecordedUpgrade::Completed,
                other => panic!("a note that nobody writes: {other:?}"),
            }
        }
        notes
    }

    fn of(&mut self, name: &str) -> &mut RecordedPod {
        self.pods.entry(name.to_owned()).or_default()
    }

    fn lease_is_used(&mut self, name: &str, by: leases::LeaseUse) {
        if let Some(lease) = self.leases.get_mut(name) {
            lease.is_used(by);
        }
    }

    /// Completes the upgrade that the power cut has interrupted; what is wrong then. The daemon of the unpacked program has served until now.
    fn complete_upgrade(&self, node: &GuestNode) -> Vec<String> {
        let mut wrong = Vec::new();
        if self.upgrade == RecordedUpgrade::Completed {
            return wrong;
        }
        let state = interrupted::state();
        println!("from before: an upgrade, {state}");
        if self.upgrade == RecordedUpgrade::InPostinst && !state.starts_with("half-configured ") {
            wrong.push(format!(
                "the power was cut in postinst, and the package is {state}"
            ));
        }
        note("completing");
        wrong.extend(interrupted::complete_after_boot());
        note("upgraded");
        node.wait_ready();
        let pods = node.cri.pods().expect("they can be listed");
        let containers = node.cri.containers().expect("they can be listed");
        self.compare(&pods, &containers, &mut wrong);
        wrong
    }

    /// Compares the lists with what was acknowledged before the power cut.
    fn compare(
        &self,
        pods: &[cri::PodSandbox],
        containers: &[cri::Container],
        wrong: &mut Vec<String>,
    ) {
        let listed: BTreeMap<&str, &cri::PodSandbox> =
            pods.iter().map(|pod| (pod.id.as_str(), pod)).collect();
        let ids: BTreeMap<&str, &cri::Container> = containers
            .iter()
            .map(|container| (container.id.as_str(), container))
            .collect();
        for pod in pods {
            let name = pod.metadata.clone().unwrap_or_default().uid;
            match self.pods.get(&name) {
                None => wrong.push(format!("pod {name} is listed, and nobody asked for it")),
                Some(noted) if noted.removed => {
                    wrong.push(format!("pod {name} is listed, and was removed"))
                }
                Some(_) => {}
            }
            if pod.state() != cri::PodSandboxState::SandboxNotready {
                wrong.push(format!("pod {name} is reported to be ready"));
            }
        }
        for container in containers {
            if container.state() == cri::ContainerState::ContainerRunning {
                wrong.push(format!("container {} is reported to run", container.id));
            }
            if !listed.contains_key(container.pod_sandbox_id.as_str()) {
                wrong.push(format!("container {} has no pod", container.id));
            }
        }
        for (name, noted) in self.pods.iter().filter(|(_, noted)| !noted.removing) {
            let Some(pod) = &noted.pod else { continue };
            if !listed.contains_key(pod.as_str()) {
                wrong.push(format!("pod {name} was answered, and is not listed"));
            }
            for (id, started) in &noted.containers {
                match ids.get(id.as_str()).map(|container| container.state()) {
                    None => wrong.push(format!(
                        "container {id} of pod {name} was answered, and is not listed"
                    )),
                    Some(state) if *started && state != cri::ContainerState::ContainerExited => {
                        wrong.push(format!(
                            "container {id} of pod {name} was started, and is {state:?}"
                        ));
                    }
                    Some(_) => {}
                }
            }
        }
    }
}

/// Lists files of pods that are left after the cleanup that recovery defers, which is done within seconds.
fn lasting_pod_files() -> Vec<String> {
    let mut left = Vec::new();
    let _ = eventually(LIMIT, || {
        left = leaked_pod_files();
        left.is_empty()
    });
    left
}

/// Files of pods that remain although there should be no pod.
fn leaked_pod_files() -> Vec<String> {
    let mut left = leak_scan::in_containerd(Path::new(CONTAINERD), leak_scan::NAMESPACE);
    left.extend(
        DAEMON_LOGS
            .into_iter()
            .flat_map(|dir| leak_scan::leaked_files(Path::new(dir))),
    );
    for dir in EMPTY.into_iter().chain(ADDRESSES).chain([LOGS]) {
        let names = fs::read_dir(dir)
            .into_iter()
            .flatten()
            .flatten()
            .map(|entry| entry.file_name());
        let names: BTreeSet<_> = names
            .map(|name| name.to_string_lossy().into_owned())
            .collect();
        let kept = |name: &String| name != "lock" && !name.starts_with("last_reserved_ip");
        left.extend(names.into_iter().filter(kept).map(|name| {
            let path = Path::new(dir).join(&name);
            let holder = fs::read_to_string(&path).unwrap_or_default();
            format!("{} is left: {holder:?}", path.display())
        }));
    }
    left.extend(leaked_elements());
    left
}

/// Elements of the daemon's tables for sandboxes that it attached without plugins, although there should be none.
fn leaked_elements() -> Vec<String> {
    let left = elements_of_sandboxes(&TableName::default()).into_iter();
    left.map(|(family, element)| {
        let family = family.name();
        format!("{element} is left in the nftables for {family}")
    })
    .collect()
}

/// Violations about volumes: those whose creation was acknowledged exist, those that exist are complete, and
/// all can be removed.
fn check_volumes(node: &GuestNode, noted: &BTreeMap<String, RecordedVolume>) -> Vec<String> {
    let mut wrong = Vec::new();
    let entries = fs::read_dir(VOLUMES).into_iter().flatten().flatten();
    let there: BTreeSet<_> = entries
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect();
    println!("from before: {} volumes", there.len());
    for (name, kept) in noted {
        match (kept, there.contains(name)) {
            (RecordedVolume::There, false) => {
                wrong.push(format!("volume {name} was answered, and is not there"))
            }
            (RecordedVolume::Removed, true) => {
                wrong.push(format!("volume {name} was removed, and is there"))
            }
            (RecordedVolume::There, true)
            | (RecordedVolume::Removing, _)
            | (RecordedVolume::Removed, false) => {}
        }
    }
    for name in there {
        let file = Path::new(VOLUMES).join(&name).join("file");
        if !fs::read(&file).is_ok_and(|bytes| bytes == volume_content()) {
            wrong.push(format!(
                "volume {name} does not have what its image has there"
            ));
        }
        remove_volume(node, &name);
    }
    wrong
}

/// Content of containerd that belongs to no image, of interrupted pulls as of completed ones; and files of
/// the pods and tasks that were created to check that new ones start.
fn orphaned_content() -> Vec<String> {
    let mut left = Vec::new();
    let _ = eventually(LIMIT, || {
        left = leak_scan::orphaned_content(Path::new(CONTAINERD), leak_scan::NAMESPACE);
        left.extend(leaked_pod_files());
        left.is_empty()
    });
    left.into_iter()
        .map(|what| format!("{what} is left of nobody"))
        .collect()
}

/// Removes what is kept of a pull that the power cut has ended: the daemon keeps it for the next one, until an image is removed.
fn end_kept_pulls(node: &GuestNode) -> Option<String> {
    let image = node.image();
    let removed = node.cri.remove_image(&image);
    let pulled = removed.and_then(|()| node.cri.pull(&image, None));
    let status = pulled.err()?;
    Some(format!("image {image} cannot be pulled again: {status}"))
}

/// An image that was acknowledged exists and is complete.
fn check_image(node: &GuestNode, image: &str, sum: &str) -> Result<(), String> {
    if node
        .cri
        .image(image)
        .map_err(|status| status.to_string())?
        .is_none()
    {
        return Err("it was pulled, and is not there".to_owned());
    }
    let pod = node.pod("image");
    let config = shell_container(image, "main", "exec sha256sum /data");
    let message = |status: tonic::Status| status.to_string();
    let id = node
        .cri
        .create(&pod.id, &config, &pod.config)
        .map_err(message)?;
    node.cri.start(&id).map_err(message)?;
    let status = node.wait_exit(&id);
    let printed = pod.log_lines("main").join("\n");
    let expected = sum.strip_prefix("sha256:").unwrap_or(sum);
    if status.exit_code == 0 && printed.starts_with(expected) {
        Ok(())
    } else {
        Err(format!(
            "its file is not what was pulled: {} {printed:?}",
            status.exit_code
        ))
    }
}
