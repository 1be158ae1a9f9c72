//! Clients that are attached to a container's output.

use std::fs::File;
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::time::Duration;

use nix::sys::statvfs::statvfs;
use switchyard_logkeeper::LogSpec;
use switchyard_logkeeper::format::Stream;
use switchyard_logkeeper::protocol::FaultKind;
use tokio::io::AsyncReadExt;

use crate::disk_full::SmallDisk;
use crate::support::{Output, PATIENCE, Running, Site, log, texts};

/// Reads this many bytes, as text.
async fn read(from: &mut (impl tokio::io::AsyncRead + Unpin), len: usize) -> String {
    let mut bytes = vec![0; len];
    tokio::time::timeout(PATIENCE, from.read_exact(&mut bytes))
        .await
        .unwrap()
        .unwrap();
    String::from_utf8(bytes).unwrap()
}

/// Reads until the end of the stream.
async fn read_all(mut from: impl tokio::io::AsyncRead + Unpin) -> Vec<u8> {
    let mut bytes = Vec::new();
    tokio::time::timeout(PATIENCE, from.read_to_end(&mut bytes))
        .await
        .unwrap()
        .unwrap();
    bytes
}

/// Writes numbered lines of 64 bytes, from a separate thread.
fn write_numbers(mut fifo: File, numbers: std::ops::Range<u32>) -> std::thread::JoinHandle<File> {
    std::thread::spawn(move || {
        for number in numbers {
            fifo.write_all(format!("{number:063}\n").as_bytes())
                .unwrap();
        }
        fifo
    })
}

#[tokio::test]
async fn followers_get_all_output_from_attach_to_eof() {
    let site = Site::new();
    let keeper = site.start().await;
    let spec = site.spec("c1");
    let mut output = site.output(&spec);
    site.client.open(&spec).await.unwrap();
    output.out("before\n");
    site.await_lines("c1", 1).await;
    let mut first = site.client.attach("c1", Stream::Stdout).await.unwrap();
    let mut errors = site.client.attach("c1", Stream::Stderr).await.unwrap();
    output.out("one\n");
    // The order between two pipes is undefined.
    site.await_lines("c1", 2).await;
    output.err("two\n");
    assert_eq!(
        (
            read(&mut first, 4).await.as_str(),
            read(&mut errors, 4).await.as_str()
        ),
        ("one\n", "two\n")
    );
    let second = site.client.attach("c1", Stream::Stdout).await.unwrap();
    // Output is sent without waiting for a newline.
    output.out("$ ");
    assert_eq!(read(&mut first, 2).await, "$ ");
    output.out("exit");
    site.client.finish("c1", Duration::ZERO).await.unwrap();
    assert_eq!(read_all(first).await, b"exit");
    assert_eq!(read_all(second).await, b"$ exit");
    assert_eq!(read_all(errors).await, b"");
    assert_eq!(
        texts(log(&spec)),
        [
            "stdout F before",
            "stdout F one",
            "stderr F two",
            "stdout P $ exit"
        ]
    );
    keeper.stop().await;
}

#[tokio::test]
async fn slow_follower_blocks_nobody_and_misses_old_output() {
    const LINES: u32 = 1 << 18;
    let site = Site::new();
    let keeper = site.start().await;
    let spec = site.spec("c1");
    let output = site.output(&spec);
    site.client.open(&spec).await.unwrap();
    let stuck = site.client.attach("c1", Stream::Stdout).await.unwrap();
    let reading = tokio::spawn(read_all(
        site.client.attach("c1", Stream::Stdout).await.unwrap(),
    ));
    let writer = write_numbers(output.stdout, 0..LINES);
    site.await_lines("c1", u64::from(LINES)).await;
    let spool = std::fs::metadata(site.config.state_dir.join("c1.stdout.spool")).unwrap();
    assert!(
        spool.blocks() * 512 < 10 << 20,
        "the spool holds {} bytes",
        spool.blocks() * 512
    );
    let fifo = writer.join().unwrap();
    site.client.finish("c1", Duration::ZERO).await.unwrap();
    drop(fifo);
    let text = String::from_utf8(read_all(stuck).await).unwrap();
    assert!(text.len() < 10 << 20, "{} bytes came", text.len());
    // A number is missing only from one point on, perhaps within a line, and after it all numbers come to the
    // end.
    let numbers: Vec<u32> = text.lines().filter_map(|line| line.parse().ok()).collect();
    let gaps = numbers
        .windows(2)
        .filter(|pair| pair[1] != pair[0] + 1)
        .count();
    assert!(gaps <= 2, "{gaps} gaps");
    assert_eq!(
        (numbers.first(), numbers.last()),
        (Some(&0), Some(&(LINES - 1)))
    );
    let other = reading.await.unwrap();
    assert!(other.ends_with(format!("{:063}\n", LINES - 1).as_bytes()));
    let logged = texts(log(&spec)).len();
    assert_eq!(
        logged,
        usize::try_from(LINES).unwrap(),
        "the log has all of it"
    );
    keeper.stop().await;
}

