//! Tests of which FIFOs are full, who reads them, and when discarding begins and ends.

use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::process::{Child, Command, Stdio};

use nix::sys::stat::Mode as FileMode;

use super::*;

/// A process that is killed when the test ends.
struct Sleeper(Child);

impl Drop for Sleeper {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

/// A process that sleeps, with this standard input and, as programs have, this name.
fn sleep(program: &Path, stdin: Stdio) -> Sleeper {
    let mut command = Command::new(program);
    command.arg("1000").stdin(stdin).stdout(Stdio::null());
    Sleeper(command.spawn().unwrap())
}

/// A process with the name of a shim.
fn shim(dir: &Path) -> Sleeper {
    let program = dir.join(SHIM);
    std::os::unix::fs::symlink("/bin/sleep", &program).unwrap();
    sleep(&program, Stdio::null())
}

fn fifo(dir: &Path, name: &str) -> PathBuf {
    let path = dir.join(name);
    nix::unistd::mkfifo(&path, FileMode::S_IRWXU).unwrap();
    path
}

/// Opens a FIFO for writing, as a shim does: it is open for reading as well, by this process, and not read.
fn writer(path: &Path) -> File {
    let mut both = OpenOptions::new();
    both.read(true).write(true);
    both.custom_flags(nix::libc::O_NONBLOCK).open(path).unwrap()
}

fn reader(path: &Path) -> File {
    let mut read = OpenOptions::new();
    read.read(true).custom_flags(nix::libc::O_NONBLOCK);
    read.open(path).unwrap()
}

fn fill(writer: &mut File) {
    let size = fcntl(&*writer, FcntlArg::F_GETPIPE_SZ).unwrap();
    let bytes = vec![0; usize::try_from(size).unwrap()];
    writer.write_all(&bytes).unwrap();
}

#[test]
fn a_fifo_is_full_when_it_takes_no_more() {
    let dir = tempfile::tempdir().unwrap();
    let path = fifo(dir.path(), "fifo");
    let mut writer = writer(&path);
    assert!(!is_full(&path));
    fill(&mut writer);
    assert!(is_full(&path));
    assert!(!is_full(Path::new("/dev/null")) && !is_full(Path::new("/no/such")));
}

#[test]
fn who_reads_a_file_is_seen_and_who_writes_to_it_does_not_count() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("file");
    std::fs::write(&path, "").unwrap();
    let shown: Option<HashSet<u64>> = shown_inode(&path).map(|inode| HashSet::from([inode]));
    let of_child = |file: File| {
        let child = sleep(Path::new("sleep"), file.into());
        let process = PathBuf::from(format!("/proc/{}", child.0.id()));
        let wanted = identity(&path).unwrap();
        let is_found =
            |inodes: Option<&HashSet<u64>>| files_read_by(&process, inodes).contains(&wanted);
        assert_eq!(is_found(shown.as_ref()), is_found(None));
        assert!(!is_found(Some(&HashSet::new())) || shown.is_none());
        is_found(shown.as_ref())
    };
    assert!(of_child(File::open(&path).unwrap()));
    assert!(!of_child(
        OpenOptions::new().write(true).open(&path).unwrap()
    ));
}

