//! The frontends' knowledge of the objects of their owners, from what they have stored with them: display
//! names, annotations, and the locations of logs.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use switchyard_core::id::Owner;
use switchyard_core::names::Names;
use switchyard_core::object::{Sandbox, Task};
use switchyard_core::spec::Meta;
use switchyard_logkeeper::reader::LogLocation;

/// A frontend's knowledge of the objects of its owner. The default is for an owner without a frontend.
#[derive(Debug, Clone, Copy)]
pub struct OwnerFunctions {
    /// The names of a sandbox, or of a task in it.
    pub names: fn(&Meta, Option<&Meta>) -> Names,
    /// The annotations of a sandbox, or of a task in it, as they were requested: their values may be secret.
    pub annotations: fn(&Meta, Option<&Meta>) -> BTreeMap<String, String>,
    /// Returns the location of a task's log, or why there is none.
    pub log: fn(&Sandbox, &Task) -> Result<LogLocation, &'static str>,
}

/// The functions of each owner.
#[derive(Debug, Clone, Copy)]
pub struct Owners(fn(Owner) -> OwnerFunctions);

impl Owners {
    /// The functions that this returns for an owner.
    #[must_use]
    pub const fn new(of: fn(Owner) -> OwnerFunctions) -> Self {
        Self(of)
    }

    /// The names of a sandbox, or of a task in it. A task has the name of its image in any case.
    #[must_use]
    pub fn names(&self, sandbox: &Sandbox, task: Option<&Task>) -> Names {
        let names = self.names_in_record(&sandbox.meta, task.map(|task| &*task.meta));
        match task {
            Some(task) if names.get("image").is_none() => {
                names.with("image", &task.details.image_ref)
            }
            Some(_) | None => names,
        }
    }

    /// As [`Owners::names`], from what the frontend stored with the sandbox and the task alone.
    #[must_use]
    pub fn names_in_record(&self, sandbox: &Meta, task: Option<&Meta>) -> Names {
        (self.of(sandbox.owner).names)(sandbox, task)
    }

    /// The annotations of a sandbox, or of a task in it, as its owner requested them: their values may be secret.
    #[must_use]
    pub fn annotations(&self, sandbox: &Meta, task: Option<&Meta>) -> BTreeMap<String, String> {
        (self.of(sandbox.owner).annotations)(sandbox, task)
    }

    /// Returns the location of a task's log, or why there is none.
    ///
    /// # Errors
    /// The reason.
    pub fn log_of(&self, sandbox: &Sandbox, task: &Task) -> Result<LogLocation, &'static str> {
        (self.of(task.meta.owner).log)(sandbox, task)
    }

    fn of(&self, owner: Owner) -> OwnerFunctions {
        (self.0)(owner)
    }
}

impl Default for Owners {
    fn default() -> Self {
        Self::new(|_| OwnerFunctions::default())
    }
}

impl Default for OwnerFunctions {
    fn default() -> Self {
        Self {
            names: |sandbox, task| Names::new(&task.unwrap_or(sandbox).name),
            annotations: |_, _| BTreeMap::new(),
            log: |_, task| match &task.details.log_path {
                Some(file) => Ok(log_beneath(None, file)),
                None => Err("it was created without one"),
            },
        }
    }
}

/// A log in the CRI format. Links are followed on the way to `directory` alone.
#[must_use]
pub fn log_beneath(directory: Option<PathBuf>, file: &Path) -> LogLocation {
    let known = directory.and_then(|root| {
        let path = file
            .strip_prefix(&root)
            .ok()
            .filter(|path| path.file_name().is_some())?
            .to_owned();
        Some(LogLocation::Cri { root, path })
    });
    known.unwrap_or_else(|| LogLocation::Cri {
        root: file.parent().unwrap_or(Path::new("/")).to_owned(),
        path: file.file_name().map(PathBuf::from).unwrap_or_default(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn log_is_beneath_the_directory_of_its_pod() {
        let file = Path::new("/var/log/pods/shop_web_u-1/nginx/0.log");
        let beneath = |root: &str, path: &str| LogLocation::Cri {
            root: root.into(),
            path: path.into(),
        };
        let pod = Some("/var/log/pods/shop_web_u-1".into());
        assert_eq!(
            log_beneath(pod, file),
            beneath("/var/log/pods/shop_web_u-1", "nginx/0.log")
        );
        for unknown in [None, Some("/elsewhere".into()), Some(file.to_owned())] {
            let own = beneath("/var/log/pods/shop_web_u-1/nginx", "0.log");
            assert_eq!(log_beneath(unknown, file), own);
        }
    }
}
