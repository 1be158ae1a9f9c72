//! The configuration: which paths are devices of which group.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use glob::Pattern;
use serde::{Deserialize, Serialize};
use switchyard_core::{Error, Result};

/// `[[devices.groups]]`: like devices.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Group {
    /// Who makes them.
    pub vendor: String,
    /// What they are, as `gpu`.
    #[serde(rename = "type")]
    pub kind: String,
    /// Their model.
    #[serde(default = "default_name")]
    pub name: String,
    /// Paths of the device nodes, with `*`, `?` and `[...]` for what differs. One without these is told as unhealthy while it is missing.
    pub paths: Vec<String>,
    /// What a task may do with them: any of `r`, `w`, `m`.
    #[serde(default = "default_permissions")]
    pub permissions: String,
    /// Nodes that a task with any of them gets besides.
    #[serde(default)]
    pub shared: Vec<PathBuf>,
    /// The variable that tells a task which of them it has, their paths with commas between; empty for none.
    #[serde(default)]
    pub env: String,
    /// Facts for jobs to choose by, as `memory = "16 GiB"`.
    #[serde(default)]
    pub attributes: BTreeMap<String, String>,
}

fn default_name() -> String {
    "default".to_owned()
}

fn default_permissions() -> String {
    "rw".to_owned()
}

// === impl Group ===

impl Group {
    /// Checks what the types cannot say, of all groups together.
    ///
    /// # Errors
    /// `InvalidArgument`, naming the key.
    pub fn check(groups: &[Self]) -> Result<()> {
        let mut seen = BTreeSet::new();
        for group in groups {
            group.check_one()?;
            let name = format!("{}/{}/{}", group.vendor, group.kind, group.name);
            if !seen.insert(name.clone()) {
                return Err(Error::invalid("name", format!("two groups are {name}")));
            }
        }
        Ok(())
    }

    fn check_one(&self) -> Result<()> {
        for (key, text) in [("vendor", &self.vendor), ("type", &self.kind), ("name", &self.name)] {
            if text.is_empty() || text.chars().any(|c| c == '/' || c.is_whitespace() || c.is_control()) {
                return Err(Error::invalid(key, format!("{text:?} is no word without a slash")));
            }
        }
        if self.paths.is_empty() {
            return Err(Error::invalid("paths", "there is none"));
        }
        for path in &self.paths {
            Pattern::new(path).map_err(|fault| {
                Error::invalid("paths", format!("{path:?} is no pattern of paths")).with_source(fault)
            })?;
        }
        let shared = self.shared.iter().map(|path| ("shared", path.display().to_string()));
        for (key, path) in self.paths.iter().map(|path| ("paths", path.clone())).chain(shared) {
            if !path.starts_with('/') || path.split('/').any(|part| part == "..") {
                return Err(Error::invalid(key, format!("{path:?} is not an absolute path without `..`")));
            }
        }
        if self.permissions.is_empty() || !self.permissions.chars().all(|c| "rwm".contains(c)) {
            return Err(Error::invalid(
                "permissions",
                format!("{:?} is none of r, w and m", self.permissions),
            ));
        }
        if self.env.contains(['=', '\0']) {
            return Err(Error::invalid("env", format!("{:?} cannot name a variable", self.env)));
        }
        match self.attributes.keys().find(|key| key.is_empty()) {
            Some(_) => Err(Error::invalid("attributes", "one has no name")),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn group() -> Group {
        Group {
            vendor: "acme".to_owned(),
            kind: "tpu".to_owned(),
            name: "v2".to_owned(),
            paths: vec!["/dev/acme[0-9]*".to_owned()],
            permissions: default_permissions(),
            shared: Vec::new(),
            env: String::new(),
            attributes: BTreeMap::new(),
        }
    }

    #[test]
    fn what_is_no_group_is_refused_by_its_key() {
        let check = |change: fn(&mut Group), key: &str| {
            let mut one = group();
            change(&mut one);
            let error = Group::check(&[one]).unwrap_err().to_string();
            assert!(error.starts_with(key), "{error}");
        };
        Group::check(&[group()]).unwrap();
        check(|group| group.vendor = "a/b".into(), "vendor: ");
        check(|group| group.kind.clear(), "type: ");
        check(|group| group.name = "two words".into(), "name: ");
        check(|group| group.paths.clear(), "paths: ");
        check(|group| group.paths = vec!["/dev/a[".into()], "paths: ");
        check(|group| group.paths = vec!["dev/a".into()], "paths: ");
        check(|group| group.paths = vec!["/dev/../a".into()], "paths: ");
        check(|group| group.shared = vec!["ctl".into()], "shared: ");
        check(|group| group.permissions = "rx".into(), "permissions: ");
        check(|group| group.env = "A=B".into(), "env: ");
        let error = Group::check(&[group(), group()]).unwrap_err().to_string();
        assert!(error.contains("acme/tpu/v2"), "{error}");
    }
}
