//! The protocol, with a socket in place of the journal's.

use std::io::IoSliceMut;
use std::io::{Read, Seek};

use rustix::fs::fcntl_get_seals;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};

use super::*;

const WAIT: SendWait = SendWait::AtMost(Duration::from_secs(10));

fn entry(message: &str) -> JournalEntry {
    JournalEntry::new(Priority::Warning, "switchyard", message)
}

fn receive(journal: &UnixDatagram) -> String {
    let mut bytes = [0; 4096];
    let length = journal.recv(&mut bytes).unwrap();
    String::from_utf8_lossy(&bytes[..length]).into_owned()
}

/// Receives an entry that was passed as a file, with the seals of that.
fn receive_file(journal: &UnixDatagram) -> (String, SealFlags) {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut bytes = [0; 16];
    let mut data = [IoSliceMut::new(&mut bytes)];
    recvmsg(journal, &mut data, &mut control, RecvFlags::empty()).unwrap();
    let received = control.drain().find_map(|message| {
        let RecvAncillaryMessage::ScmRights(mut descriptors) = message else {
            return None;
        };
        descriptors.next()
    });
    let mut file = File::from(received.expect("a descriptor is passed"));
    file.rewind().unwrap();
    let mut text = String::new();
    file.read_to_string(&mut text).unwrap();
    (text, fcntl_get_seals(&file).unwrap())
}

#[test]
fn value_with_a_newline_makes_no_field_and_no_name_comes_from_data() {
    let mut entry = entry("a pod failed");
    entry.field("pod", "web\nPRIORITY=0\nMESSAGE=all is well");
    entry.field("task", "9b0e");
    for name in ["", "task.id", "X", "a=b", "a\nb", &"x".repeat(64)] {
        entry.field(name, "lost");
    }
    let begin = b"PRIORITY=4\nSYSLOG_IDENTIFIER=switchyard\nMESSAGE=a pod failed\nSWITCHYARD_POD\n";
    let value = b"web\nPRIORITY=0\nMESSAGE=all is well";
    let length = u64::try_from(value.len()).unwrap().to_le_bytes();
    let expected = [&begin[..], &length, value, b"\nSWITCHYARD_TASK=9b0e\n"].concat();
    assert_eq!(entry.as_bytes(), expected);
}

#[test]
fn stream_is_that_of_the_journal_by_device_and_inode() {
    assert!(is_stream("9:1234", 9, 1234));
    for other in ["", "9", "9:1235", "8:1234", "9:1234:1", "9: 1234", "x:1234"] {
        assert!(!is_stream(other, 9, 1234), "{other}");
    }
}

#[test]
fn entry_that_is_too_large_for_a_datagram_is_passed_as_a_sealed_file() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("journal");
    let journal = UnixDatagram::bind(&path).unwrap();
    let mut socket = JournalSocket::new(path, WAIT);
    let mut large = entry("too much");
    for name in ["error", "reason", "backtrace"] {
        large.field(name, &"ä".repeat(VALUE_MAX));
    }
    socket.send(&large).unwrap();
    let (text, seals) = receive_file(&journal);
    assert_eq!(text.as_bytes(), large.as_bytes());
    assert_eq!(text.len() / VALUE_MAX, 3, "each value is cut");
    assert!(seals.contains(SealFlags::WRITE | SealFlags::GROW | SealFlags::SHRINK));
    socket.send(&entry("the next")).unwrap();
    assert!(receive(&journal).contains("MESSAGE=the next\n"));
}

#[test]
fn socket_of_a_journal_that_was_restarted_is_connected_again() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("journal");
    let bind = |path: &Path| UnixDatagram::bind(path).unwrap();
    let journal = bind(&path);
    let mut socket = JournalSocket::new(path.clone(), WAIT);
    socket.send(&entry("first")).unwrap();
    assert!(receive(&journal).contains("MESSAGE=first\n"));
    drop(journal);
    std::fs::remove_file(&path).unwrap();
    assert!(is_gone(&socket.send(&entry("lost")).unwrap_err()));
    let journal = bind(&path);
    socket.send(&entry("second")).unwrap();
    assert!(receive(&journal).contains("MESSAGE=second\n"));
}

#[test]
fn send_that_must_not_wait_fails_when_the_journal_does_not_read() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("journal");
    let _journal = UnixDatagram::bind(&path).unwrap();
    let mut socket = JournalSocket::new(path, SendWait::Never);
    let full = (0..1_000_000).find_map(|_| socket.send(&entry("again")).err());
    let error = full.expect("the queue of the socket is bounded");
    assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
}

/// Returns the error of an entry whose send is interrupted `times` times, and the number of sends.
fn interrupted(times: usize) -> (Option<io::ErrorKind>, usize) {
    let mut sends = 0;
    let sent = send_uninterrupted(|| {
        sends += 1;
        if sends > times {
            Ok(1)
        } else {
            Err(io::ErrorKind::Interrupted.into())
        }
    });
    (sent.err().map(|error| error.kind()), sends)
}

#[test]
fn interrupted_send_is_repeated_within_a_bound() {
    assert_eq!(interrupted(0), (None, 1));
    assert_eq!(
        interrupted(INTERRUPTIONS_MAX),
        (None, INTERRUPTIONS_MAX + 1)
    );
    let failed = Some(io::ErrorKind::Interrupted);
    assert_eq!(interrupted(1000), (failed, INTERRUPTIONS_MAX + 1));
}
