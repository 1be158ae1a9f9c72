//! The operations of this crate for async callers, each on a blocking thread of the tokio runtime.
//!
//! Cancel safety of all of them: an operation that has begun runs to its end even if the future is dropped.
//! So a caller that may be cancelled has to know the directory beforehand and call the matching removal,
//! which is idempotent.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr};
use std::path::PathBuf;

use switchyard_linux::blocking;

use crate::error::Error;
use crate::mounts;
use crate::pin::{PinSpec, Pins};
use crate::shm;

/// [`Pins::create`].
///
/// # Errors
/// Those of [`Pins::create`].
pub async fn create_pins(dir: PathBuf, want: PinSpec) -> Result<Pins, Error> {
    blocking("make namespaces", move || Pins::create(&dir, &want)).await
}

/// [`Pins::remove`]. Idempotent.
///
/// # Errors
/// Those of [`Pins::remove`].
pub async fn remove_pins(dir: PathBuf) -> Result<(), Error> {
    blocking("release namespaces", move || Pins::remove(&dir)).await
}

/// [`shm::mount`]. Idempotent.
///
/// # Errors
/// Those of [`shm::mount`].
pub async fn mount_shm(dir: PathBuf, size_bytes: u64) -> Result<(), Error> {
    blocking("mount shared memory", move || shm::mount(&dir, size_bytes)).await
}

/// [`shm::unmount`]. Idempotent.
///
/// # Errors
/// Those of [`shm::unmount`].
pub async fn unmount_shm(dir: PathBuf) -> Result<(), Error> {
    blocking("unmount shared memory", move || shm::unmount(&dir)).await
}

/// [`crate::addresses`].
///
/// # Errors
/// Those of [`crate::addresses`].
pub async fn addresses(netns: PathBuf) -> Result<Vec<IpAddr>, Error> {
    blocking("read addresses", move || crate::addresses(&netns)).await
}

/// [`crate::restore_ipv6`]. Idempotent.
///
/// # Errors
/// Those of [`crate::restore_ipv6`].
pub async fn restore_ipv6(
    netns: PathBuf,
    device: &'static str,
    addresses: Vec<(Ipv6Addr, u8)>,
) -> Result<(), Error> {
    blocking("restore IPv6 addresses", move || {
        crate::restore_ipv6(&netns, device, &addresses)
    })
    .await
}

/// [`crate::set_in_netns`]. Idempotent.
///
/// # Errors
/// Those of [`crate::set_in_netns`].
pub async fn set_sysctls(netns: PathBuf, sysctls: BTreeMap<String, String>) -> Result<(), Error> {
    blocking("set kernel parameters", move || {
        crate::set_in_netns(&netns, &sysctls)
    })
    .await
}

/// [`mounts::unmount_tree`]. Idempotent.
///
/// # Errors
/// Those of [`mounts::unmount_tree`].
pub async fn unmount_tree(dir: PathBuf) -> Result<(), Error> {
    blocking("unmount a tree", move || mounts::unmount_tree(&dir)).await
}
