//! Checks of an image's root file system before a runtime may work in it.

use std::fs;
use std::path::Path;

use switchyard_core::{Error, Result};
use switchyard_linux::files::if_present;

/// Refuses an image whose `/dev` is there and is no directory. Runtimes make device nodes and links in `/dev`
/// before they enter the container, and some versions of runc follow a link there out of the root file system
/// (CVE-2026-41579). `root` is where the image is mounted. Blocks on that file system.
///
/// # Errors
/// `FailedPrecondition` for such an image; `Internal` if it cannot be looked at.
pub fn check_dev(root: &Path) -> Result<()> {
    let found = if_present(fs::symlink_metadata(root.join("dev")))
        .map_err(|fault| Error::internal("look at /dev of the image").with_source(fault))?;
    // The runtime makes one that is missing.
    let Some(kind) = found.map(|found| found.file_type()) else {
        return Ok(());
    };
    if kind.is_dir() {
        return Ok(());
    }
    let what = if kind.is_symlink() {
        "a symbolic link"
    } else {
        "no directory"
    };
    Err(Error::failed_precondition(format!(
        "/dev of the image is {what}, through which a runtime could write outside of the container: make it a directory, or leave it out"
    )))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn only_a_directory_or_nothing_is_accepted() {
        let image = tempfile::tempdir().unwrap();
        let dev = image.path().join("dev");
        check_dev(image.path()).unwrap();
        fs::create_dir(&dev).unwrap();
        check_dev(image.path()).unwrap();
        fs::remove_dir(&dev).unwrap();
        // It leads to a directory, as an attacker wants.
        symlink("/tmp", &dev).unwrap();
        let refused = check_dev(image.path()).unwrap_err();
        assert!(refused.to_string().contains("a symbolic link"), "{refused}");
        fs::remove_file(&dev).unwrap();
        fs::write(&dev, "").unwrap();
        let refused = check_dev(image.path()).unwrap_err();
        assert!(refused.to_string().contains("no directory"), "{refused}");
    }
}