#[test]
fn descriptors_are_known_by_their_flags_and_their_inode() {
    let inodes = HashSet::from([7, 8]);
    for (fdinfo, of_these, of_any) in [
        (
            "pos:\t0\nflags:\t0100000\nmnt_id:\t15\nino:\t7\n",
            true,
            true,
        ),
        (
            "pos:\t0\nflags:\t0100002\nmnt_id:\t15\nino:\t8\n",
            true,
            true,
        ),
        (
            "pos:\t0\nflags:\t0100001\nmnt_id:\t15\nino:\t7\n",
            false,
            false,
        ),
        (
            "pos:\t0\nflags:\t0100000\nmnt_id:\t15\nino:\t78\n",
            false,
            true,
        ),
        // Before Linux 5.14.
        ("pos:\t0\nflags:\t0100000\nmnt_id:\t15\n", true, true),
        ("pos:\t0\nflags:\tx\n", false, false),
        ("", false, false),
    ] {
        assert_eq!(is_read(fdinfo, Some(&inodes)), of_these, "{fdinfo:?}");
        assert_eq!(is_read(fdinfo, None), of_any, "{fdinfo:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn four_hundred_fifos_without_a_reader_take_one_search_together_and_none_afterwards() {
    switchyard_linux::raise_open_files_limit().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let _shim = shim(dir.path());
    let paths: BTreeSet<PathBuf> = (0..400)
        .map(|number| fifo(dir.path(), &number.to_string()))
        .collect();
    let read = fifo(dir.path(), "read");
    let all: BTreeSet<PathBuf> = paths.iter().chain([&read]).cloned().collect();
    let mut writers: Vec<File> = all.iter().map(|path| writer(path)).collect();
    let _reader = sleep(Path::new("sleep"), reader(&read).into());
    writers.iter_mut().for_each(fill);

    let tracker = TaskTracker::new();
    let mut fifos = UnreadFifos::default();
    fifos.check(all.clone()).await;
    fifos.search(&tracker).await;
    assert!(fifos.drained.is_empty(), "they may be read slowly");
    fifos.check(all.clone()).await;
    assert_eq!(fifos.due().0.len(), all.len());
    fifos.search(&tracker).await;
    assert_eq!(fifos.due().0.len(), 0, "one search was for all of them");
    // A program that another test starts has all files of this process open for a moment.
    while fifos.drained.len() < paths.len() {
        fifos.check(all.clone()).await;
        fifos.pace = Pace::default();
        fifos.search(&tracker).await;
    }
    let drained: BTreeSet<PathBuf> = fifos.drained.keys().cloned().collect();
    assert_eq!(drained, paths, "all but the one that has a reader");
    // Whoever was blocked continues, as often as its FIFO would be full.
    for (_, writer) in all
        .iter()
        .zip(&mut writers)
        .filter(|(path, _)| **path != read)
    {
        for _ in 0..3 {
            while rustix::io::ioctl_fionread(&*writer).unwrap() > 0 {
                tokio::task::yield_now().await;
            }
            fill(writer);
        }
    }
    fifos.end_opened();
    fifos.check(paths.clone()).await;
    assert_eq!(fifos.due(), (Vec::new(), Vec::new()));
    assert_eq!(fifos.drained.len(), paths.len());

    let opened = paths.first().unwrap();
    let _new_reader = reader(opened);
    fifos.end_opened();
    assert!(!fifos.drained.contains_key(opened));
    assert_eq!(fifos.drained.len(), paths.len() - 1);
    // Their tasks are gone.
    fifos.check(BTreeSet::new()).await;
    assert!(fifos.drained.is_empty() && fifos.opens.is_none());
}

#[tokio::test(flavor = "multi_thread")]
async fn fifo_that_cannot_be_watched_is_part_of_the_next_search() {
    let dir = tempfile::tempdir().unwrap();
    let _shim = shim(dir.path());
    let path = fifo(dir.path(), "fifo");
    let mut writer = writer(&path);
    fill(&mut writer);
    let tracker = TaskTracker::new();
    let mut fifos = UnreadFifos::default();
    for held in hold(vec![path.clone()], None) {
        fifos.drain(held, &tracker);
    }
    assert_eq!(fifos.due(), (Vec::new(), vec![path.clone()]));
    let _reader = sleep(Path::new("sleep"), reader(&path).into());
    fifos.search(&tracker).await;
    assert!(fifos.drained.is_empty());
}

#[tokio::test]
async fn nothing_is_searched_for_during_a_pause() {
    let dir = tempfile::tempdir().unwrap();
    let path = fifo(dir.path(), "fifo");
    let mut fifos = UnreadFifos::default();
    fifos.full.insert(path.clone(), FULL_CHECKS);
    fifos.pace.ran(Duration::from_secs(60), Instant::now());
    fifos.search(&TaskTracker::new()).await;
    assert_eq!(fifos.due().0, [path], "it is searched for later");
}

#[tokio::test(start_paused = true)]
async fn readers_that_come_during_a_search_get_the_output() {
    let dir = tempfile::tempdir().unwrap();
    let [discarded, searched] = ["discarded", "searched"].map(|name| fifo(dir.path(), name));
    let _writers = [writer(&discarded), writer(&searched)];
    let tracker = TaskTracker::new();
    let mut fifos = UnreadFifos {
        opens: open_inotify(),
        ..UnreadFifos::default()
    };
    for held in hold(vec![discarded.clone()], fifos.opens.as_deref()) {
        fifos.drain(held, &tracker);
    }
    let of_search = hold(vec![searched.clone()], fifos.opens.as_deref());
    let _readers = [reader(&discarded), reader(&searched)];
    fifos.meanwhile(tokio::time::sleep(2 * OPEN_INTERVAL)).await;
    assert!(fifos.drained.is_empty(), "it ends during the search");
    for held in of_search {
        fifos.drain(held, &tracker);
    }
    fifos.end_opened();
    assert!(
        fifos.drained.is_empty(),
        "its reader came during the search"
    );
    assert!(fifos.opened.is_empty());
}
