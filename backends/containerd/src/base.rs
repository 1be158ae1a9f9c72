//! The foundation of all parts: configuration, paths, names, files and errors. Nothing here depends on
//! containerd's API calls.

pub mod config;
pub(crate) mod container_id;
pub mod crash_points;
pub(crate) mod disk_io;
pub(crate) mod disks;
pub(crate) mod epoch;
pub(crate) mod error;
pub(crate) mod fs;
pub(crate) mod input;
pub(crate) mod instance;
pub(crate) mod layout;
pub(crate) mod mount;
pub(crate) mod null_device;
pub(crate) mod pace;
pub(crate) mod polled;
pub(crate) mod random;
pub(crate) mod reserved;
pub(crate) mod selinux;
pub(crate) mod trees;
