//! Archives that are compressed as a whole: by gzip, and by xz, zstd and bzip2, which docker takes too.
//!
//! They are decompressed into a file without a name on the disk of the state directory, which is gone with its
//! descriptor: a kill leaves nothing. gzip is decompressed by this process, the others by their programs.

use std::fs::File;
use std::io::{self, BufReader, Read, Seek, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use flate2::bufread::MultiGzDecoder;
use rustix::fs::{Mode, OFlags};
use switchyard_core::{Error, Result};
use tokio_util::sync::CancellationToken;

use super::archive::{check_cancelled, malformed, unreadable};
use crate::base::fs::io_error;

/// Bytes that are decompressed at a time.
const CHUNK: usize = 1 << 20;

/// Bytes of an archive that tell how it is compressed: the magic number of a tar archive is the last of them.
const HEAD: usize = 262;

/// Position of the magic number in a tar archive.
const TAR_MAGIC: std::ops::Range<usize> = 257..HEAD;

/// The most that is left free on the disk, in bytes; of a small disk a twentieth.
const KEPT_FREE: u64 = 1 << 30;

/// The compression of an archive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Compression {
    Gzip,
    /// By a program, which reads the archive and writes its content: its name and its arguments. Its memory is limited,
    /// because the archive says how much it takes.
    By(&'static str, &'static [&'static str]),
}

/// The first bytes of compressed files.
const COMPRESSIONS: [(&[u8], Compression); 4] = [
    (&[0x1f, 0x8b], Compression::Gzip),
    (
        &[0xfd, b'7', b'z', b'X', b'Z', 0],
        Compression::By(
            "xz",
            &["--decompress", "--stdout", "--memlimit-decompress=256MiB"],
        ),
    ),
    (
        &[0x28, 0xb5, 0x2f, 0xfd],
        Compression::By(
            "zstd",
            &["--decompress", "--stdout", "--quiet", "--memory=256MB"],
        ),
    ),
    (
        b"BZh",
        Compression::By("bzip2", &["--decompress", "--stdout"]),
    ),
];

/// A program that decompresses, which is killed if it is not waited for.
struct Decompressor {
    name: &'static str,
    child: Child,
}

/// The archive as a tar archive: itself, if it is not compressed, else its content in a new file on the disk of `scratch`.
/// Blocks on the disk. Ends with an error soon after `stop` is cancelled.
///
/// # Errors
/// `InvalidArgument` if it is damaged; `FailedPrecondition` if the node lacks the program; `ResourceExhausted` if there is
/// no space; `Cancelled`.
pub(super) fn decompressed(
    mut archive: File,
    scratch: &Path,
    stop: &CancellationToken,
) -> Result<File> {
    let mut head = [0; HEAD];
    let read = archive.read_at(&mut head, 0).map_err(unreadable)?;
    let Some(compression) = compression_of(&head[..read]) else {
        return Ok(archive);
    };
    archive.rewind().map_err(unreadable)?;
    let mut content = nameless(scratch)?;
    match compression {
        Compression::Gzip => {
            let from = MultiGzDecoder::new(BufReader::with_capacity(CHUNK, archive));
            copy(from, (&mut content, scratch), stop)?;
        }
        Compression::By(name, arguments) => {
            let mut program = Decompressor::start(name, arguments, archive)?;
            let output = program.child.stdout.take();
            let output = output
                .ok_or_else(|| Error::internal(format!("{name} was started without a pipe")))?;
            copy(output, (&mut content, scratch), stop)?;
            program.finish()?;
        }
    }
    Ok(content)
}

/// The compression of a file that begins with these bytes; `None` for a tar archive, and for anything else.
fn compression_of(head: &[u8]) -> Option<Compression> {
    // The first bytes of a tar archive are the name of a file, which may be any.
    if head.get(TAR_MAGIC) == Some(&b"ustar"[..]) {
        return None;
    }
    COMPRESSIONS
        .iter()
        .find(|(magic, _)| head.starts_with(magic))
        .map(|(_, compression)| *compression)
}

/// A file without a name on the disk of this directory.
fn nameless(dir: &Path) -> Result<File> {
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    rustix::fs::open(dir, flags, Mode::RUSR | Mode::WUSR)
        .map(File::from)
        .map_err(|fault| io_error("make a file without a name in", dir, fault.into()))
}

/// Copies what is decompressed, as long as the disk has space.
fn copy(
    mut from: impl Read,
    (to, scratch): (&mut File, &Path),
    stop: &CancellationToken,
) -> Result<()> {
    let mut chunk = vec![0; CHUNK];
    loop {
        check_cancelled(stop)?;
        let read = match from.read(&mut chunk) {
            Ok(0) => return Ok(()),
            Ok(read) => read,
            Err(fault) if fault.kind() == io::ErrorKind::Interrupted => continue,
            Err(fault) => {
                return Err(malformed(format!(
                    "it cannot be decompressed ({fault}): it is damaged or cut off"
                )));
            }
        };
        check_space(to, scratch)?;
        to.write_all(&chunk[..read])
            .map_err(|fault| io_error("decompress an archive to the disk of", scratch, fault))?;
    }
}

/// Refuses to fill the disk: how large a file becomes is known only when it is decompressed.
fn check_space(content: &File, scratch: &Path) -> Result<()> {
    let disk = rustix::fs::fstatvfs(content)
        .map_err(|fault| io_error("read the free space of", scratch, fault.into()))?;
    let free = disk.f_bavail.saturating_mul(disk.f_frsize);
    let kept = KEPT_FREE.min(disk.f_blocks.saturating_mul(disk.f_frsize) / 20);
    if free > kept {
        return Ok(());
    }
    Err(Error::exhausted(format!(
        "the archive is larger when it is decompressed than the disk of {} has space: {free} bytes are free",
        scratch.display()
    )))
}

// === impl Decompressor ===

impl Decompressor {
    fn start(name: &'static str, arguments: &[&str], archive: File) -> Result<Self> {
        let started = Command::new(name)
            .args(arguments)
            .stdin(Stdio::from(archive))
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn();
        match started {
            Ok(child) => Ok(Self { name, child }),
            Err(fault) => {
                let why = format!(
                    "the archive is compressed by {name}, which cannot be run on this node: install it, or compress the archive by gzip"
                );
                Err(Error::failed_precondition(why).with_source(fault))
            }
        }
    }

    /// Waits until it has ended.
    fn finish(mut self) -> Result<()> {
        let name = self.name;
        let status = self
            .child
            .wait()
            .map_err(|fault| Error::internal(format!("wait for {name}")).with_source(fault))?;
        if status.success() {
            return Ok(());
        }
        Err(malformed(format!(
            "{name} cannot decompress it ({status}): it is damaged or cut off, or needs too much memory"
        )))
    }
}

impl Drop for Decompressor {
    fn drop(&mut self) {
        // Both do nothing if it has ended and was waited for.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use flate2::write::GzEncoder;
    use switchyard_core::ErrorKind;

    use super::*;

    fn file(content: &[u8]) -> File {
        let mut file = tempfile::tempfile().expect("there is room");
        file.write_all(content).expect("there is room");
        file
    }

    fn gzip(content: &[u8]) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), flate2::Compression::fast());
        encoder.write_all(content).expect("it is memory");
        encoder.finish().expect("it is memory")
    }

    fn read(content: &[u8]) -> Result<Vec<u8>> {
        let scratch = tempfile::tempdir().expect("there is room");
        let mut found = decompressed(file(content), scratch.path(), &CancellationToken::new())?;
        let left = std::fs::read_dir(scratch.path()).expect("it is there");
        assert_eq!(left.count(), 0, "the file has no name");
        let mut bytes = Vec::new();
        found
            .rewind()
            .and_then(|()| found.read_to_end(&mut bytes))
            .expect("it can be read");
        Ok(bytes)
    }

    #[test]
    fn compression_is_told_by_the_first_bytes() {
        let name = |head: &[u8]| match compression_of(head) {
            None => "none",
            Some(Compression::Gzip) => "gzip",
            Some(Compression::By(name, _)) => name,
        };
        let mut tar = [0; HEAD];
        tar[..3].copy_from_slice(b"BZh");
        tar[TAR_MAGIC].copy_from_slice(b"ustar");
        for (head, expected) in [
            (&[0x1f, 0x8b, 8, 0][..], "gzip"),
            (&[0xfd, 0x37, 0x7a, 0x58, 0x5a, 0, 0], "xz"),
            (&[0x28, 0xb5, 0x2f, 0xfd, 4], "zstd"),
            (b"BZh91AY", "bzip2"),
            (&tar, "none"),
            (b"a file of text", "none"),
            (&[0x1f], "none"),
            (&[], "none"),
        ] {
            assert_eq!(name(head), expected, "{head:?}");
        }
    }

    #[test]
    fn archive_is_read_as_it_is_or_decompressed() {
        let long = b"0123456789".repeat(300_000);
        assert_eq!(read(b"as it is").unwrap(), b"as it is");
        assert_eq!(read(&gzip(&long)).unwrap(), long);
        // As pigz writes it: several one after the other.
        let parts = [gzip(b"one"), gzip(b"two")].concat();
        assert_eq!(read(&parts).unwrap(), b"onetwo");
    }

    #[test]
    fn damaged_archive_is_refused_without_its_bytes() {
        let whole = gzip(b"content of an image");
        let mut wrong = whole.clone();
        wrong.truncate(whole.len() - 9);
        for bytes in [&wrong[..], &[0x1f, 0x8b, 0xff, 0xff, 0x1b]] {
            let error = read(bytes).expect_err("it is damaged");
            assert_eq!(error.kind(), ErrorKind::InvalidArgument);
            let report = error.report();
            assert!(
                report.contains("damaged or cut off")
                    && !report.chars().any(|c| c.is_control() || c == '\u{fffd}'),
                "{report:?}"
            );
        }
    }

    #[test]
    fn decompression_ends_when_nobody_waits_any_more() {
        let stop = CancellationToken::new();
        stop.cancel();
        let scratch = tempfile::tempdir().expect("there is room");
        let error = decompressed(file(&gzip(b"x")), scratch.path(), &stop).expect_err("it is not");
        assert_eq!(error.kind(), ErrorKind::Cancelled);
    }
}
