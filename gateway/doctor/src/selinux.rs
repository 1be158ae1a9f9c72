//! Checks of SELinux: whether containers get labels, and whether the policy has what these labels need.
//!
//! The policy in the kernel cannot be listed without the tools of SELinux, so its file contexts stand for it: those of a policy with
//! types for containers name the type of their files.

use std::path::Path;

use super::codes::node::{SELINUX, SELINUX_POLICY};
use super::facts::Facts;
use super::finding::{Finding, Severity};
use super::view::NodeView;

/// 1 if SELinux enforces its policy; absent where SELinux is off.
const ENFORCE: &str = "/sys/fs/selinux/enforce";

/// Names the policy of the node.
const CONFIG: &str = "/etc/selinux/config";

/// The policy of a node whose configuration names none, as for libselinux.
const DEFAULT_POLICY: &str = "targeted";

/// The type of files of containers, as in a label.
const CONTAINER_FILES: &str = ":container_file_t:";

/// Returns whether the kernel uses SELinux.
pub(super) fn is_on(view: &dyn NodeView) -> bool {
    view.exists(ENFORCE)
}

/// The finding on a node with SELinux, if there is one.
pub(super) fn check(facts: &Facts) -> Option<Finding> {
    let view = &*facts.view;
    let config = &facts.config;
    let labels = config.containerd.selinux;
    let enforces = view.number(ENFORCE) == Some(1);
    if !labels && !enforces {
        return None;
    }
    let contexts = FileContexts::read(view);
    if contexts
        .as_ref()
        .is_some_and(|found| !found.know_containers())
    {
        let severity = if labels {
            Severity::Error
        } else {
            Severity::Note
        };
        let found = format!(
            "the file contexts of the policy {} have no container_file_t, containerd.selinux is {labels}",
            contexts?.policy
        );
        return Some(Finding::new(&SELINUX_POLICY, found).severity(severity));
    }
    if !labels {
        let found = "/sys/fs/selinux/enforce is 1, containerd.selinux is false";
        return Some(Finding::new(&SELINUX, found));
    }
    let contexts = contexts?;
    let missing: Vec<_> = [&config.paths.run, &config.paths.state]
        .into_iter()
        .filter(|dir| !contexts.have(dir))
        .map(|dir| dir.display().to_string())
        .collect();
    (!missing.is_empty()).then(|| {
        let found = format!(
            "the file contexts of the policy {} have none for {}",
            contexts.policy,
            missing.join(" and ")
        );
        Finding::new(&SELINUX_POLICY, found)
    })
}

/// The labels that the policy of the node gives to files by their paths.
struct FileContexts {
    /// The name of the policy.
    policy: String,
    /// Lines that begin with the pattern of a path, of the policy and of the operator.
    text: String,
}

impl FileContexts {
    /// Reads them; `None` if those of the policy cannot be read.
    fn read(view: &dyn NodeView) -> Option<Self> {
        let config = view.text(CONFIG).unwrap_or_default();
        let named = config
            .lines()
            .filter_map(|line| line.trim().strip_prefix("SELINUXTYPE="))
            .next_back();
        let policy = named.unwrap_or(DEFAULT_POLICY).trim().to_owned();
        let dir = Path::new("/etc/selinux")
            .join(&policy)
            .join("contexts/files");
        let mut text = view.text(dir.join("file_contexts"))?;
        // Of `semanage fcontext`: its entries, and its directories that are labelled as others.
        for name in ["file_contexts.local", "file_contexts.subs"] {
            text.push('\n');
            text.push_str(&view.text(dir.join(name)).unwrap_or_default());
        }
        Some(Self { policy, text })
    }

    fn know_containers(&self) -> bool {
        self.text.contains(CONTAINER_FILES)
    }

    /// Returns whether an entry begins with this directory.
    fn have(&self, dir: &Path) -> bool {
        let dir = in_run(&dir.display().to_string());
        self.text.lines().any(|line| {
            // What follows is the rest of a pattern or the end of the path, not that of a longer name.
            in_run(&line.replace('\\', ""))
                .strip_prefix(&dir)
                .is_some_and(|rest| {
                    !rest.starts_with(|c: char| c.is_alphanumeric() || "-_.".contains(c))
                })
        })
    }
}

/// A path with `/run` for `/var/run`, which policies before RHEL 10 have in its place.
fn in_run(path: &str) -> String {
    match path.strip_prefix("/var/run/") {
        Some(rest) => format!("/run/{rest}"),
        None => path.to_owned(),
    }
}
