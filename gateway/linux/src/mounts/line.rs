//! One line of the list.

use std::borrow::Cow;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use super::{Mount, Options, Propagation};

/// The mount of a line; `None` if the line does not have the form of proc(5).
pub(super) fn parse(line: &[u8]) -> Option<Mount<'_>> {
    // 36 35 98:0 /root /point options optional-fields... - type source super-options
    let mut fields = line.split(|byte| *byte == b' ');
    let id = number(fields.next()?)?;
    let parent = number(fields.next()?)?;
    let device = std::str::from_utf8(fields.next()?).ok()?;
    let root = path(fields.next()?);
    let point = path(fields.next()?);
    let options = Options(fields.next()?);
    // Optional fields, of any number, end with a single dash.
    let mut propagation = Propagation::Private;
    loop {
        match fields.next()? {
            b"-" => break,
            shared if shared.starts_with(b"shared:") => propagation = Propagation::Shared,
            // A shared mount may have a master, too.
            slave if slave.starts_with(b"master:") && propagation == Propagation::Private => {
                propagation = Propagation::Slave;
            }
            _ => {}
        }
    }
    let fs_type = String::from_utf8_lossy(fields.next()?);
    let source = text(fields.next()?);
    // Their absence makes no other field uncertain, so the line is accepted.
    let fs_options = Options(fields.next().unwrap_or_default());
    Some(Mount {
        id,
        parent,
        device,
        root,
        point,
        options,
        propagation,
        fs_type,
        source,
        fs_options,
    })
}

fn number(field: &[u8]) -> Option<u32> {
    std::str::from_utf8(field).ok()?.parse().ok()
}

fn path(field: &[u8]) -> Cow<'_, Path> {
    match unescape(field) {
        Cow::Borrowed(plain) => Cow::Borrowed(Path::new(OsStr::from_bytes(plain))),
        Cow::Owned(plain) => Cow::Owned(PathBuf::from(OsString::from_vec(plain))),
    }
}

fn text(field: &[u8]) -> Cow<'_, OsStr> {
    match unescape(field) {
        Cow::Borrowed(plain) => Cow::Borrowed(OsStr::from_bytes(plain)),
        Cow::Owned(plain) => Cow::Owned(OsString::from_vec(plain)),
    }
}

/// The bytes that a field stands for: a backslash and three octal digits are one byte, anything else is itself.
pub(super) fn unescape(field: &[u8]) -> Cow<'_, [u8]> {
    if !field.contains(&b'\\') {
        return Cow::Borrowed(field);
    }
    let mut plain = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((first, tail)) = rest.split_first() {
        match rest {
            [
                b'\\',
                a @ b'0'..=b'3',
                b @ b'0'..=b'7',
                c @ b'0'..=b'7',
                after @ ..,
            ] => {
                plain.push(((a - b'0') << 6) | ((b - b'0') << 3) | (c - b'0'));
                rest = after;
            }
            _ => {
                plain.push(*first);
                rest = tail;
            }
        }
    }
    Cow::Owned(plain)
}
