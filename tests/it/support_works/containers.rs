//! The leak scan and the cleanup, tested on a real containerd with a real container.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use switchyard_tests::host::{self, cgroups, eventually, processes, runtimes};
use switchyard_tests::image;
use switchyard_tests::leak_scan::{LeakScan, NAMESPACE, in_containerd, orphaned_content, stored};
use switchyard_tests::prereq;
use switchyard_tests::registry::Registry;
use switchyard_tests::root::PrivateRoot;

#[test]
fn leaked_container_is_found_and_removed() {
    let root = PrivateRoot::new();
    let path = root.path().to_owned();
    let cgroup = root.cgroup_name();
    start_containerd(&root);
    let registry = Registry::start();
    registry.push("busybox:1", &image::busybox().build());
    let reference = registry.reference("busybox:1");
    ctr(&root, &["images", "pull", "--plain-http", &reference]);
    let quiet = LeakScan::of(&root).findings;
    let work: Vec<_> = quiet
        .iter()
        .filter(|finding| !finding.starts_with("lease"))
        .collect();
    assert!(
        work.is_empty(),
        "an image alone is nothing left behind: {work:#?}"
    );

    // All callers share the runtimes' state directory of the machine: ids must be new.
    let id = hex_id();
    let group = format!("/{cgroup}/{id}");
    ctr(
        &root,
        &[
            "run",
            "-d",
            "--null-io",
            "--cgroup",
            &group,
            &reference,
            &id,
            "sleep",
            "1000",
        ],
    );
    let findings = LeakScan::of(&root).findings.join("\n");
    let named = ["container", "task", "snapshot"].map(|what| format!("{what} {id}"));
    let others = [
        "shim ",
        "control group",
        "runtime state",
        "in a control group",
    ]
    .map(str::to_owned);
    for part in named.iter().chain(&others) {
        assert!(findings.contains(part), "{part:?} is not in\n{findings}");
    }
    let socket = shim_socket(&root, &id);
    assert!(
        socket.exists(),
        "{} is where containerd 1.6 puts the socket of a shim",
        socket.display()
    );

    drop(root);
    assert!(!path.exists() && !socket.exists());
    assert!(processes::belonging_to(&path).is_empty());
    assert!(cgroups::trees_named(&cgroup).is_empty());
    assert!(runtimes::state_dirs_of(&path).is_empty());
    let shim = format!("{}/", path.display());
    assert!(
        !processes::all()
            .iter()
            .any(|process| !process.zombie && process.command.contains(&shim))
    );
}

#[test]
fn leases_ingests_images_and_content_are_found() {
    let root = PrivateRoot::new();
    start_containerd(&root);
    let socket = root
        .containerd_socket()
        .expect("containerd made its socket");
    let registry = Registry::start();
    let image = image::busybox().build();
    registry.push("busybox:1", &image);
    let reference = registry.reference("busybox:1");
    ctr(&root, &["images", "pull", "--plain-http", &reference]);
    ctr(&root, &["leases", "create", "--id", "leaked", "x=y"]);
    // The content differs from what it is to be, and the ingest stays.
    let file = root.path().join("content");
    fs::write(&file, "content").expect("the root can be written");
    let ingest = |words: &[&str]| {
        let mut command = ctr_command(&root, words);
        command.stdin(fs::File::open(&file).expect("it was just written"));
        command
            .output()
            .expect("ctr was found, so it starts")
            .status
            .success()
    };
    let wrong = format!("sha256:{}", "ab".repeat(32));
    assert!(!ingest(&[
        "content",
        "ingest",
        "--expected-digest",
        &wrong,
        "unfinished"
    ]));

    let found = in_containerd(&socket, NAMESPACE);
    for finding in ["lease leaked", "ingest unfinished"] {
        assert!(
            found.iter().any(|other| other == finding),
            "{finding:?} is not in {found:#?}"
        );
    }
    let found = stored(&socket, NAMESPACE);
    let layer = format!("snapshot {}", image::busybox_layer().diff_id);
    let blobs =
        [&image.manifest.digest, &image.config.digest].map(|digest| format!("blob {digest}"));
    for finding in [format!("image {reference}"), layer].iter().chain(&blobs) {
        assert!(found.contains(finding), "{finding:?} is not in {found:#?}");
    }

    // Content that belongs to no image, and that containerd does not collect.
    let kept = image::digest(b"content");
    let label = ["content", "label", &kept, "containerd.io/gc.root=x"];
    // A garbage collection that was due before may come between both, and takes what has no label yet.
    let is_kept = eventually(Duration::from_secs(30), || {
        ingest(&["content", "ingest", "whole"]) && try_ctr(&root, &label).status.success()
    });
    assert!(is_kept, "content can be stored and labelled");
    assert_eq!(
        orphaned_content(&socket, NAMESPACE),
        [format!("blob {kept}")]
    );
}

/// Starts containerd as the daemon does: with all its directories in the root, detached from the test.
fn start_containerd(root: &PrivateRoot) {
    let run = root.run().join("containerd");
    let state = root.state().join("containerd");
    fs::create_dir_all(&run).expect("the root can be written");
    let config = run.join("config.toml");
    let text = format!(
        "version = 2\nroot = {state:?}\nstate = {run:?}\ndisabled_plugins = [\"io.containerd.grpc.v1.cri\"]\n\
         [grpc]\naddress = {:?}\n",
        run.join("containerd.sock")
    );
    fs::write(&config, text).expect("the directory was just made");
    let started = Command::new("setsid")
        .arg("-f")
        .arg(prereq::require("containerd", "containerd"))
        .arg("-c")
        .arg(&config)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(
            fs::File::create(root.path().join("containerd.log")).expect("the root can be written"),
        )
        .status();
    assert!(started.expect("util-linux has setsid").success());
    let up = eventually(Duration::from_secs(30), || {
        root.containerd_socket().is_some() && try_ctr(root, &["version"]).status.success()
    });
    assert!(
        up,
        "{}",
        fs::read_to_string(root.path().join("containerd.log")).unwrap_or_default()
    );
}

#[track_caller]
fn ctr(root: &PrivateRoot, words: &[&str]) {
    let output = try_ctr(root, words);
    assert!(
        output.status.success(),
        "ctr {}: {}",
        words.join(" "),
        String::from_utf8_lossy(&output.stderr)
    );
}

fn try_ctr(root: &PrivateRoot, words: &[&str]) -> Output {
    ctr_command(root, words)
        .output()
        .expect("ctr was found, so it starts")
}

fn ctr_command(root: &PrivateRoot, words: &[&str]) -> Command {
    let socket = root
        .containerd_socket()
        .expect("containerd made its socket");
    let mut command = Command::new(prereq::require("ctr", "containerd"));
    command
        .arg("-a")
        .arg(socket)
        .args(["-n", NAMESPACE])
        .args(words)
        .stdin(Stdio::null());
    command
}

/// The socket of the container's shim, which lies outside of all directories that containerd can be given.
fn shim_socket(root: &PrivateRoot, id: &str) -> PathBuf {
    let address = root
        .containerd_socket()
        .expect("containerd made its socket");
    let digest = image::digest(format!("{}/k8s.io/{id}", address.display()).as_bytes());
    Path::new("/run/containerd/s").join(digest.trim_start_matches("sha256:"))
}

fn hex_id() -> String {
    image::digest(&host::random_bytes::<16>())
        .trim_start_matches("sha256:")
        .to_owned()
}
