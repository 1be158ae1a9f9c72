//! The permission bits of a file or tmpfs.

use switchyard_core::{Error, Result};

/// The bits of Go's `FileMode` for set-user-id, set-group-id and sticky, each with that of POSIX.
const GO_BITS: [(u32, u32); 3] = [(1 << 23, 0o4000), (1 << 22, 0o2000), (1 << 20, 0o1000)];

/// Permission bits from POSIX bits, as docker's client sends them, or those of Go's `FileMode`.
pub(super) fn file_mode(field: &str, wire: u32) -> Result<u32> {
    let mut mode = wire & 0o7777;
    let mut rest = wire & !0o7777;
    for (go, posix) in GO_BITS {
        if rest & go != 0 {
            mode |= posix;
            rest &= !go;
        }
    }
    if rest == 0 {
        Ok(mode)
    } else {
        Err(Error::invalid(
            field,
            format!("{wire:o} (octal) is not the mode of a file"),
        ))
    }
}
