//! Image archives that Nomad jobs provide as `load`.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::thread;
use std::time::Duration;

use serde_json::json;
use switchyard_tests::host::{eventually, random_name};
use switchyard_tests::node::TestNode;
use switchyard_tests::nomad::{Agent, TaskSetup};
use tonic::Code;

use super::peak_memory;

/// More loads at a time than the daemon has threads for calls that block.
const LOADS: usize = 140;

/// Time for the daemon to stop reading an archive after its client has given up.
const SOON: Duration = Duration::from_secs(20);

/// The header of an entry of this type and size, in GNU's form.
fn header(name: &str, kind: u8, size: u64) -> [u8; 512] {
    let mut block = [0; 512];
    block[..name.len()].copy_from_slice(name.as_bytes());
    block[100..107].copy_from_slice(b"0000644");
    // As a binary number, which has room for any size.
    block[124] = 0x80;
    block[128..136].copy_from_slice(&size.to_be_bytes());
    block[156] = kind;
    block[257..265].copy_from_slice(b"ustar  \0");
    block[148..156].fill(b' ');
    let sum: u32 = block.iter().map(|byte| u32::from(*byte)).sum();
    block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    block
}

/// Writes entries one after the other; what a text does not fill of its entry is a hole.
fn write(path: &Path, entries: &[(&str, u8, u64, &str)]) {
    let file = File::create(path).expect("the task's directory can be written");
    let mut at = 0;
    for (name, kind, size, text) in entries {
        file.write_all_at(&header(name, *kind, *size), at)
            .expect("there is room");
        file.write_all_at(text.as_bytes(), at + 512)
            .expect("there is room");
        at += 512 + size.next_multiple_of(512);
    }
    file.set_len(at + 1024).expect("there is room for a hole");
}

fn loading(node: &TestNode, agent: &Agent) -> TaskSetup {
    let config = json!({
        "image": "brought:1", "load": "image.tar", "command": "true", "network_mode": "host", "image_pull_timeout": "2s"
    });
    TaskSetup::new(node.root(), agent, "task", &config)
}

#[test]
fn oversized_archive_names_and_headers_are_rejected_without_buffering() {
    const LENGTH: u64 = 512 << 20;
    let node = TestNode::start();
    let agent = Agent::start(node.root(), &json!({}));
    for kind in [b'x', b'g', b'L', b'K'] {
        let mut task = loading(&node, &agent);
        let archive = task.task_dir().join("local/image.tar");
        write(
            &archive,
            &[
                ("bomb", kind, LENGTH, "long"),
                ("manifest.json", b'0', 2, "[]"),
            ],
        );
        let before = peak_memory(&node);
        let status = agent
            .driver()
            .start(&task.config)
            .expect_err("it is no image");
        let growth = peak_memory(&node).saturating_sub(before);
        assert_eq!(status.code(), Code::InvalidArgument, "{status}");
        assert!(
            status.message().contains("536870912 bytes"),
            "{}: {status}",
            char::from(kind)
        );
        assert!(
            growth < LENGTH / 4,
            "{}: {growth} bytes more",
            char::from(kind)
        );
        task.remove_cgroups();
    }
    node.assert_clean();
}

#[test]
fn endless_loads_block_nobody_and_fail_at_their_deadline() {
    let node = TestNode::start();
    let agent = Agent::start(node.root(), &json!({}));
    let mut task = loading(&node, &agent);
    let archive = task.task_dir().join("local/image.tar");
    let list =
        json!([{ "Config": "config.json", "RepoTags": ["brought:1"], "Layers": ["layer.tar"] }])
            .to_string();
    let length = u64::try_from(list.len()).expect("it is short");
    write(
        &archive,
        &[
            ("config.json", b'0', 2, "{}"),
            ("manifest.json", b'0', length, &list),
            ("layer.tar", b'0', 1 << 40, ""),
        ],
    );
    thread::scope(|scope| {
        let loads: Vec<_> = (0..LOADS)
            .map(|_| {
                let driver = agent.driver();
                let mut config = task.config.clone();
                config.id = format!("{}/task/{}", config.alloc_id, random_name());
                scope.spawn(move || driver.start(&config).map(drop))
            })
            .collect();
        let pod = node.pod("beside");
        assert_eq!(pod.run_shell("echo runs", |_| {}), "runs");
        for load in loads {
            let status = load
                .join()
                .expect("it is answered")
                .expect_err("it is too long");
            assert!(status.message().contains("image_pull_timeout"), "{status}");
        }
    });
    let fds = format!("/proc/{}/fd", node.daemon().pid());
    let open = || {
        let links = fs::read_dir(&fds).expect("the daemon runs").flatten();
        links
            .filter(|link| fs::read_link(link.path()).is_ok_and(|to| to == archive))
            .count()
    };
    assert!(
        eventually(SOON, || open() == 0),
        "{} threads are at the archive",
        open()
    );
    task.remove_cgroups();
    drop(task);
    node.assert_clean();
}

#[test]
fn archive_too_large_for_the_content_store_is_rejected_before_writing() {
    const LAYER: u64 = 64 << 20;
    let node = TestNode::start_with("", |root| root.small_disk(&root.state(), "size=40m"));
    let agent = Agent::start(node.root(), &json!({}));
    let config = json!({ "image": "brought:1", "load": "image.tar", "command": "true", "network_mode": "host" });
    let mut task = TaskSetup::new(node.root(), &agent, "task", &config);
    let list = json!([{ "Config": "config.json", "Layers": ["layer.tar"] }]).to_string();
    let length = u64::try_from(list.len()).expect("it is short");
    let config =
        json!({ "rootfs": { "diff_ids": [format!("sha256:{}", "0".repeat(64))] } }).to_string();
    let entries: [(&str, u8, u64, &str); 3] = [
        (
            "config.json",
            b'0',
            u64::try_from(config.len()).expect("it is short"),
            &config,
        ),
        ("manifest.json", b'0', length, &list),
        ("layer.tar", b'0', LAYER, ""),
    ];
    write(&task.task_dir().join("local/image.tar"), &entries);
    let status = agent
        .driver()
        .start(&task.config)
        .expect_err("it does not fit");
    for part in [
        &format!("need {LAYER} bytes"),
        "are free on the disk of",
        "images.check_free_space",
    ] {
        assert!(status.message().contains(part), "{status}");
    }
    task.remove_cgroups();
    drop(task);
    node.assert_clean();
}
