//! A container that can write to its own log directory.

use std::os::unix::fs::symlink;
use std::time::Instant;

use nix::sys::stat::Mode;
use nix::unistd::mkfifo;

use super::*;

#[test]
fn links_fifos_and_endless_lines_neither_mislead_nor_hang() {
    let node = TestNode::shared();
    let pod = node.pod("hostile");
    let id = pod.start_shell("main", "echo said; exec sleep 1000");
    let log = pod.log_path("main");
    pod.wait_log("main", |lines| lines.len() == 1);
    let kept = log.with_extension("kept");
    fs::rename(&log, &kept).expect("a log can be renamed");
    let begun = Instant::now();
    for words in [
        &["logs", id.as_str()][..],
        &["logs", "-f", id.as_str()],
        &["logs", "--tail", "1", id.as_str()],
    ] {
        symlink("/etc/shadow", &log).expect("the root can be written");
        let error = refused(&node.call(words));
        assert!(
            error.contains("leads through a symbolic link or out of the log directory"),
            "{error}"
        );
        fs::remove_file(&log).expect("it is there");
        mkfifo(&log, Mode::S_IRWXU).expect("the root can be written");
        let error = refused(&node.call(words));
        assert!(error.contains("is not a regular file"), "{error}");
        fs::remove_file(&log).expect("it is there");
    }
    // A line without end, and a rotated file that is none.
    let mut huge = vec![0; 40 << 20];
    huge.extend_from_slice(b"\nend\n");
    fs::write(&log, &huge).expect("the root can be written");
    symlink("/etc/shadow", log.with_extension("log.20260101-000000"))
        .expect("the root can be written");
    let done = node.call(&["logs", &id]);
    assert_eq!(done.status.code(), Some(1), "a file was left out");
    assert!(done.stdout == huge, "{} bytes", done.stdout.len());
    assert!(String::from_utf8_lossy(&done.stderr).contains("a part of the log is left out"));
    let done = node.call(&["logs", "--tail", "1", "--output", "json", &id]);
    let entry: Value = serde_json::from_slice(&done.stdout).expect("it is JSON");
    assert_eq!(
        (&entry["text"], &entry["malformed"]),
        (&json!("end"), &json!(true))
    );
    // A file that claims to be large costs little.
    fs::File::create(&log)
        .and_then(|file| file.set_len(1 << 40))
        .expect("the file system has holes");
    let follower = Follower::start(&node, &["logs", "-f", "--tail", "0", &id], "endless");
    std::thread::sleep(Duration::from_secs(1));
    assert_eq!(follower.text(), "");
    drop(follower);
    assert!(begun.elapsed() < LIMIT, "{:?}", begun.elapsed());
    fs::remove_file(&log).expect("it is there");
    fs::remove_file(log.with_extension("log.20260101-000000")).expect("it is there");
    fs::rename(&kept, &log).expect("a log can be renamed");
    assert_eq!(node.output(&["logs", &id]), "said\n");
}
