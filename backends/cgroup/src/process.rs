//! The open files of a process, and their limit, from `/proc`.

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// The numbers of open files of some processes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct OpenFiles {
    /// All open files.
    pub files: u64,
    /// The sockets among them.
    pub sockets: u64,
}

/// The open files of this process; `None` if it has exited, or may not be inspected.
#[must_use]
pub fn open_files(pid: u32) -> Option<OpenFiles> {
    let mut open = OpenFiles::default();
    for entry in fs::read_dir(format!("/proc/{pid}/fd")).ok()? {
        // The link of a file that was closed meanwhile cannot be read.
        let Some(target) = entry
            .ok()
            .and_then(|entry| fs::read_link(entry.path()).ok())
        else {
            continue;
        };
        open.files += 1;
        open.sockets += u64::from(is_socket(&target));
    }
    Some(open)
}

fn is_socket(target: &Path) -> bool {
    target.as_os_str().as_bytes().starts_with(b"socket:")
}

/// The soft limit of open files of this process; `None` if it has exited or has no limit.
#[must_use]
pub fn open_files_limit(pid: u32) -> Option<u64> {
    soft_limit(&fs::read_to_string(format!("/proc/{pid}/limits")).ok()?)
}

/// The soft limit of open files in the text of a `limits` file.
fn soft_limit(text: &str) -> Option<u64> {
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("Max open files"))?;
    line.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn soft_limit_is_the_first_value() {
        let text = "\
Limit                     Soft Limit           Hard Limit           Units
Max processes             96551                96551                processes
Max open files            1024                 524288               files
";
        assert_eq!(soft_limit(text), Some(1024));
        assert_eq!(
            soft_limit(
                "Max open files            unlimited            unlimited            files\n"
            ),
            None
        );
        assert_eq!(soft_limit(""), None);
    }

    #[test]
    fn open_socket_of_this_process_is_counted() {
        let pid = std::process::id();
        let _file = fs::File::open("/dev/null").unwrap();
        let _sockets: Vec<_> = (0..64)
            .map(|_| std::os::unix::net::UnixDatagram::unbound().unwrap())
            .collect();
        let open = open_files(pid).unwrap();
        assert!(open.sockets >= 64 && open.files > open.sockets, "{open:?}");
        assert!(open_files_limit(pid).is_none_or(|limit| limit >= open.files));
    }

    #[test]
    fn exited_process_has_no_usage() {
        // No process has this id.
        assert_eq!(
            (open_files(u32::MAX), open_files_limit(u32::MAX)),
            (None, None)
        );
    }
}
