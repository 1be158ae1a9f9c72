//! Comparison of the running processes of Switchyard on this node with the installed programs.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// Suffix that the kernel appends to the path of a program whose file was removed or replaced.
const DELETED: &str = " (deleted)";

/// A process and its program, for display.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProgramView {
    /// The part: `daemon`, `containerd` or `logkeeper`.
    pub part: String,
    /// The process.
    pub pid: i32,
    /// The path of its program.
    pub path: String,
    /// True if another file has this path by now, or none.
    pub replaced: bool,
    /// The version that the process reports; `None` if it reports none, or does not answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// False if the process has read another configuration than this daemon generates for it; `None` if it has none, or that
    /// is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub configuration_current: Option<bool>,
}

impl ProgramView {
    /// Returns whether the process has read a configuration that is not that of this daemon.
    #[must_use]
    pub fn has_former_configuration(&self) -> bool {
        self.configuration_current == Some(false)
    }

    /// The command that puts the installed program, with the configuration of the daemon, in place; for the daemon the one that restarts its
    /// service, if that is known.
    #[must_use]
    pub fn restart_command(&self, of_daemon: Option<String>) -> String {
        match self.part.as_str() {
            "daemon" => of_daemon.unwrap_or_else(|| "systemctl restart switchyard".to_owned()),
            part => format!("switchyard restart {part}"),
        }
    }
}

/// The program of a process, without its version and its configuration, which are not seen from outside; `None` if the process has ended, or this one may not see it. Blocks.
#[must_use]
pub fn of_process(part: &str, pid: i32) -> Option<ProgramView> {
    let link = PathBuf::from(format!("/proc/{pid}/exe"));
    let shown = fs::read_link(&link).ok()?;
    // The link leads to the file even if that has no path any more.
    let running = identity(&link)?;
    let path = path_of(&shown, |path| path.exists());
    let replaced = identity(&path) != Some(running);
    Some(ProgramView {
        part: part.to_owned(),
        pid,
        path: path.display().to_string(),
        replaced,
        version: None,
        configuration_current: None,
    })
}

/// The path that the program had when it was executed, from what the kernel shows. Pure but for `exists`.
fn path_of(shown: &Path, exists: impl Fn(&Path) -> bool) -> PathBuf {
    let stripped = shown.to_str().and_then(|text| text.strip_suffix(DELETED));
    match stripped {
        // A file may really have such a name.
        Some(stripped) if !exists(shown) => PathBuf::from(stripped),
        Some(_) | None => shown.to_owned(),
    }
}

fn identity(path: &Path) -> Option<(u64, u64)> {
    fs::metadata(path).ok().map(|file| (file.dev(), file.ino()))
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command};

    use super::*;

    struct Sleeping(Child);

    impl Drop for Sleeping {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    #[test]
    fn program_is_replaced_when_its_path_has_another_file_or_none() {
        let dir = tempfile::tempdir().unwrap();
        let program = dir.path().join("program");
        fs::copy("/bin/sleep", &program).unwrap();
        let child = Sleeping(Command::new(&program).arg("1000").spawn().unwrap());
        let pid = i32::try_from(child.0.id()).unwrap();
        let view = |replaced| {
            let path = program.display().to_string();
            Some(ProgramView {
                part: "program".into(),
                pid,
                path,
                replaced,
                version: None,
                configuration_current: None,
            })
        };
        assert_eq!(of_process("program", pid), view(false));
        // As dpkg does it: the new file is renamed over the old one.
        let new = dir.path().join("program.dpkg-new");
        fs::copy("/bin/sleep", &new).unwrap();
        fs::rename(&new, &program).unwrap();
        assert_eq!(of_process("program", pid), view(true));
        fs::remove_file(&program).unwrap();
        assert_eq!(of_process("program", pid), view(true));
        drop(child);
        assert_eq!(of_process("program", pid), None);
    }

    #[test]
    fn view_of_an_earlier_daemon_is_read() {
        let earlier =
            r#"{"part":"containerd","pid":7,"path":"/usr/bin/containerd","replaced":false}"#;
        let view: ProgramView = serde_json::from_str(earlier).unwrap();
        assert_eq!(
            (view.version.clone(), view.configuration_current),
            (None, None)
        );
        assert!(!view.has_former_configuration());
        assert_eq!(serde_json::to_string(&view).unwrap(), earlier);
    }

    #[test]
    fn a_name_that_ends_like_a_deleted_one_is_kept() {
        let odd = Path::new("/bin/x (deleted)");
        assert_eq!(path_of(odd, |_| true), odd);
        assert_eq!(path_of(odd, |_| false), Path::new("/bin/x"));
    }
}