#[tokio::test]
async fn follower_resumes_after_logkeeper_restart() {
    let site = Site::new();
    let keeper = site.start().await;
    let spec = site.spec("c1");
    let mut output = site.output(&spec);
    site.client.open(&spec).await.unwrap();
    let mut client = site.client.attach("c1", Stream::Stdout).await.unwrap();
    output.out("one\n");
    assert_eq!(read(&mut client, 4).await, "one\n");
    output.out("two\n");
    site.await_lines("c1", 2).await;
    keeper.stop().await;
    output.out("three\n");
    let keeper = site.start().await;
    site.await_lines("c1", 3).await;
    assert_eq!(read(&mut client, 10).await, "two\nthree\n");
    site.client.finish("c1", Duration::ZERO).await.unwrap();
    assert_eq!(read_all(client).await, b"");
    keeper.stop().await;
}

#[tokio::test]
async fn spool_space_of_a_follower_is_freed_on_disconnect() {
    let site = Site::new();
    let keeper = site.start().await;
    let spec = site.spec("c1");
    let output = site.output(&spec);
    site.client.open(&spec).await.unwrap();
    let client = site.client.attach("c1", Stream::Stdout).await.unwrap();
    let writer = write_numbers(output.stdout, 0..20_000);
    site.await_lines("c1", 20_000).await;
    let used = || {
        std::fs::metadata(site.config.state_dir.join("c1.stdout.spool"))
            .unwrap()
            .blocks()
            * 512
    };
    assert!(used() > 1 << 20, "only {} bytes are kept", used());
    drop(client);
    let deadline = tokio::time::Instant::now() + PATIENCE;
    while used() > 8192 {
        assert!(
            tokio::time::Instant::now() < deadline,
            "{} bytes are still kept",
            used()
        );
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    drop(writer.join().unwrap());
    keeper.stop().await;
}

/// No output comes after it, with which space is released too.
#[tokio::test]
async fn spool_space_of_a_client_that_is_behind_is_freed_when_it_goes_while_another_one_stays() {
    let site = Site::new();
    let keeper = site.start().await;
    let spec = site.spec("c1");
    let output = site.output(&spec);
    site.client.open(&spec).await.unwrap();
    let attach = async || site.client.attach("c1", Stream::Stdout).await.unwrap();
    let [behind, mut stays] = [attach().await, attach().await];
    let len = 64 << 15;
    let reading = tokio::spawn(async move {
        read(&mut stays, len).await;
        stays
    });
    let writer = write_numbers(output.stdout, 0..1 << 15);
    let stays = reading.await.unwrap();
    site.await_lines("c1", 1 << 15).await;
    let used = || {
        std::fs::metadata(site.config.state_dir.join("c1.stdout.spool"))
            .unwrap()
            .blocks()
            * 512
    };
    assert!(used() > 1 << 20, "only {} bytes are kept", used());
    // The client that has caught up was noticed before, and releases nothing while the other is behind.
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert!(used() > 1 << 20, "only {} bytes are kept", used());
    drop(behind);
    let deadline = tokio::time::Instant::now() + PATIENCE;
    while used() > 512 << 10 {
        assert!(
            tokio::time::Instant::now() < deadline,
            "{} bytes are still kept",
            used()
        );
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    drop((stays, writer.join().unwrap()));
    keeper.stop().await;
}

#[tokio::test]
async fn container_without_a_log_can_be_followed_after_restart() {
    let site = Site::new();
    let keeper = site.start().await;
    let mut spec = site.spec("c1");
    spec.log = None;
    let mut output = site.output(&spec);
    site.client.open(&spec).await.unwrap();
    output.out("nobody hears\n");
    let mut client = site.client.attach("c1", Stream::Stdout).await.unwrap();
    output.out("hello\n");
    // What was written just before may or may not be received.
    let mut received = String::new();
    while !received.ends_with("hello\n") {
        received.push_str(&read(&mut client, 1).await);
    }
    let refused = site.client.reopen("c1").await.unwrap_err();
    assert_eq!(refused.fault().unwrap().kind, FaultKind::Io);
    keeper.stop().await;
    let keeper = site.start().await;
    output.out("again\n");
    assert_eq!(read(&mut client, 6).await, "again\n");
    site.client.finish("c1", Duration::ZERO).await.unwrap();
    assert_eq!(read_all(client).await, b"");
    keeper.stop().await;
}

#[tokio::test]
async fn unknown_container_cannot_be_followed() {
    let site = Site::new();
    let keeper = site.start().await;
    let unknown = site.client.attach("c1", Stream::Stdout).await.unwrap_err();
    assert_eq!(unknown.fault().unwrap().kind, FaultKind::NotFound);
    let mut spec = site.spec("c1");
    let _output = site.output(&spec);
    spec.stderr = None;
    site.client.open(&spec).await.unwrap();
    let missing = site.client.attach("c1", Stream::Stderr).await.unwrap_err();
    assert_eq!(missing.fault().unwrap().kind, FaultKind::InvalidArgument);
    keeper.stop().await;
}

/// A keeper whose state directory is on a file system of its own, and containers there whose output is only shown.
struct Shown {
    site: Site,
    keeper: Running,
    disk: SmallDisk,
}

impl Shown {
    async fn start(options: &str) -> Self {
        let mut site = Site::new();
        let disk = SmallDisk::mount(site.dir.path().join("disk"), options);
        site.config.state_dir = disk.0.join("state");
        let keeper = site.start().await;
        Self { site, keeper, disk }
    }

    async fn open(&self, id: &str) -> Output {
        let spec = LogSpec {
            log: None,
            ..self.site.spec(id)
        };
        let output = self.site.output(&spec);
        self.site.client.open(&spec).await.unwrap();
        output
    }
}

#[tokio::test]
async fn clients_that_read_nothing_leave_room_in_the_state_directory() {
    let shown = Shown::start("size=64m").await;
    let mut clients = Vec::new();
    let mut writers = Vec::new();
    for number in 0..32 {
        let id = format!("c{number}");
        let output = shown.open(&id).await;
        clients.push(shown.site.client.attach(&id, Stream::Stdout).await.unwrap());
        // 4 MiB each.
        writers.push(write_numbers(output.stdout, 0..1 << 16));
    }
    for writer in writers {
        drop(
            tokio::task::spawn_blocking(|| writer.join().unwrap())
                .await
                .unwrap(),
        );
    }
    let _another = shown.open("another").await;
    let disk = statvfs(&shown.disk.0).unwrap();
    let used = (disk.blocks() - disk.blocks_free()) * disk.fragment_size();
    assert!(used < 20 << 20, "{used} bytes are kept");
    // Each client continues with the most recent output, whatever it has missed.
    for (number, client) in clients.into_iter().enumerate() {
        shown
            .site
            .client
            .finish(&format!("c{number}"), Duration::ZERO)
            .await
            .unwrap();
        let text = read_all(client).await;
        assert!(text.ends_with(format!("{:063}\n", (1 << 16) - 1).as_bytes()));
    }
    shown.keeper.stop().await;
}

#[tokio::test]
async fn small_state_directory_has_room_for_few_followed_streams() {
    let shown = Shown::start("size=1m").await;
    let [_first, _second] = [shown.open("c1").await, shown.open("c2").await];
    let attach = async |id: &str| shown.site.client.attach(id, Stream::Stdout).await;
    let clients = [attach("c1").await.unwrap(), attach("c1").await.unwrap()];
    let refused = attach("c2").await.unwrap_err();
    let fault = refused.fault().unwrap();
    assert_eq!(fault.kind, FaultKind::Busy, "{fault}");
    assert!(
        fault
            .message
            .contains("no room for the output of more streams"),
        "{fault}"
    );
    drop(clients);
    let deadline = tokio::time::Instant::now() + PATIENCE;
    while let Err(error) = attach("c2").await {
        assert!(tokio::time::Instant::now() < deadline, "{error}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    shown.keeper.stop().await;
}
