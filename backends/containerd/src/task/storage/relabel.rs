//! Gives what a task mounts its SELinux label, before the task is created.
//!
//! A kill amid it leaves a part of the files with the label: the client asks for the task again, and then the others get
//! theirs.

use std::path::{Path, PathBuf};

use switchyard_core::{ErrorKind, Result};
use switchyard_namespaces::mounts::PathHandle;
use switchyard_runtime_spec::relabel::Relabelled;
use switchyard_tree::Cancel;

use crate::base::fs::CancelOnDrop;
use crate::base::selinux::label_tree;
use crate::task::TaskEntry;
use crate::task::storage::Storage;
use crate::task::storage::stage::not_opened;

impl Storage {
    /// Labels these files and trees. Dropping the future, or a time limit, ends it at the next file.
    pub(crate) async fn relabel(&self, entry: &TaskEntry, trees: &[Relabelled]) -> Result<()> {
        let owner = entry.record().meta.owner()?;
        let guard = CancelOnDrop::default();
        let cancel = guard.cancel();
        let trees = trees.to_vec();
        let label = move || trees.iter().try_for_each(|tree| label_one(tree, &cancel));
        // Paths of the host can be on a dead network file system, where this blocks for ever.
        let done = self
            .blocking_pools
            .of(owner)
            .run(format!("sandbox {}", entry.sandbox), label)
            .await;
        done.map_err(|error| {
            if error.kind() == ErrorKind::Unavailable {
                error.context("give the mounts of a task their SELinux label: what is labelled of a large tree stays so, and the next try continues")
            } else {
                error
            }
        })
    }
}

fn label_one(tree: &Relabelled, cancel: &Cancel) -> Result<()> {
    let Relabelled {
        part,
        root,
        below,
        label,
        required,
    } = tree;
    let path = whole(root, below);
    let labelled = PathHandle::open_beneath(root, below)
        .map_err(|fault| not_opened("mounts.selinux_relabel", &path, fault))
        .and_then(|top| label_tree(&top, &path, label, cancel));
    match labelled {
        // Of a read-only file system, and such: whoever uses it there can do so only with its label.
        Err(error) if !required && error.kind() == ErrorKind::FailedPrecondition => {
            tracing::warn!(path = %path.display(), error = error.report(), "a mount keeps its SELinux label: the configuration asks for another, the task does not");
            Ok(())
        }
        Err(error) => Err(match part {
            Some(part) => error.about(*part),
            None => error,
        }),
        Ok(()) => Ok(()),
    }
}

/// The path for messages.
fn whole(root: &Path, below: &Path) -> PathBuf {
    if below.as_os_str().is_empty() {
        root.to_owned()
    } else {
        root.join(below)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use rustix::fs::lgetxattr;
    use switchyard_core::SpecPart;

    use super::*;

    const LABEL: &str = "system_u:object_r:container_file_t:s0:c1,c2";

    fn has_label(path: &Path) -> bool {
        let mut value = [0; 100];
        lgetxattr(path, "security.selinux", &mut value[..])
            .is_ok_and(|length| value[..length].starts_with(LABEL.as_bytes()))
    }

    #[test]
    fn only_what_was_checked_gets_the_label() {
        let dir = tempfile::tempdir().unwrap();
        let top = dir.path().canonicalize().unwrap();
        fs::create_dir_all(top.join("data/below")).unwrap();
        fs::write(top.join("data/below/file"), "x").unwrap();
        fs::write(top.join("file"), "x").unwrap();
        fs::create_dir(top.join("outside")).unwrap();
        symlink("outside", top.join("link")).unwrap();
        let tree = |root: &Path, below: &str| Relabelled {
            part: Some(SpecPart::Mount(3)),
            root: root.to_owned(),
            below: below.into(),
            label: LABEL.to_owned(),
            required: true,
        };
        let on_host = |name: &str| {
            let path = top.join(name).display().to_string();
            tree(Path::new("/"), path.trim_start_matches('/'))
        };
        for (tree, is_labelled, path) in [
            (on_host("data"), true, "data/below/file"),
            (on_host("file"), true, "file"),
            (on_host("link"), false, "outside"),
            (on_host("missing"), false, "missing"),
            (tree(&top, "link"), false, "outside"),
            (tree(&top, "link/."), false, "outside"),
            (tree(&top, "../outside"), false, "outside"),
            (tree(&top.join("outside"), ""), true, "outside"),
        ] {
            let done = label_one(&tree, &Cancel::default());
            assert_eq!(done.is_ok(), is_labelled, "{tree:?}: {done:?}");
            assert_eq!(has_label(&top.join(path)), is_labelled, "{tree:?}");
            if let Err(error) = done {
                assert_eq!(error.part(), Some(SpecPart::Mount(3)));
            }
        }
    }
}
