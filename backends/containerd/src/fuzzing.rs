//! Fuzz targets: properties that hold for any bytes from shims, in uploaded image archives, and in records in
//! containerd. Called only by fuzzers and tests.

use std::collections::HashMap;
use std::fmt::Debug;
use std::fs::File;
use std::io::Write;

use prost_types::Any;
use rustix::fs::{MemfdFlags, memfd_create};
use serde::{Deserialize, Serialize};
use switchyard_core::ErrorKind;
use switchyard_registry::{Digest, Limits};
use tokio_util::sync::CancellationToken;

use crate::image::load::archive::Archive;
use crate::record::{self, EXTENSION, ExitRecord, SandboxRecord, TaskRecord};
use crate::shims::direct::ttrpc::{HEADER_LEN, MAX_MESSAGE, take_response};

/// The image limits that archives are read with.
const LIMITS: Limits = Limits {
    manifest_bytes: 1 << 10,
    config_bytes: 1 << 10,
    layers: 8,
    image_bytes: None,
};

/// The longest error report for an archive, in bytes.
const MAX_ERROR_BYTES: usize = 4096;

/// Reads bytes as responses of a shim, in pieces of the size that the first byte gives: no more than one
/// frame and one piece is buffered, and no byte is read twice.
///
/// # Panics
/// If that does not hold.
pub fn ttrpc(data: &[u8]) {
    let Some((cut, data)) = data.split_first() else {
        return;
    };
    let mut received = Vec::new();
    let mut taken = 0;
    for piece in data.chunks(usize::from(*cut).max(1)) {
        received.extend_from_slice(piece);
        loop {
            let before = received.len();
            match take_response(&mut received, 1) {
                Ok(Some(_)) => {
                    assert!(
                        before - received.len() >= HEADER_LEN,
                        "a frame has a header"
                    );
                    taken += before - received.len();
                }
                Ok(None) => break,
                Err(_) => return,
            }
        }
        assert!(
            received.len() <= HEADER_LEN + MAX_MESSAGE + piece.len(),
            "{} bytes are kept",
            received.len()
        );
    }
    assert_eq!(taken + received.len(), data.len());
}

/// Reads bytes as an image archive, as they are and with corrected checksums in all headers: layers and
/// configuration are within the archive and the limits, and a layer's digest is that of its bytes. An error
/// blames the archive and is short.
///
/// # Panics
/// If that does not hold.
pub fn archive(data: &[u8]) {
    read_archive(data);
    read_archive(&with_checksums(data));
}

fn read_archive(data: &[u8]) {
    let mut file =
        File::from(memfd_create("archive", MemfdFlags::CLOEXEC).expect("there is memory"));
    file.write_all(data).expect("there is memory");
    let found = Archive::open(file, CancellationToken::new())
        .and_then(|archive| archive.image("docker.io/library/busybox:1", &LIMITS));
    let found = match found {
        Ok(found) => found,
        Err(error) => {
            let kind = error.kind();
            assert!(
                matches!(kind, ErrorKind::InvalidArgument | ErrorKind::NotFound),
                "{kind:?}"
            );
            assert!(
                error.report().len() <= MAX_ERROR_BYTES,
                "{} bytes are reported",
                error.report().len()
            );
            return;
        }
    };
    assert!(
        found.layers.len() <= LIMITS.layers,
        "{} layers",
        found.layers.len()
    );
    assert!(
        found.config.len() <= 1 << 10,
        "{} bytes",
        found.config.len()
    );
    for layer in &found.layers {
        let begin = usize::try_from(layer.at).expect("it is in the archive");
        let size = usize::try_from(layer.descriptor.size).expect("it is in the archive");
        let bytes = data.get(begin..begin + size).expect("it is in the archive");
        assert_eq!(Digest::sha256(bytes), layer.descriptor.digest);
    }
}

/// The same bytes with the correct checksum in each block that is a tar header: few generated headers have it
/// by chance.
fn with_checksums(data: &[u8]) -> Vec<u8> {
    let mut data = data.to_vec();
    for block in data
        .chunks_exact_mut(512)
        .filter(|block| block[257..262] == *b"ustar")
    {
        block[148..156].fill(b' ');
        let sum: u32 = block.iter().map(|byte| u32::from(*byte)).sum();
        block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    }
    data
}

/// Reads bytes as an identity, and as the records of a sandbox, of a task and of an exit: a record that was read is the same
/// after it is written and read again.
///
/// # Panics
/// If that does not hold.
pub fn records(data: &[u8]) {
    if let Some(sandbox) = round_trips::<SandboxRecord>(data) {
        let again = sandbox.meta.to_core().map(|meta| meta.name.clone());
        assert!(again.is_err() || again.is_ok_and(|name| name == sandbox.meta.name()));
        let details = sandbox.details(None, None);
        assert_eq!(details.ips, sandbox.ips);
        assert!(details.note.len() * 2 <= sandbox.note.len());
        let users = sandbox
            .users
            .as_ref()
            .and_then(record::UsersRecord::to_core);
        let written = users.as_ref().map(record::UsersRecord::from_core);
        assert!(written.is_none() || written == sandbox.users);
    }
    if let Some(task) = round_trips::<TaskRecord>(data) {
        let _ = (
            task.meta.to_core(),
            task.image_views(),
            task.stdin_ends_on_detach(),
            task.cgroup_marker("id"),
        );
        let details = task.details();
        assert_eq!(details.throttles.len(), task.throttles.len());
        assert_eq!(details.volume_images.len(), task.volume_images.len());
        if let Ok(id) = task.sandbox_id() {
            assert_eq!(id.to_string(), task.sandbox);
        }
    }
    let identity = Any {
        type_url: record::IDENTITY_TYPE.to_owned(),
        value: data.to_vec(),
    };
    let extensions = HashMap::from([(record::IDENTITY.to_owned(), identity)]);
    let _ = record::identity_of(&HashMap::new(), &extensions);
    let _ = record::later_identity(&extensions);
    let label = String::from_utf8_lossy(data);
    if let Ok(exit) = ExitRecord::parse_label(&label) {
        let (exit, started_at) = exit.to_core();
        let again = ExitRecord::parse_label(&ExitRecord::from_core(&exit, started_at).to_label());
        let (again, same_start) = again.expect("it was written by us").to_core();
        assert_eq!(
            (again.code, again.finished_at, same_start),
            (exit.code, exit.finished_at, started_at)
        );
    }
}

/// Decodes a record, if the bytes are one, and checks that it is the same after it is encoded and decoded
/// again.
fn round_trips<T: Serialize + for<'a> Deserialize<'a> + PartialEq + Debug>(
    data: &[u8],
) -> Option<T> {
    let of = |value: Any| HashMap::from([(EXTENSION.to_owned(), value)]);
    let any = Any {
        value: data.to_vec(),
        ..record::encode(&())
    };
    let read: T = record::decode("id", &of(any)).ok()?;
    let again: T = record::decode("id", &of(record::encode(&read))).expect("it was written by us");
    assert_eq!(again, read);
    Some(read)
}
