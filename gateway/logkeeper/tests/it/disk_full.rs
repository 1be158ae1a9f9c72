//! On a full disk, lines are dropped, counted and reported, and the container never blocks.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::mount::{MntFlags, MsFlags, mount, umount2};

use crate::kill::{Victim, await_hello};
use crate::support::{PATIENCE, Site, log, parse, texts};

/// A small file system that is unmounted on drop.
pub(crate) struct SmallDisk(pub(crate) PathBuf);

impl SmallDisk {
    pub(crate) fn mount(path: PathBuf, options: &str) -> Self {
        fs::create_dir_all(&path).unwrap();
        mount(
            Some("tmpfs"),
            &path,
            Some("tmpfs"),
            MsFlags::empty(),
            Some(options),
        )
        .expect("mounting a tmpfs needs root with CAP_SYS_ADMIN");
        Self(path)
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // Detached, so that a failed test with open files does not leave a mount behind either.
        if let Err(error) = umount2(&self.0, MntFlags::MNT_DETACH) {
            eprintln!("cannot unmount {}: {error}", self.0.display());
        }
    }
}

async fn check_full_disk(state_too: bool) {
    const LINES: usize = 50_000;
    let mut site = Site::new();
    let disk = SmallDisk::mount(site.dir.path().join("disk"), "size=64k");
    if state_too {
        site.config.state_dir = disk.0.join("state");
    }
    let keeper = site.start().await;
    let mut spec = site.spec("c1");
    spec.log = Some(disk.0.join("c1/0.log"));
    let output = site.output(&spec);
    site.client.open(&spec).await.unwrap();
    let mut fifo = output.stdout;
    let writer = tokio::task::spawn_blocking(move || {
        for number in 0..LINES {
            std::io::Write::write_all(&mut fifo, format!("{number:099}\n").as_bytes()).unwrap();
        }
        fifo
    });
    let mut fifo = tokio::time::timeout(PATIENCE, writer)
        .await
        .expect("the writer was blocked")
        .unwrap();
    // All output has been read before space is freed.
    let deadline = tokio::time::Instant::now() + PATIENCE;
    loop {
        let totals = site.client.stats().await.unwrap().totals;
        if totals.bytes + totals.dropped_bytes == LINES as u64 * 99 {
            break;
        }
        assert!(tokio::time::Instant::now() < deadline, "{totals:?}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    let old = disk.0.join("c1/0.log.old");
    fs::rename(log(&spec), &old).unwrap();
    let before = parse(&old);
    fs::remove_file(&old).unwrap();
    site.client.reopen("c1").await.unwrap();
    std::io::Write::write_all(&mut fifo, b"after\n").unwrap();
    let finished = site.client.finish("c1", Duration::ZERO).await.unwrap();
    assert!(finished.dropped_lines > 0);
    assert_eq!(
        finished.bytes + finished.dropped_bytes,
        LINES as u64 * 99 + 5
    );
    // The logs report every line that was dropped, and contain all others in order.
    let after = parse(log(&spec));
    let mut reported = 0;
    let mut kept = Vec::new();
    for line in before.iter().chain(&after) {
        let text = String::from_utf8(line.content.clone()).unwrap();
        match text.strip_prefix("[switchyard: ") {
            Some(notice) => {
                assert_eq!((line.stream.as_str(), line.tag.as_str()), ("stderr", "F"));
                assert!(
                    notice.contains(" lines lost: no space left on device"),
                    "{notice}"
                );
                reported += notice.split(' ').next().unwrap().parse::<u64>().unwrap();
            }
            None => kept.push(text),
        }
    }
    assert_eq!(reported, finished.dropped_lines);
    assert_eq!(kept.len() as u64, finished.lines);
    assert_eq!(kept.pop().as_deref(), Some("after"));
    if state_too {
        // Without a spool an unfinished line is not held back, so lines are split into pieces.
        return keeper.stop().await;
    }
    assert_eq!(finished.lines + finished.dropped_lines, LINES as u64 + 1);
    let numbers: Vec<u64> = kept.iter().map(|text| text.parse().unwrap()).collect();
    assert!(numbers.is_sorted_by(|left, right| left < right));
    keeper.stop().await;
}

#[tokio::test]
async fn full_log_disk_does_not_block_and_loss_is_reported() {
    check_full_disk(false).await;
}

#[tokio::test]
async fn full_state_directory_does_not_block() {
    check_full_disk(true).await;
}

/// Uses up the bytes, and then the inodes, of a small file system.
fn fill(dir: &Path) {
    let mut file = fs::File::create(dir.join("filling")).unwrap();
    let mut size = 1 << 16;
    while size > 0 {
        if std::io::Write::write_all(&mut file, &vec![1; size]).is_err() {
            size /= 2;
        }
    }
    let mut number = 0;
    while fs::File::create(dir.join(format!("filling{number}"))).is_ok() {
        number += 1;
    }
}

#[tokio::test]
async fn killed_logkeeper_comes_back_on_a_full_run_directory() {
    let site = Site::new();
    let logs = tempfile::tempdir().unwrap();
    let run = SmallDisk::mount(site.dir.path().to_path_buf(), "size=1m,nr_inodes=64");
    let mut victim = Victim::start(&site);
    await_hello(&site).await;
    let mut spec = site.spec("c1");
    spec.log = Some(logs.path().join("0.log"));
    let mut output = site.output(&spec);
    site.client.open(&spec).await.unwrap();
    output.out("one\n");
    site.await_lines("c1", 1).await;
    fill(&run.0);
    victim.kill();
    output.out("two\n");
    let _next = Victim::start(&site);
    await_hello(&site).await;
    output.out("three\n");
    site.await_lines("c1", 3).await;
    assert_eq!(
        site.client
            .finish("c1", Duration::ZERO)
            .await
            .unwrap()
            .dropped_lines,
        0
    );
    assert_eq!(
        texts(log(&spec)),
        ["stdout F one", "stdout F two", "stdout F three"]
    );
}
